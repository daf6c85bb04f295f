// codegen/cuda/parts/key_source_sm90.cuh — where the keys and values of Hopper's forward come from: the producer warp
// fills stages by a key source, and the exact path reads rows of it
#pragma once

#include "codegen/cuda/parts/tile_scheduler_sm90.cuh"
#include "codegen/cuda/ptx/tma.cuh"

namespace attune {

/// A key source is made once, of the arguments and the address of shared memory. Rows count from an entry's first key.
/// Rows behind the last key become any keys, because the consumers mask them out, and values that are finite.
template <class Source>
concept KeySource = requires(Source source, typename Source::Places places, int b, int head, Entry entry, unsigned into,
                             unsigned full, int row) {
  /// Threads of the producer warp that load: 1 or all 32.
  requires Source::threads == 1 || Source::threads == 32;
  /// The next rows are those of a key head of a batch entry.
  source.enter(b, head, entry);
  /// What the loads of n keys from `row` on must know, looked up a tile ahead and not awaited.
  source.look_up(row);
  /// Fills a stage at `into` with these keys, in chunks of swizzled rows, and arrives once at `full`.
  source.load_keys(into, full, places);
  /// Does the same for values, in the order that the Tile's products read, or that its transposing warps read.
  source.load_values(into, full, places);
  /// A row's elements in memory, for all 32 lanes of a consumer warp.
  *source.key(row);
  *source.value(row);
};

/// TMA boxes: tensors with a batch entry each, or packed sequences.
template <class Tile>
struct TmaKeys {
  using Element = typename Tile::Element;
  using Shared = Shared90<Tile>;
  static constexpr int threads = 1;
  using Places = int;  ///< the first row

  const ForwardArgs& args;
  int b, head, batch;
  Range keys;

  __device__ TmaKeys(const ForwardArgs& args, unsigned) : args(args) {}
  __device__ void enter(int of_b, int of_head, const Entry& entry) {
    b = of_b;
    head = of_head;
    batch = args.kv_shared ? 0 : b;
    keys = entry.keys;
  }

  __device__ Places look_up(int row) const { return row; }

  /// Packed sequences follow one another along the positions of one batch entry.
  __device__ int box_batch() const { return is_packed<Tile> ? 0 : batch; }

  __device__ void load_keys(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::k_bytes);
    for (int c = 0; c < Shared::d_chunks; ++c)
      load_box(into + c * Tile::n * chunk_bytes, args.k_map, full, c * Shared::chunk, keys.start + row, head,
               box_batch());
  }
  __device__ void load_values(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::loaded_bytes);
    if constexpr (come_transposed<Tile>) {
      // A tile is one box. The tiles of a packed sequence begin at its place.
      const int place = is_packed<Tile> ? keys.start / Tile::n + b : 0;
      load_box(into, args.v_map, full, 0, (place + row / Tile::n) * Shared::transposed_rows, head, box_batch());
    } else {
      for (int c = 0; c < Shared::dv_chunks; ++c)
        load_box(into + c * Tile::n * chunk_bytes, args.v_map, full, c * Shared::chunk, keys.start + row, head,
                 box_batch());
    }
  }

  __device__ const Element* line(const Strided& t, int row) const {
    return static_cast<const Element*>(t.data) + batch * t.batch + head * t.head + (keys.start + row) * t.position;
  }
  __device__ const Element* key(int row) const { return line(args.k, row); }
  __device__ const Element* value(int row) const { return line(args.v, row); }
};

/// Keys, and values with keys along rows, that split_keys_sm90.cuh has split into `parts` numbers of TF32: a box for
/// each part of a tile. The tiles of a packed sequence begin at its place.
template <class Tile>
struct SplitKeys : TmaKeys<Tile> {
  using Base = TmaKeys<Tile>;
  using Base::args;
  using Base::Base;
  using typename Base::Shared;

  __device__ void load_keys(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::k_bytes);
    load<Shared::d_chunks * Tile::n>(into, args.k_map, full, row);
  }
  __device__ void load_values(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::loaded_bytes);
    load<Shared::transposed_rows>(into, args.v_map, full, row);
  }

 private:
  template <int rows>
  __device__ void load(unsigned into, const TensorMap& map, unsigned full, int row) const {
    const int tile = (is_packed<Tile> ? this->keys.start / Tile::n + this->b : 0) + row / Tile::n;
#pragma unroll
    for (int part = 0; part < parts_of<Tile>; ++part)
      load_box(into + part * rows * chunk_bytes, map, full, 0, (tile * parts_of<Tile> + part) * rows, this->head,
               this->box_batch());
  }
};

/// A Tile's key source: Tile::Keys if it names one.
template <class Tile>
struct KeySourceOf {
  using Type = TmaKeys<Tile>;
};
template <class Tile>
requires requires { typename Tile::Keys; }
struct KeySourceOf<Tile> {
  using Type = typename Tile::Keys;
};
template <class Tile>
requires(parts_of<Tile> > 0) struct KeySourceOf<Tile> {
  using Type = SplitKeys<Tile>;
};
}  // namespace attune
