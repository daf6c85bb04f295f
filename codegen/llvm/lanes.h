// codegen/llvm/lanes.h — operations across lanes of several registers: transposes, and many lane sums at once
#pragma once

#include <array>
#include <vector>

#include "codegen/llvm/vec.h"

namespace attune::codegen {

/// Transposes 4, 8 or 16 vectors of 4 lanes: lane j of vector i becomes lane i of vector j.
std::array<Val, 4> transposed(const std::vector<Val>& rows);

/// Lane i is the sum of vector i's lanes. Takes as many f32 vectors as each has lanes.
Val sums_of_lanes(const std::vector<Val>& vectors);

}  // namespace attune::codegen
