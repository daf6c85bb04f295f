// codegen/cuda/forward_sm80/forward_sm80.cuh — the portable forward, for any GPU since sm_80: every width, stride and
// type
//
// A block computes a tile of queries of one head, 16 or 32 of them per warp. All warps copy tiles of keys and values
// into shared memory and share them. With one stage, values load while scores are computed, and keys load while values
// are used; with more stages, whole tiles load ahead. Probabilities stay in registers. A prob mod that is no multiple
// of a power of p needs two passes over the keys: one for the sums, one for the results.
//
// A masked-out pair has p = 0 and must add nothing, even if its value is infinite or NaN. Values are not checked.
// Instead, if a result is non-finite while its row's sum is finite, the block recomputes its tile on the exact path,
// which separates finite and non-finite values and takes some six times as long. Other blocks pay one comparison per
// result.
#pragma once

#include "codegen/cuda/forward_sm80/layout.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/exact_path.cuh"
#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/parts/softmax_sm80.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// What a Tile has. One block of Tile::warps x 32 threads, with Shared80<Tile>::at.bytes of shared memory, per tile of
/// queries, set of heads and batch entry; packed sequences all get the tiles of the longest.
template <class Tile>
concept ForwardTile80 = requires {
  // Element: of q, k and v; Out: of o. Each is bf16, f16 or float.
  requires ElementOf<typename Tile::Element>::bytes >= 2 && sizeof(typename Tile::Out) >= 2;
  // Queries, 16 or 32 a warp; keys.
  requires(Tile::m % (16 * Tile::warps) == 0 && Tile::m <= 32 * Tile::warps);
  requires(Tile::n % 16 == 0 && Tile::n <= 128);
  // Head widths, rounded up, and the number of real columns among them.
  requires Tile::d % 16 == 0 && Tile::dv % (8 * ElementOf<typename Tile::Element>::bytes) == 0;
  requires(Tile::width <= Tile::d && Tile::width_v <= Tile::dv);
  // Bytes per copy: 16, 8 or 4 if every row of q, k and v is aligned to that, 0 otherwise and for elements that are not
  // contiguous; and the same for o.
  requires Tile::vector == 0 || 16 % Tile::vector == 0;
  requires Tile::store == 0 || Tile::width_v * sizeof(typename Tile::Out) % Tile::store == 0;
  // 1: products of float keep 21 bits of each fraction instead of 10, for three times the work.
  requires Tile::exact == 0 || Tile::exact == 1;
  // Query heads that share a tile, so that both rows of a thread belong to one head.
  requires 8 % Tile::heads == 0;
  // Dense or packed; whether the call asks for the rows' maxima.
  Layout(Tile::layout);
  bool(Tile::max);
};

// ---- results go through shared memory to global memory ---------------------------------------------------------

/// Scales results and adds the results over other keys; lse becomes that of all keys. Everything is read before any
/// thread of the warp overwrites it.
template <class Tile, class Block>
__device__ inline void merge_before(Block& of) {
  static_assert(!Block::two_passes);
#pragma unroll
  for (int t = 0; t < Block::tall; ++t)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = of.row_at(t, r), query = of.query_of(row), position = of.entry.queries.start + query,
                h = of.softmax.at().h;
      Ended& at = of.ended[t][r];
      const Finished by = finish<Tile>(at, of.exists(row, query) ? lse_before(of.args, of.place.b, h, position)
                                                                 : -infinity);
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = of.o[t][i][2 * r + e];
          x = result<Tile>(of.args, by, x, of.place.b, h, position, 8 * i + 2 * (of.lane & 3) + e);
        }
      at.factor = 1;
      at.lse = by.lse;
    }
  __syncwarp();
}

