// codegen/cuda/contract/further.cuh — what only some calls hand to a kernel; Tiles of others say nothing of it, and
// their kernels stay as they are
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/types.cuh"

namespace attune {

/// True if results of another call are merged in.
template <class Tile>
constexpr bool has_before = requires {
  requires Tile::before;
};
/// True if the call has a fixed split size.
template <class Tile>
constexpr bool has_fixed_split = requires {
  requires Tile::fixed_split;
};

/// True if several blocks share the keys of a tile of queries.
template <class Tile>
constexpr bool is_in_parts = requires {
  requires Tile::in_parts != 0;
};

/// True if entries have their own lengths and positions.
template <class Tile>
constexpr bool is_per_entry = requires {
  requires Tile::per_entry != 0;
};
/// True if the KV cache is paged.
template <class Tile>
constexpr bool is_paged = requires {
  requires Tile::paged != 0;
};

/// The argument struct of a kernel with such a Tile.
template <class Tile, class Args>
using ArgsOf =
    Either<is_in_parts<Tile>, InParts<Args>, Either<has_before<Tile> || has_fixed_split<Tile>, Further<Args>, Args>>;
/// The same struct, in a function that was given only Args.
template <class Args>
__device__ inline const Further<Args>& further(const Args& args) {
  return static_cast<const Further<Args>&>(args);
}
/// Of a call whose Tile is_in_parts.
template <class Args>
__device__ inline const KeyParts& key_parts(const Args& args) {
  return static_cast<const InParts<Args>&>(args).parts;
}

}  // namespace attune
