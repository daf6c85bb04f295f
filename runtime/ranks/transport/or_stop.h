// runtime/ranks/transport/or_stop.h — a rank whose call fails stops the others, which would otherwise wait for it
#pragma once

#include "runtime/ranks/ranks.h"

namespace attune::runtime::ranks {

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
