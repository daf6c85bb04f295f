// runtime/ranks/carry/host.h — a rank's part of a call in the host's memory, by the CPU engine
#pragma once

#include "runtime/engines/engine.h"
#include "runtime/ranks/ranks.h"

namespace attune::runtime::ranks {

/// The problem of `call` is the whole call's; its tensors are this rank's. A rank that throws stops the others.
void run_on_host(const detail::Ranks& ranks, const Call& call, const Means& means);

}  // namespace attune::runtime::ranks
