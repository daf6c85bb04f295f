// runtime/ranks/transport/or_stop.h — a rank whose call fails tells the others, which would wait for it otherwise
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
