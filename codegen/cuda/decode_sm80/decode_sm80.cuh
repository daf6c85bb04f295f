// codegen/cuda/decode_sm80/decode_sm80.cuh — split-KV decode, for any GPU since sm_80
//
// A tile of queries has at most 16 rows: a few queries of the heads that share keys. Its warps divide the keys, not the
// rows: each warp has its own ring of slots, which it fills with keys and values alternately, and its own maxima, sums
// and results. Warps combine only at the end of a tile. Blocks are persistent and take equal shares of all keys
// (split_kv_sm80.cuh). The next tile's keys load while this tile's results are stored.
//
// Masked-out values never reach a result. Rows past the last key are zeros in shared memory, whatever memory holds.
// Where a result is non-finite although its row's sum is finite, the block recomputes that tile on the exact path of
// forward_sm80.cuh, and computes all later tiles there; with a fixed split size, only that split.
//
// With a fixed split size, blocks take whole splits of a tile's keys. Each split has its own maximum, sums and results;
// the last block to arrive combines them. Each row's result then depends only on its own keys.
#pragma once

#include "codegen/cuda/decode_sm80/epilogue.cuh"
#include "codegen/cuda/decode_sm80/ring.cuh"
#include "codegen/cuda/decode_sm80/widened.cuh"
#include "codegen/cuda/parts/exact_path.cuh"
#include "codegen/cuda/parts/softmax_sm80.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// What a Tile has; what is not here is as in forward_sm80.cuh. Tile::warps x 32 threads, with
/// SharedDecode<Tile>::at.bytes of shared memory. Rows of q, k and v start at multiples of 16 bytes.
template <class Tile>
concept TileOfDecode = requires {
  // Element: of q, k and v, bf16 or f16; Out: of o, also float.
  requires ElementOf<typename Tile::Element>::bytes == 2 && sizeof(typename Tile::Out) >= 2;
  // Rows; keys per iteration of a warp; slots of a ring, each n rows of keys or of values.
  requires Tile::m == 16 && (Tile::n == 16 || Tile::n == 32) && Tile::stages >= 2;
  requires(16 % Tile::heads == 0 && Tile::width <= Tile::d && Tile::width_v <= Tile::dv);
  // 1 if the KV cache is paged; 1 if k and v are FP8 (E4M3).
  requires Tile::paged == 0 || Tile::paged == 1;
  requires Tile::fp8_kv == 0 || (Tile::d % 32 == 0 && Tile::dv % 32 == 0);
};

/// True if the kernel reads nothing before queries and keys. Expressions that read captured tensors hold addresses.
template <class Tile, class User>
__device__ inline bool reads_queries_first(const DecodeArgs& args) {
  return alignof(User) < alignof(void*) && !User::traits.listed && !is_packed<Tile> && !Tile::paged &&
         !args.kv_lens.at && !args.q_offsets.at;
}

// ---- computing ---------------------------------------------------------------------------------------------------

/// A tile of queries, or one split of its keys. ExactPath: separates finite and non-finite values.
template <class Tile, class User, bool ExactPath>
struct DecodeBlock : DecodeEpilogue<Tile, User> {
  using Epilogue = DecodeEpilogue<Tile, User>;
  using Epilogue::args, Epilogue::shared, Epilogue::of, Epilogue::lane, Epilogue::warp;
  using Element = typename Tile::Element;
  using Shared = SharedDecode<Tile>;
  using Stream = Ahead<Tile, User>;
  using QLine = Lines<Tile::d * Shared::size>;
  static constexpr int size = Shared::size, per_step = 32 / size, n = Tile::n, heads = Tile::heads,
                       threads = 32 * Tile::warps;
  static constexpr bool running = !fixed_maximum<Tile, User>;
  static constexpr int slack = true_maximum<Tile, User> ? 0 : 8;
  static constexpr int q_steps = Tile::d / per_step;
  static constexpr bool held = !ExactPath && q_steps * 4 + Tile::dv / 2 <= 112;
  static_assert(!two_walks<User>);

