// runtime/ranks/host.h — a rank's part of a call on the host: by the CPU engine, with exchanges before and after
#pragma once

#include "runtime/engines/cpu/engine.h"
#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

/// The problem of `call` is that of the whole call, its tensors are this rank's. A rank that throws tells the others.
void forward_on_host(const detail::Ranks& plan, const Call& call, const Means& means);
void backward_on_host(const detail::Ranks& plan, const Call& call, const Means& means);
inline void run_on_host(const detail::Ranks& plan, const Call& call, const Means& means) {
  call.is_forward() ? forward_on_host(plan, call, means) : backward_on_host(plan, call, means);
}

}  // namespace attune::runtime::ranks
