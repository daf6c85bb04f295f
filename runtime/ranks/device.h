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

/// `problem`: of the whole call. A rank that throws tells the others.
void forward_on_device(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const PartMods& parts,
                       const Forward& call, const compiler::Problem& problem, const cuda::Means& means);
void backward_on_device(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const PartMods& parts,
                        const Backward& call, const compiler::Problem& problem, const cuda::Means& means);

}  // namespace attune::runtime::ranks