/// Each warp writes its rows' results to lines of shared memory, and their lse to memory.
template <class Tile, class Block>
__device__ inline void put_in_lines(const Block& of) {
#pragma unroll
  for (int t = 0; t < Block::tall; ++t)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = of.row_at(t, r);
      const Ended& at = of.ended[t][r];
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i) {
        float x = of.o[t][i][2 * r], y = of.o[t][i][2 * r + 1];
        if constexpr (Block::two_passes) {
          if (of.is_empty(at)) x = y = 0;
          // Infinite or NaN scores, which prob() may hide: it need not depend on p.
          if (at.lse != at.lse && !of.is_empty(at)) x = y = at.lse;
        } else {
          x = at.factor == 0.0f ? 0.0f : x * at.factor;
          y = at.factor == 0.0f ? 0.0f : y * at.factor;
        }
        const unsigned into = of.shared + Block::OLine::at(row, (8 * i + 2 * (of.lane & 3)) * Block::out_size);
        if constexpr (Block::out_size == 2)
          shared_put(into, pack<typename Tile::Out>(x, y));
        else
          shared_put(into, __float_as_uint(x), __float_as_uint(y));
      }
      const int query = of.query_of(row);
      if (of.lane % 4 == 0 && of.exists(row, query)) {
        const int position = of.entry.queries.start + query;
        put_of_row(of.args.lse, of.place.b, of.softmax.at().h, position, at.lse);
        if constexpr (Tile::max) put_of_row(of.args.max, of.place.b, of.softmax.at().h, position, at.max);
      }
    }
}

/// ld.shared, st.global
template <int Bytes, class Out>
__device__ inline void move(Out* to, unsigned from) {
  if constexpr (Bytes == 2) {
    reinterpret_cast<unsigned short*>(to)[0] = shared_get_half(from);
  } else {
    struct alignas(Bytes) Words {
      unsigned word[Bytes / 4];
    } words;
#pragma unroll
    for (int i = 0; i < Bytes / 4; ++i)
      words.word[i] = static_cast<unsigned>(shared_get(from + static_cast<unsigned>(4 * i)));
    *reinterpret_cast<Words*>(to) = words;
  }
}

/// Each warp copies its lines to memory.
template <class Tile, class Block>
__device__ inline void put_lines(const Block& of) {
  const int row0 = of.warp * 16 * Block::tall;
  using Out = typename Tile::Out;
  Out* const into = static_cast<Out*>(of.args.o.data) + of.place.b * of.args.o.batch +
                    of.place.heads.first * of.args.o.head + of.entry.queries.start * of.args.o.position;
  constexpr int step = Tile::store ? Tile::store : Block::out_size, pieces = Tile::width_v * Block::out_size / step;
  const int count = min(16 * Block::tall, (of.entry.queries.length - of.first) * Block::heads - row0);
  for (int i = of.lane; i < count * pieces; i += 32) {
    const int row = row0 + i / pieces, byte = i % pieces * step;
    const unsigned from = of.shared + Block::OLine::at(row, byte);
    if (Block::heads > 1 && row % Block::heads >= of.place.heads.count) continue;
    move<step>(into + row % Block::heads * of.args.o.head + (of.first + row / Block::heads) * of.args.o.position +
                   byte / Block::out_size * of.args.o.element,
               from);
  }
}

/// Stores the results, lse and maximum of a Block80's rows.
template <class Tile, class Block>
__device__ inline void store_rows(Block& of) {
  if constexpr (has_before<Tile>) merge_before<Tile>(of);
  put_in_lines<Tile>(of);
  __syncwarp();
  put_lines<Tile>(of);
}

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

// ---- computing ---------------------------------------------------------------------------------------------------

enum class Pass { Online, Sums, Known };

