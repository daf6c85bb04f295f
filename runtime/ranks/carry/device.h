// runtime/ranks/carry/device.h — a rank's part of a call on a device: launches of the usual kernels, with exchanges
// beside them
#pragma once

#include <functional>

#include "compiler/lower.h"
#include "compiler/slice.h"
#include "runtime/engines/engine.h"
#include "runtime/ranks/ranks.h"

namespace attune::runtime::ranks {

/// The Mod of a call as its parts take it.
using PartMods = std::function<const compiler::LoweredMod&(compiler::PartSink sink)>;

/// The problem of `call` is that of the whole call, its tensors are this rank's. A rank that throws tells the others.
void run_on_device(const detail::Ranks& ranks, const PartMods& parts, const Call& call, const Means& means);

}  // namespace attune::runtime::ranks
