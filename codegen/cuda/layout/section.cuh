// codegen/cuda/layout/section.cuh — how far apart blocks of a backward take items of one set; the host schedules by the
// same numbers, so only C++ is used here
#pragma once

#include "codegen/cuda/layout/equal_parts.cuh"

namespace attune {

/// Steps, or items of one step, that start between two items of one set of heads: blocks take these some 2 us apart,
/// which is what a tile of `m` queries needs to pass from one to the next. The kernel's page in docs/kernels has what
/// other numbers gave; bits depend on them. `masked`: the host, which does not know how short items are under a mask,
/// says at least so many; the kernel counts their steps, and raises what it was told.
ATTUNE_HOST_DEVICE constexpr int items_apart(int m, bool masked) { return m == 64 ? 128 : masked ? 512 : 256; }

}  // namespace attune
