// codegen/cuda/contract/section.cuh — the distance between items of one set in a backward's schedule; the host uses the
// same numbers, so only C++ is used here
#pragma once

#include "codegen/cuda/contract/equal_parts.cuh"

namespace attune {

/// The number of steps, or of items of one step, that start between two items of one set of heads. Blocks then take
/// these items some 2 us apart, the time in which a tile of `m` queries passes from one to the next. docs/kernels has
/// results with other numbers; bits depend on the number. `masked`: the host does not know how short items are under a
/// mask, so this is a lower bound, which the kernel raises after counting steps.
ATTUNE_HOST_DEVICE constexpr int items_apart(int m, bool masked) { return m < 128 ? 128 : masked ? 512 : 256; }

}  // namespace attune
