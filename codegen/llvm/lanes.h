// codegen/llvm/lanes.h — registers across each other: transposes, and sums of many at once
#pragma once

#include <array>
#include <vector>

#include "codegen/llvm/vec.h"

namespace attune::codegen {

/// Vectors of 4 lanes, 4, 8 or 16 of them: lane j of vector i becomes lane i of vector j.
std::array<Val, 4> transposed(const std::vector<Val>& rows);

/// As many vectors of f32 as each has lanes: lane i is the sum of vector i's lanes.
Val sums_of_lanes(const std::vector<Val>& vectors);

}  // namespace attune::codegen