/// ExactPath: separates finite and non-finite values; a warp then computes 16 queries at a time.
template <class Tile, class User, bool ExactPath>
struct Block80 {
  using Element = typename Tile::Element;
  using Out = typename Tile::Out;
  using Shared = Shared80<Tile>;
  static constexpr int size = Shared::size, per_step = 32 / size;  ///< per_step: elements of a product's sum
  static constexpr int tall = ExactPath ? 1 : Tile::m / (16 * Tile::warps), m = 16 * tall * Tile::warps, n = Tile::n,
                       heads = Tile::heads, queries_here = m / heads, out_size = static_cast<int>(sizeof(Out));
  static constexpr bool exact = Tile::exact && size == 4, is_float = size == 4;
  static constexpr bool two_passes = two_walks<User>;
  static constexpr bool running = !fixed_maximum<Tile, User>;
  static constexpr int slack = true_maximum<Tile, User> ? 0 : 8;  ///< by which the running maximum may lag
  /// Queries stay in registers if they fit.
  static constexpr int q_steps = Tile::d / per_step;
  static constexpr bool held = !ExactPath && tall * (q_steps * 4 + Tile::dv / 2 + n / 2 * (exact ? 2 : 1)) <= 176;
  using QLine = Lines<Tile::d * size>;
  using KLine = Lines<Tile::d * size>;
  using VLine = Lines<Tile::dv * size, is_float>;
  using OLine = Lines<Tile::dv * out_size>;

  using Keys = Either<is_paged<Tile>, PagedRows80, Rows80>;

  const ForwardArgs& args;
  const Place80 place;
  const Entry entry;
  const unsigned shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first;  ///< the tile's first query
  const Keys k, v;
  Softmax80<User, running, tall, slack, heads> softmax;
  Fragment<tall, n> s;
  float o[tall][Tile::dv / 8][4];
  unsigned q[held ? tall : 1][held ? q_steps : 1][4];
  Ended ended[tall][2];

  __device__ Block80(const ForwardArgs& args, const User& user, Place80 place, const Entry& entry, int first,
                     unsigned shared)
      : args(args), place(place), entry(entry), shared(shared), first(first), k(keys_of(args.k)), v(keys_of(args.v)),
        // Rows of missing heads repeat the last head.
        softmax(user, entry.at(place.b, place.heads.first + min(lane / 4 % heads, place.heads.count - 1)),
                first + (warp * 16 * tall + lane / 4) / heads, entry.q_offset, entry.query(first)) {}

  __device__ Keys keys_of(const Strided& t) const {
    if constexpr (is_paged<Tile>)
      return paged_rows_of<Element>(t, args.page_table, place.b, place.heads.first / args.group);
    else
      return rows_of<Element>(t, args.kv_shared ? 0 : place.b, place.heads.first / args.group, entry.keys.start);
  }

  // ---- tiles of keys ---------------------------------------------------------------------------------------------

  __device__ Walk walk() const {
    return walk_of<Tile>(args, softmax.user, entry, softmax.at(), softmax.head(),
                         {first, min(first + queries_here, entry.queries.length), place.tile, place.q_tiles});
  }

  __device__ void load_q() {
#pragma unroll
    for (int i = 0; i < heads; ++i) {
      const bool there = i < place.heads.count;
      const Rows80 rows = rows_of<Element>(args.q, place.b, place.heads.first + (there ? i : 0), entry.queries.start);
      load_rows<Tile, queries_here, Tile::d * size, Tile::width * size, false, heads>(
          shared + Shared::at.q, rows, first, there ? entry.queries.length : 0, i);
    }
  }
  __device__ void load_k(int tile, int stage) {
    load_rows<Tile, n, Tile::d * size, Tile::width * size, false>(
        shared + Shared::at.k + static_cast<unsigned>(stage * Shared::at.k_bytes), k, tile * n, entry.keys.length);
  }
  __device__ void load_v(int tile, int stage) {
    load_rows<Tile, n, Tile::dv * size, Tile::width_v * size, is_float>(
        shared + Shared::at.v + static_cast<unsigned>(stage * Shared::at.v_bytes), v, tile * n, entry.keys.length);
  }

  __device__ Spot<QLine> queries_at() const {
    return by_rows<QLine>(shared + Shared::at.q + static_cast<unsigned>(warp * tall * 16 * QLine::pitch), lane);
  }
  __device__ void hold_q() {
    if constexpr (held) {
      const auto at = queries_at();
#pragma unroll
      for (int t = 0; t < tall; ++t)
#pragma unroll
        for (int step = 0; step < q_steps; ++step) load_blocks(q[t][step], at.at(16 * t, step));
    }
  }

