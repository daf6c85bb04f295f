// codegen/cuda/softmax_sm90.cuh — which softmax Hopper's kernel computes
#pragma once

#include "softmax.cuh"

namespace attune {

/// Powers are taken below the maximum of the first tiles, and a tile of queries whose powers overflow is done again.
template <class Tile, class User>
constexpr bool does_again = !fixed_maximum<Tile, User> && !Tile::max;

}  // namespace attune
