// codegen/cuda/backward_wide_sm90/keys_producer.cuh — which keys a block of keys_sm90.cuh has, and its two producer
// warps, which load keys, queries and grad_o
#pragma once

#include "codegen/cuda/backward_wide_sm90/layout.cuh"
#include "codegen/cuda/backward_wide_sm90/split.cuh"
#include "codegen/cuda/parts/walk.cuh"
#include "codegen/cuda/parts/warpgroup_sm90.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// Offsets into shared memory, from layout/.
template <class Tile>
struct SharedKeys90 {
  static constexpr int m = Tile::m, n = Tile::n, stages = Tile::stages;
  static constexpr KeysLayout90 at = is_split<Tile> ? keys_layout_f32(Tile::m, Tile::n, Tile::d, Tile::dv, Tile::stages)
                                                    : KeysLayout90{.m = Tile::m,
                                                                   .n = Tile::n,
                                                                   .d = Tile::d,
                                                                   .dv = Tile::dv,
                                                                   .stages = Tile::stages,
                                                                   .element = ElementOf<typename Tile::Element>::bytes};
  static constexpr int chunk = at.chunk, grad_o_stages = at.grad_o_stages, d_chunks = at.d_chunks,
                       dv_chunks = at.dv_chunks, held_chunks = at.held_chunks, q_factors = at.q_factors,
                       grad_o_factors = at.grad_o_factors, v = at.v, k = at.k, q = at.q, held = at.held,
                       grad_o = at.grad_o, weights = at.weights, under = at.under, delta = at.delta, words = at.words,
                       step_words = at.step_words, steps = at.steps, k_bytes = at.k_bytes, v_bytes = at.v_bytes,
                       q_bytes = at.q_bytes, grad_o_bytes = at.grad_o_bytes, q_full = at.q_full,
                       grad_o_full = at.grad_o_full, weights_full = at.weights_full, k_full = at.k_full,
                       v_full = at.v_full, k_held = at.k_held, bytes = at.bytes;
};

// ---- which keys --------------------------------------------------------------------------------------------------

/// The keys of a block. Sets (a key head each) come in sections that fit into the cache; within a section the first
/// keys come first, because a causal mask gives them the longest walks.
template <class Tile>
struct Keys90 {
  int b, kv_head, first;

  __device__ explicit Keys90(const BackwardArgs& args) {
    const Sections<long long> sections{args.kv_heads * (args.kv_shared ? 1 : args.batch), max(args.section, 1),
                                       (args.kv_len + Tile::n - 1) / Tile::n};
    const auto at = sections.at(blockIdx.x);
    b = at.set / args.kv_heads;
    kv_head = at.set % args.kv_heads;
    first = at.nth * Tile::n;
  }
};

// ---- loading -----------------------------------------------------------------------------------------------------

/// A producer warp. One warp loads keys and queries, the other loads values and grad_o.
template <class Tile, class User>
struct LoaderKeys90 {
  using Shared = SharedKeys90<Tile>;
  static constexpr int m = Tile::m, n = Tile::n, rows = m / 32;

  const BackwardArgs& args;
  const User& user;
  unsigned shared;
  int lane;
  Keys90<Tile> keys;

  struct Reader {
    Where at;
    typename User::Head head;
    Walk walk;
  };
  __device__ int readers() const { return args.kv_shared ? args.group * args.batch : args.group; }
  __device__ Reader reader(int nth) const {
    Reader out;
    const int b = args.kv_shared ? nth / args.group : keys.b;
    const Entry entry = entry_of<Tile>(args, b);
    out.at = entry.at(b, keys.kv_head * args.group + nth % args.group);
    out.head = user.head(out.at);
    out.walk = walk_of_keys<m>(user, entry, out.at, out.head, keys.first, min(keys.first + n, entry.keys.length));
    return out;
  }

  __device__ RowEnd end(const Reader& of, int tile, int nth) const {
    const int q = tile * m + nth;
    if (q >= args.q_len) return no_row();
    const auto of_row = [&](const Rows& all) {
      return __ldg(all.data + of.at.b * all.batch + of.at.h * all.head + q * all.position);
    };
    const Int origin = args.q_offset + tile * m, at = args.q_offset + q;
    return row_end(user, of_row(args.lse), user.rest(of.head, user.row(of.head, of.at, at), of.at, origin, at),
                   of_row(args.delta));
  }

  /// The factors of a row of queries and of grad_o.
  __device__ float2 factors_of(const Reader& of, int line) const {
    const auto factor = [&](const Strided& all) { return factor_of_row(all, of.at.b, of.at.h, line); };
    return {factor(args.q), factor(args.grad_o)};
  }