  Stream& ahead;
  Softmax80<User, running, 1, slack, heads> softmax;
  Fragment<1, n> s;
  float o[1][Tile::dv / 8][4];
  unsigned q[held ? q_steps : 1][4];

  __device__ DecodeBlock(const DecodeArgs& args, const User& user, unsigned shared, Stream& ahead, const DecodeTile& of)
      : Epilogue(args, user, shared, of), ahead(ahead),
        softmax(user, of.at(head_of(lane / 4)), lane / 4 / heads, of.q_offset, of.q_offset, head_of(lane / 4 + 8)) {}

  /// Rows of missing heads repeat the last head.
  __device__ int head_of(int row) const { return of.heads.first + min(row % heads, of.heads.count - 1); }

  /// All threads read the rows' queries in pieces of 16 bytes; missing rows and columns are 0.
  static constexpr int pieces = Tile::d * size / 16, q_each = (Tile::m * pieces + threads - 1) / threads;
  struct Queries {
    uint4 piece[q_each];
  };
  __device__ Queries read_q() const {
    Queries out{};
#pragma unroll
    for (int n = 0; n < q_each; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * threads, row = i / pieces, byte = i % pieces * 16,
                head = row % heads, query = row / heads;
      if (row >= Tile::m || head >= of.heads.count || query >= of.queries.length || byte >= Tile::width * size)
        continue;
      const Rows80 from = rows_of<Element>(args.q, of.b, of.heads.first + head, of.queries.start + query);
      const int there = Tile::width - byte / size;
      if (Tile::width % 8 == 0 || there >= 8) {
        out.piece[n] = *reinterpret_cast<const uint4*>(from.data + byte);
      } else {
        const auto* const x = reinterpret_cast<const unsigned short*>(from.data + byte);
        const auto pair = [&](int nth) {
          return (2 * nth < there ? x[2 * nth] : 0u) | (2 * nth + 1 < there ? x[2 * nth + 1] : 0u) << 16;
        };
        out.piece[n] = {pair(0), pair(1), pair(2), pair(3)};
      }
    }
    return out;
  }
  __device__ void put_q(const Queries& read) {
#pragma unroll
    for (int n = 0; n < q_each; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * threads, row = i / pieces, byte = i % pieces * 16;
      if (row >= Tile::m) continue;
      const uint4& x = read.piece[n];
      const unsigned into = shared + Shared::at.q + QLine::at(row, byte);
      shared_put(into, x.x, x.y);
      shared_put(into + 8, x.z, x.w);
    }
    __syncthreads();
    if constexpr (held)
#pragma unroll
      for (int step = 0; step < q_steps; ++step) Queried(shared + Shared::at.q, lane).load(q[step], step);
  }
  /// How operands q and v are read, in the order in which keys and values of this type lie.
  using Queried = Either<Tile::fp8_kv != 0, WidenedRows<QLine>, AsTheyLie<QLine>>;
  using Valued = Either<Tile::fp8_kv != 0, WidenedColumns<Element, typename Stream::VLine>,
                        Columns<Element, typename Stream::VLine>>;