  // S = Q K^T
  __device__ void scores(int stage) {
    const auto keys = by_bytes<KLine>(shared + Shared::at.k + static_cast<unsigned>(stage * Shared::at.k_bytes), lane);
    const auto queries = queries_at();
    const auto load_q = [&](unsigned(&a)[4], int t, int step) {
      if constexpr (held)
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j] = q[t][step][j];
      else
        load_blocks(a, queries.at(16 * t, step));
    };
    dots<Element, exact, q_steps, tall, n>(s, load_q, keys);
  }

  __device__ Columns<Element, VLine> values_at(int stage) const {
    return {shared + Shared::at.v + static_cast<unsigned>(stage * Shared::at.v_bytes), lane};
  }
  // O += P V
  __device__ void results(int stage) { add_product<Element, exact, tall, n, Tile::dv>(o, s, values_at(stage)); }

  // O += P V, where p = 0 adds nothing even if v is infinite or NaN.
  __device__ void results_exact_path(int stage) {
    add_product_apart<Element, exact, tall, n, Tile::dv>(o, s, values_at(stage));
  }

  /// Rescales earlier sums to a new maximum.
  __device__ void rescale(const float (&lift)[tall][2]) {
#pragma unroll
    for (int t = 0; t < tall; ++t)
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = o[t][i][j];
          const float by = to_degree<User>(lift[t][j / 2]);
          x = ExactPath && by == 0.0f ? 0.0f : x * by;
        }
  }

  // P = exp2(S - max), then prob()
  template <Pass P>
  __device__ void weigh(int tile, bool partial) {
    const int kv = entry.key(tile * n) + 2 * (lane & 3);
    if (partial)
      softmax.template exponents<true, n>(s, kv);
    else
      softmax.template exponents<false, n>(s, kv);
    if constexpr (P == Pass::Known) {
      softmax.template probabilities<n>(s, kv, ended);
    } else {
      float lift[tall][2];
      const bool moved = softmax.template powers<n>(s, lift);
      if constexpr (P == Pass::Online) {
        if (moved) rescale(lift);
        if constexpr (User::traits.has_prob) softmax.template prob<n>(s, kv);
      }
    }
  }
  template <Pass P>
  __device__ void add(int stage) {
    if constexpr (P != Pass::Sums) {
      if constexpr (ExactPath)
        results_exact_path(stage);
      else
        results(stage);
    }
  }

  __device__ bool is_partial(const Walk& walk, int i, int tile) const {
    return !walk.is_full(i) || (tile + 1) * n > entry.keys.length;
  }
  /// With one stage, values arrive while scores are computed, and keys while values are used. There is a barrier before
  /// each load, once all warps have used the stage, and a barrier after it, before any warp reads the stage.
  template <Pass P>
  __device__ void visit_in_turn(const Walk& walk) {
    int tile = walk.tile(0);
    load_k(tile, 0);
    copy_commit();
    for (int i = 0; i < walk.count; ++i) {
      copy_wait<0>();
      __syncthreads();
      if (i == 0) hold_q();
      if constexpr (P != Pass::Sums) load_v(tile, 0);
      copy_commit();
      scores(0);
      __syncthreads();
      const int here = tile;
      if (i + 1 < walk.count) {
        tile = walk.tile(i + 1);
        load_k(tile, 0);
      }
      copy_commit();
      weigh<P>(here, is_partial(walk, i, here));
      copy_wait<1>();
      __syncthreads();
      add<P>(0);
    }
  }
  /// With more stages, whole tiles of keys and values load ahead.
  template <Pass P>
  __device__ void visit_ahead(const Walk& walk) {
    const auto load = [&](int i) {
      if (i < walk.count) {
        const int tile = walk.tile(i);
        load_k(tile, i % Tile::stages);
        if constexpr (P != Pass::Sums) load_v(tile, i % Tile::stages);
      }
      copy_commit();
    };
#pragma unroll
    for (int i = 0; i < Tile::stages - 1; ++i) load(i);
    for (int i = 0; i < walk.count; ++i) {
      copy_wait<Tile::stages - 2>();
      __syncthreads();
      if (i == 0) hold_q();
      load(i + Tile::stages - 1);
      const int tile = walk.tile(i), stage = i % Tile::stages;
      scores(stage);
      weigh<P>(tile, is_partial(walk, i, tile));
      add<P>(stage);
    }
  }
  template <Pass P>
  __device__ void visit(const Walk& walk) {
    if constexpr (Tile::stages == 1)
      visit_in_turn<P>(walk);
    else
      visit_ahead<P>(walk);
    copy_wait<0>();
    __syncthreads();
  }

  __device__ void end() {
#pragma unroll
    for (int t = 0; t < tall; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Ended& row = ended[t][r];
        row = softmax.end(t, r);
        if constexpr (two_passes && User::traits.has_sink)
          if (row.max == -infinity) row.factor = -0.0f;
      }
  }
  /// For two passes: true if the row has no pairs, so that its results are 0. Where rest() is -inf, scores are finite
  /// nevertheless, and prob(0) may be above 0. Only registers that the second pass keeps anyway say so: a row without
  /// pairs has an lse of -inf, or with a sink, whose lse it has, a factor of -0.
  __device__ static bool is_empty(const Ended& row) {
    if constexpr (User::traits.has_sink)
      return __float_as_uint(row.factor) == 0x80000000u;
    else
      return row.lse == -infinity;
  }

  /// True if a result is non-finite although its row's sum is finite.
  __device__ bool suspicious() const {
    bool non_finite = false;
#pragma unroll
    for (int t = 0; t < tall; ++t) non_finite |= has_non_finite(o[t], ended[t][0].plain, ended[t][1].plain);
    return non_finite;
  }

  /// Stores the results and returns true, or returns false if the tile needs the exact path.
  __device__ bool run() {
    const Walk walk = this->walk();
    if (walk.count > 0) load_q();
#pragma unroll
    for (int t = 0; t < tall; ++t)
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) o[t][i][j] = 0;
    if constexpr (two_passes) {
      if (walk.count > 0) visit<Pass::Sums>(walk);
      end();
      if (walk.count > 0) visit<Pass::Known>(walk);
    } else {
      if (walk.count > 0) visit<Pass::Online>(walk);
      end();
    }
    if constexpr (!ExactPath)
      if (__syncthreads_or(suspicious())) return false;
    store_rows<Tile>(*this);
    return true;
  }

  __device__ int row_at(int t, int r) const { return warp * 16 * tall + 16 * t + 8 * r + lane / 4; }
  __device__ int query_of(int row) const { return first + row / heads; }
  __device__ bool exists(int row, int query) const {
    return query < entry.queries.length && row % heads < place.heads.count;
  }
};

