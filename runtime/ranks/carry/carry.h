// runtime/ranks/carry/carry.h — a rank's part of a call: in the host's memory by the CPU engine, or on a device
#pragma once

#include <functional>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "runtime/engines/engine.h"
#include "runtime/ranks/ranks.h"

namespace attune::runtime::ranks {

/// The Mod of a call, lowered for parts of the call.
using PartMods = std::function<const compiler::LoweredMod&(compiler::PartSink sink)>;

/// The problem of `call` is the whole call's; its tensors are this rank's. A rank that throws stops the others.
void run_on_host(const detail::Ranks& ranks, const Call& call, const Means& means);
void run_on_device(const detail::Ranks& ranks, const PartMods& parts, const Call& call, const Means& means);

}  // namespace attune::runtime::ranks