  /// S = Q K^T
  __device__ void scores(unsigned slot) {
    const Queried queries(shared + Shared::at.q, lane);
    const auto load_q = [&](unsigned(&a)[4], int, int step) {
      if constexpr (held)
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j] = q[step][j];
      else
        queries.load(a, step);
    };
    const auto keys = by_bytes<typename Stream::KLine>(slot, lane);
    if constexpr (Tile::fp8_kv)
      widened_dots<Element, q_steps, n>(s, load_q, keys);
    else
      dots<Element, false, q_steps, 1, n>(s, load_q, keys);
  }
  /// O += P V
  __device__ void results(unsigned slot) {
    const Valued at(slot, lane);
    if constexpr (ExactPath)
      add_product_apart<Element, false, 1, n, Tile::dv>(o, s, at);
    else
      add_product<Element, false, 1, n, Tile::dv>(o, s, at);
  }
  /// P = exp2(S - max); rescales earlier results to a new maximum.
  __device__ void weigh(int kv, bool partial) {
    if (partial)
      softmax.template exponents<true, n>(s, kv);
    else
      softmax.template exponents<false, n>(s, kv);
    float lift[1][2];
    if (softmax.template powers<n>(s, lift))
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = o[0][i][j];
          const float by = to_degree<User>(lift[0][j / 2]);
          x = ExactPath && by == 0.0f ? 0.0f : x * by;
        }
    if constexpr (User::traits.has_prob) softmax.template prob<n>(s, kv);
  }

  /// This warp's iterations between steps `begin` and `end` of the tile's walk.
  __device__ void visit(const Walk& walk, int begin, int end, unsigned ring, int& slot) {
#pragma unroll
    for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) o[0][i][j] = 0;
    // The oldest slot has arrived when only the younger ones are under way. A used slot is filled again at once.
    const auto arrived = [&] {
      copy_wait<Tile::stages - 1>();
      __syncwarp();
      return ring + static_cast<unsigned>(slot * Shared::at.slot_bytes);
    };
    const auto used = [&]<bool Values>() {
      __syncwarp();
      slot = slot + 1 == Tile::stages ? 0 : slot + 1;
      ahead.template load<Values != (Tile::stages % 2 == 1)>();
    };
#pragma unroll 1
    for (int i = begin + warp; i < end; i += Tile::warps) {
      const int key = walk.tile(i) * n;
      scores(arrived());
      used.template operator()<false>();
      weigh(of.kv_offset + key + 2 * (lane & 3), !walk.is_full(i) || key + n > of.keys.length);
      results(arrived());
      used.template operator()<true>();
    }
  }

  // ---- the end of a tile -----------------------------------------------------------------------------------------

  /// Returns false, and stores nothing, if the tile needs the exact path.
  __device__ bool end(bool whole, SplitTile split_tile, int nth) {
    const RowPartial part[2] = {softmax.part(0, 0), softmax.part(0, 1)};
    if constexpr (!ExactPath)
      if (__syncthreads_or(has_non_finite(o[0], finite(part[0].sum), finite(part[1].sum)))) return false;
    this->store(o[0], part, whole, split_tile, nth);
    return true;
  }
};

/// Computes the tiles of a share from `tile` on. Returns the first that needs the exact path, if there is one.
template <bool ExactPath, class Tile, class User>
__device__ inline int do_tiles(const DecodeArgs& args, const User& user, const SplitRange& split, unsigned shared,
                               int tile) {
  Ahead<Tile, User> ahead(args, user, split, shared, tile);
  bool started = false;
  int slot = 0;
#pragma unroll 1
  for (; tile < split.end.tile || (tile == split.end.tile && split.end.step > 0); ++tile) {
    const auto of = DecodeTile::of<Tile>(args, tile);
    const Walk walk = of.template walk<Tile>(args, user);
    const int begin = tile == split.begin.tile ? split.begin.step : 0,
              end = tile == split.end.tile ? split.end.step : walk.count;
    DecodeBlock<Tile, User, ExactPath> block(args, user, shared, ahead, of);
    // Queries are read before the first keys, whose copies would delay them.
    if (!started) wait_for_kernel_before();
    const auto queries = block.read_q();
    if (!started) ahead.fill();
    started = true;
    block.put_q(queries);
    block.visit(walk, begin, end, ahead.ring, slot);
    const bool whole = begin == 0 && end == walk.count;
    if (!block.end(whole, begin > 0 ? split.at_begin : split.at_end, begin != 0)) break;
  }
  copy_wait<0>();
  if (!started) wait_for_kernel_before();
  return tile;
}

