// codegen/cuda/forward_sm90/powers.cuh — which softmax Hopper's kernel computes
#pragma once

#include "codegen/cuda/parts/softmax.cuh"

namespace attune {

/// True if powers are relative to the maximum of the first tiles; query tiles whose powers overflow are recomputed.
/// With two walks, a maximum hides behind the exponentials of the first, and powers need not be kept.
template <class Tile, class User>
constexpr bool recomputes = !fixed_maximum<Tile, User> && !Tile::max && !two_walks<User>;

/// True if the maxima are raised ahead of a tile by the difference that its term() makes at most.
template <class Tile, class User>
constexpr bool leads = recomputes<Tile, User>&& HasTerm<User>&& ElementOf<typename Tile::Element>::bytes >= 2;

/// The softmax of a tile gives powers up to 2 to this. FP8 operands have to use the range of their type: e4m3 has
/// numbers between 2^-9 and 448.
template <class Element>
constexpr float most_exponent = 0;
template <>
constexpr float most_exponent<e4m3> = 8;
/// The smallest sum of powers of a row that is large enough: powers relative to a maximum that is too high lose digits.
template <class Element>
constexpr float too_small = 0x1p-60f;
template <>
constexpr float too_small<f16> = 0x1p-6f;
/// A row's maximum is raised once a thread's powers sum up to this, or to more than their type holds.
template <class Element>
constexpr float too_large = 1024;
template <>
constexpr float too_large<e4m3> = 448;

}  // namespace attune
