// tests/driver/launch_text.h — what a call puts on its stream as text: each step, its size, its arguments
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <attune/tensor.h>

namespace attune::tests {

/// Memory that an argument may point into. The fake driver reads none of it, so an address alone will do.
struct Region {
  std::string name;
  const void* first = nullptr;
  std::size_t bytes = 0;
};

/// The steps of `call`. Pointers are told as places in one of the regions. `kind`: of the struct that the walk of pairs
/// gets, one of forward, per_entry, decode, mla and backward; `further`: with Further behind it.
std::string launch_text(const std::vector<Region>& regions, const std::string& kind, bool further,
                        const std::function<void()>& call);

}  // namespace attune::tests