/// Not inlined, so it does not raise the caller's register count; as it never returns, the caller saves no registers.
template <class Tile, class User>
[[noreturn]] __device__ __noinline__ void decode_exact_path(const DecodeArgs& args, const User& user,
                                                            const SplitRange& split, unsigned shared, int tile) {
  __syncthreads();
  do_tiles<true, Tile>(args, user, split, shared, tile);
  leave();
}

/// Computes the splits of a share, or one split on the exact path. Stops at the first split that needs the exact path
/// and returns its place. The other splits stay on the fast path, because their bits may not depend on that split.
template <bool ExactPath, class Tile, class User>
__device__ inline Cut do_splits(const DecodeArgs& args, const User& user, const SplitRange& split, unsigned shared) {
  const int each = further(args).split_steps;
  Ahead<Tile, User> ahead(args, user, split, shared, split.begin.tile);
  bool started = false, stored = true;
  int slot = 0;
  Cut at = split.begin;
#pragma unroll 1
  while (stored && at.is_before(split.end)) {
    const int tile = at.tile;
    const auto of = DecodeTile::of<Tile>(args, tile);
    const Walk walk = of.template walk<Tile>(args, user);
    const int end = tile == split.end.tile ? split.end.step : walk.count, splits = (walk.count + each - 1) / each;
    DecodeBlock<Tile, User, ExactPath> block(args, user, shared, ahead, of);
    if (!started) wait_for_kernel_before();
    const auto queries = block.read_q();
    if (!started) ahead.fill();
    started = true;
    block.put_q(queries);
    // A tile without keys has one split, which is empty.
#pragma unroll 1
    do {
      const int to = min(at.step + each, end);
      block.softmax.start();
      block.visit(walk, at.step, to, ahead.ring, slot);
      stored = block.end(splits <= 1, {tile, splits}, at.step / each);
      if (stored) at = to == walk.count ? Cut{tile + 1, 0} : Cut{tile, to};
    } while (!ExactPath && stored && at.tile == tile && at.step < end);
    if (ExactPath) break;
  }
  copy_wait<0>();
  if (!started) wait_for_kernel_before();
  return at;
}
template <class Tile, class User>
__device__ __noinline__ Cut do_split_exact_path(const DecodeArgs& args, const User& user, const SplitRange& split,
                                                unsigned shared) {
  __syncthreads();
  const Cut end = do_splits<true, Tile>(args, user, split, shared);
  __syncthreads();
  return end;
}

template <TileOfDecode Tile, class User>
__global__ void __launch_bounds__(Tile::warps * 32, 1)
    decode_sm80(const __grid_constant__ ArgsOf<Tile, DecodeArgs> args, const __grid_constant__ User user) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Scratch = SplitScratch<Tile::warps * 32>;
  static_assert(sizeof(Scratch) <= SharedDecode<Tile>::at.met_bytes);
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  // The next kernel's blocks start where blocks of this one have ended, and wait there.
  let_next_start();
  // The previous kernel may write what this one reads, read what it writes, or clear its counters.
  const SplitRange split = find_split<Tile>(
      args, user, *reinterpret_cast<Scratch*>(memory + SharedDecode<Tile>::at.met), wait_for_kernel_before);
  if (!reads_queries_first<Tile, User>(args)) wait_for_kernel_before();
  if constexpr (has_fixed_split<Tile>) {
    SplitRange rest = split;
#pragma unroll 1
    for (;;) {
      rest.begin = do_splits<false, Tile>(args, user, rest, shared);
      if (!rest.begin.is_before(rest.end)) break;
      rest.begin = do_split_exact_path<Tile>(args, user, rest, shared);
    }
  } else {
    const int tile = do_tiles<false, Tile>(args, user, split, shared, split.begin.tile);
    if (tile < split.end.tile || (tile == split.end.tile && split.end.step > 0))
      decode_exact_path<Tile>(args, user, split, shared, tile);
  }
}

}  // namespace attune
