// runtime/engines/cpu/backward_walk.h — one task of the backward: its tiles of keys, and the queries that read them
#pragma once

#include "runtime/engines/cpu/backward_state.h"

namespace attune::runtime::cpu {

/// Adds to dq and to the captured gradients (by slot); stores dk and dv, or leaves them in its part's sums.
void run(const BackwardState& state, const BackwardTask& task, BackwardScratch& scratch, Pass pass,
         float* const* gradients);

}  // namespace attune::runtime::cpu
