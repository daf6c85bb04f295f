// codegen/cuda/parts/softmax_sm90.cuh — which softmax Hopper's kernel computes
#pragma once

#include "codegen/cuda/parts/softmax.cuh"

namespace attune {

/// Powers are relative to the maximum of the first tiles; a tile of queries whose powers overflow is recomputed.
template <class Tile, class User>
constexpr bool recomputes = !fixed_maximum<Tile, User> && !Tile::max;

/// The largest power that softmax of a tile gives is two to this. Powers as operands of 8 bits have to use the range of
/// their type: e4m3 holds what is between 2^-9 and 448.
template <class Element>
constexpr float most_exponent = 0;
template <>
constexpr float most_exponent<e4m3> = 8;
/// A row's maximum is raised where a thread's powers of it sum up to this, or to more than their type holds.
template <class Element>
constexpr float too_large = 1024;
template <>
constexpr float too_large<e4m3> = 448;

}  // namespace attune
