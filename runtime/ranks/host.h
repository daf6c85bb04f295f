// runtime/ranks/host.h — a rank's part of a call on the host: by the CPU engine, with exchanges before and after
#pragma once

#include "runtime/engines/cpu/engine.h"
#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

/// `problem`: of the whole call. A rank that throws tells the others.
void forward_on_host(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const Forward& call,
                     const compiler::Problem& problem, const cpu::Means& means);
void backward_on_host(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const Backward& call,
                      const compiler::Problem& problem, const cpu::Means& means);

}  // namespace attune::runtime::ranks