/// Not inlined, so it does not raise the caller's register count; as it never returns, the caller saves no registers.
template <class Tile, class User>
[[noreturn]] __device__ __noinline__ void exact_path(const ForwardArgs& args, const User& user, unsigned shared) {
  const auto place = Place80::of<Tile>(args);
  const Entry entry = entry_of<Tile>(args, place.b);
  using Block = Block80<Tile, User, true>;
  const int end = min((place.tile + 1) * queries_of<Tile>, entry.queries.length);
  for (int first = place.tile * queries_of<Tile>; first < end; first += Block::queries_here) {
    Block(args, user, place, entry, first, shared).run();
    __syncthreads();
  }
  leave();
}

template <ForwardTile80 Tile, class User>
__global__ void __launch_bounds__(Tile::warps * 32)
    forward_sm80(const __grid_constant__ ArgsOf<Tile, ForwardArgs> args, const __grid_constant__ User user) {
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const auto place = Place80::of<Tile>(args);
  const Entry entry = entry_of<Tile>(args, place.b);
  const int first = place.tile * queries_of<Tile>;
  if (first >= entry.queries.length) return;
  if (!Block80<Tile, User, false>(args, user, place, entry, first, shared).run()) exact_path<Tile>(args, user, shared);
}

}  // namespace attune