  /// Loads a TMA box of this block's keys or values.
  __device__ void load_own(int into, const TensorMap& map, unsigned full, int chunk) const {
    load_box(shared + into, map, full, chunk * Shared::chunk, keys.first, keys.kv_head, args.kv_shared ? 0 : keys.b);
  }
  /// Loads a tile of queries or of grad_o.
  __device__ void load(int into, const TensorMap& map, unsigned full, int chunks, const Where& at, int tile) const {
    barrier_expect(full, chunks * m * chunk_bytes);
    for (int c = 0; c < chunks; ++c)
      load_box(shared + into + c * m * chunk_bytes, map, full, c * Shared::chunk, tile * m, at.h, at.b);
  }

  template <bool OfQueries>
  __device__ void load_keys(int steps) const {
    const unsigned full = shared + (OfQueries ? Shared::k_full : Shared::v_full);
    shared_put(shared + Shared::steps + (OfQueries ? 0 : 4), steps);
    if (steps == 0) return barrier_arrive(full);
    barrier_expect(full, OfQueries ? Shared::k_bytes : Shared::v_bytes);
    if constexpr (OfQueries) {
      constexpr int held = Shared::held_chunks;
      if constexpr (held > 0) load_own(Shared::held, args.k_map, full, 0);
      for (int c = held; c < Shared::d_chunks; ++c)
        load_own(Shared::k + (c - held) * n * chunk_bytes, args.k_map, full, c);
    } else {
      for (int c = 0; c < Shared::dv_chunks; ++c) load_own(Shared::v + c * n * chunk_bytes, args.v_map, full, c);
    }
  }

  template <bool OfQueries>
  __device__ void run() {
    constexpr int stages = OfQueries ? Shared::stages : Shared::grad_o_stages;
    int steps = 0;
    for (int g = 0; g < readers(); ++g) steps += reader(g).walk.count;
    if (elected()) load_keys<OfQueries>(steps);
    __syncwarp();
    int nth = 0;
    Ring<stages> ring(shared + (OfQueries ? Shared::q_full : Shared::grad_o_full));
#pragma unroll 1
    for (int g = 0; g < readers(); ++g) {
      const Reader of = reader(g);
#pragma unroll 1
      for (int i = 0; i < of.walk.count; ++i, ++nth) {
        const int tile = of.walk.tile(i);
        // lse and delta of this lane's rows are read before the stage is free.
        RowEnd ends[rows];
        float2 factors[rows];
#pragma unroll
        for (int j = 0; j < rows; ++j) ends[j] = end(of, tile, 32 * j + lane);
        if constexpr (is_split<Tile>)
#pragma unroll
          for (int j = 0; j < rows; ++j) factors[j] = factors_of(of, tile * m + 32 * j + lane);
        ring.acquire();
        // The first chunk of the keys lies in the last stage and has to leave it first.
        if (OfQueries && Shared::held_chunks > 0 && nth == stages - 1) barrier_wait(shared + Shared::k_held, 0);
#pragma unroll
        for (int j = 0; j < rows; ++j)
          shared_put(shared + (OfQueries ? Shared::under : Shared::delta) + 4 * (ring.stage * m + 32 * j + lane),
                     __float_as_int(OfQueries ? ends[j].under : ends[j].delta));
        if constexpr (is_split<Tile>)
#pragma unroll
          for (int j = 0; j < rows; ++j)
            shared_put(shared + (OfQueries ? Shared::q_factors : Shared::grad_o_factors) +
                           8 * (ring.stage * m + 32 * j + lane),
                       factors[j].x, factors[j].y);
        if constexpr (OfQueries) {
          const bool whole = of.walk.is_full(i) && keys.first + n <= args.kv_len;
          const int word = lane == 0 ? tile : lane == 1 ? of.at.b : lane == 2 ? of.at.h : whole;
          if (lane < Shared::step_words)
            shared_put(shared + Shared::words + 4 * (ring.stage * Shared::step_words + lane), word);
        }
        __syncwarp();
        if (elected()) {
          if constexpr (OfQueries)
            load(Shared::q + ring.stage * Shared::q_bytes, args.q_map, ring.full(), Shared::d_chunks, of.at, tile);
          else
            load(Shared::grad_o + ring.stage * Shared::grad_o_bytes, args.grad_o_map, ring.full(), Shared::dv_chunks,
                 of.at, tile);
        }
        ring.next();
      }
    }
  }
};

}  // namespace attune
