// tests/driver/launch_text.h — the steps that a call enqueues on its stream, as text: names, sizes, arguments
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

/// The steps of `call`. Pointers are printed as offsets into one of the regions. `kind`: the main kernel's struct:
/// forward, parts (InParts), decode, mla or backward; `further`: true if Further follows it.
std::string launch_text(const std::vector<Region>& regions, const std::string& kind, bool further,
                        const std::function<void()>& call);

}  // namespace attune::tests
