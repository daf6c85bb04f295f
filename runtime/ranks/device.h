// runtime/ranks/device.h — a rank's part of a call on a device: launches of the usual kernels, with exchanges beside
// them
#pragma once

#include <functional>

#include "compiler/part.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

/// The Mod of a call as its parts take it.
using PartMods = std::function<const compiler::LoweredMod&(compiler::PartSink sink)>;

/// The problem of `call` is that of the whole call, its tensors are this rank's. A rank that throws tells the others.
void forward_on_device(const detail::Ranks& plan, const PartMods& parts, const Call& call, const Means& means);
void backward_on_device(const detail::Ranks& plan, const PartMods& parts, const Call& call, const Means& means);
inline void run_on_device(const detail::Ranks& plan, const PartMods& parts, const Call& call, const Means& means) {
  call.is_forward() ? forward_on_device(plan, parts, call, means) : backward_on_device(plan, parts, call, means);
}

}  // namespace attune::runtime::ranks
