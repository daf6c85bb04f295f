// codegen/llvm/lanes.h — registers across each other: transposes, and sums of many at once
#pragma once

#include <vector>

#include "codegen/llvm/vec.h"

namespace attune::codegen {

/// As many vectors as each has lanes (4, 8 or 16): lane j of vector i becomes lane i of vector j.
std::vector<Val> transposed(const std::vector<Val>& rows);

/// As many vectors of f32 as each has lanes: lane i is the sum of vector i's lanes.
Val sums_of_lanes(const std::vector<Val>& vectors);

}  // namespace attune::codegen
