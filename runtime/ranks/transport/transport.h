// runtime/ranks/transport/transport.h — collective operations on a transport: comparing digests, adding up numbers,
// stopping the others
#pragma once

#include <string_view>

#include <attune/ranks.h>

#include "ir/node.h"
#include "runtime/ranks/ranks.h"

namespace attune::runtime::ranks {

/// Throws the Error `ranks-differ` on every rank unless all have the same digest. `what`: describes what they should
/// agree on.
void compare(const Transport& with, const ir::Digest& digest, std::string_view what, void* stream);

/// Adds up f32 or f64 over all ranks in their order, by the transport's own sum or by exchanges.
void sum(const Transport& with, const Tensor& values, void* stream);

/// A rank whose call fails stops the others, which would otherwise wait for it.
template <class Body>
void or_stop(const detail::Ranks& plan, const Body& body) {
  try {
    body();
  } catch (...) {
    if (plan.transport.stop) plan.transport.stop();
    throw;
  }
}

}  // namespace attune::runtime::ranks
