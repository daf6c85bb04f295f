// codegen/cuda/forward_sm80/place.cuh — the tile and the shared memory of a block of forward_sm80.cuh
#pragma once

#include "codegen/cuda/forward_sm80/layout.cuh"
#include "codegen/cuda/parts/walk.cuh"

namespace attune {

// ---- shared memory -----------------------------------------------------------------------------------------------

/// Offsets into shared memory, from layout/.
template <class Tile>
struct Shared80 {
  static constexpr int size = ElementOf<typename Tile::Element>::bytes;
  static constexpr ForwardLayout80 at{.m = Tile::m,
                                      .n = Tile::n,
                                      .d = Tile::d,
                                      .dv = Tile::dv,
                                      .stages = Tile::stages,
                                      .element = size,
                                      .out_element = ElementOf<typename Tile::Out>::bytes};
  static constexpr int q = at.q, k = at.k, v = at.v, q_bytes = at.q_bytes, k_bytes = at.k_bytes, v_bytes = at.v_bytes,
                       bytes = at.bytes;
};

// ---- the tile of a block -----------------------------------------------------------------------------------------

/// Sections of heads whose keys stay in the cache together, last queries first: with a causal mask these take longest.
struct Place80 {
  int b, q_tiles, tile;
  Heads heads;

  template <class Tile>
  __device__ static Place80 of(const ForwardArgs& args) {
    const int of_batch = sets_of<Tile>(args), sets = args.batch * of_batch, section = max(args.section, 1),
              q_tiles = q_tiles_of<Tile>(args.q_len);
    const long long block = blockIdx.x, of_section = static_cast<long long>(q_tiles) * section;
    const int before = static_cast<int>(block / of_section) * section, here = min(section, sets - before);
    const int within = static_cast<int>(block % of_section), set = before + within % here;
    return {set / of_batch, q_tiles, q_tiles - 1 - within / here, heads_of<Tile>(args, set % of_batch)};
  }
};

}  // namespace attune
