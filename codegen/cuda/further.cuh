// codegen/cuda/further.cuh — what only some calls hand to a kernel; Tiles of others say nothing of it, and their
// kernels stay as they are
#pragma once

#include "args.cuh"

namespace attune {

/// Are results of another call merged in?
template <class Tile>
constexpr bool has_before = requires {
  requires Tile::before;
};
/// Are keys summed in pieces?
template <class Tile>
constexpr bool in_pieces = requires {
  requires Tile::pieces;
};

template <class Args, bool Has>
struct ArgsIf {
  using Type = Args;
};
template <class Args>
struct ArgsIf<Args, true> {
  using Type = Further<Args>;
};
/// What a kernel of such a Tile gets.
template <class Tile, class Args>
using ArgsOf = typename ArgsIf<Args, has_before<Tile> || in_pieces<Tile>>::Type;
/// The same where a function was handed no more than Args.
template <class Args>
__device__ inline const Further<Args>& further(const Args& args) {
  return static_cast<const Further<Args>&>(args);
}

}  // namespace attune
