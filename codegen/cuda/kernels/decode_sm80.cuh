// codegen/cuda/kernels/decode_sm80.cuh — the forward of few queries, for any card since sm_80: all blocks share the
// keys
//
// A tile of queries has at most 16 rows: a few queries of the heads that share keys. Its warps divide the keys, not the
// rows: each has a ring of slots of its own, which it fills with keys and values in turn, and its own maxima, sums and
// results. They meet only at the end of a tile. Blocks stay, and take equal shares of all keys (cuts_sm80.cuh): the
// next tile's keys are under way while this one's results are stored.
//
// What is removed reaches nothing: rows behind the last key are zeros in shared memory, whatever memory holds. Where a
// result is not finite although its row's sum is, the block does that tile and all after it in the careful way, as
// forward_sm80.cuh does; of pieces, that one alone.
//
// In pieces, blocks take whole pieces of a tile's keys, each of which has a maximum, sums and results of its own; the
// last to arrive adds up all of them. What a row gets then hangs on its own keys alone.
//
// Tile: Element (bf16, f16) of q, k and v, Out (also float) of o; m: 16 rows; n: keys a step of a warp, 16 or 32;
// warps; stages: slots of a ring, each n rows of keys or of values; d, dv, width, width_v, heads, layout, max, store:
// before: as forward_sm80.cuh has them; paged: keys lie in pages; pieces: each of so many keys is a part of its own;
// narrow: k and v hold e4m3, and d and dv are multiples of 32. Rows of q, k and v start at multiples of 16 bytes.
// SharedDecode<Tile>::bytes of shared memory, Tile::warps x 32 threads.
#pragma once

#include "codegen/cuda/parts/before.cuh"
#include "codegen/cuda/parts/cuts_sm80.cuh"
#include "codegen/cuda/parts/parts.cuh"
#include "codegen/cuda/parts/softmax_sm80.cuh"
#include "codegen/cuda/parts/widened_sm80.cuh"
#include "codegen/cuda/ptx/cluster.cuh"
#include "codegen/cuda/ptx/launch.cuh"
#include "codegen/cuda/ptx/thread.cuh"

namespace attune {

// ---- shared memory -----------------------------------------------------------------------------------------------

/// The type of keys and values.
template <class Tile>
using Kept = Either<Tile::narrow != 0, e4m3, typename Tile::Element>;

template <class Tile>
struct SharedDecode {
  static constexpr int size = ElementOf<typename Tile::Element>::bytes, kept = ElementOf<Kept<Tile>>::bytes;
  static constexpr int slot_bytes = Tile::n * (Tile::d > Tile::dv ? Tile::d : Tile::dv) * kept;
  /// Rows of 8 results that warps put side by side; the padding keeps the rows in different banks.
  static constexpr int met_rows = 8, met_pitch = Tile::dv + 8;
  static constexpr int ring = 0, ring_bytes = Tile::stages * slot_bytes, q = Tile::warps * ring_bytes,
                       met = q + Tile::m * Tile::d * size,
                       met_bytes = Tile::warps * met_rows * met_pitch * static_cast<int>(sizeof(float)),
                       parts = met + met_bytes, last = parts + Tile::warps * Tile::m * static_cast<int>(sizeof(Part)),
                       before = last + 16,
                       before_bytes = has_before<Tile> ? Tile::m * static_cast<int>(sizeof(float)) : 0,
                       bytes = before + before_bytes;
};

/// Is nothing read before queries and keys are? Expressions that read captured tensors hold their addresses.
template <class Tile, class User>
__device__ inline bool reads_queries_first(const DecodeArgs& args) {
  return alignof(User) < alignof(void*) && !User::traits.listed && !is_packed<Tile> && !Tile::paged &&
         !args.kv_lens.at && !args.q_offsets.at;
}

// ---- the ring ----------------------------------------------------------------------------------------------------

/// Keys and values of a warp's steps on their way into its ring, ahead of their use.
template <class Tile, class User>
struct Ahead {
  using Shared = SharedDecode<Tile>;
  using KLine = Lines<Tile::d * Shared::kept>;
  using VLine = Lines<Tile::dv * Shared::kept>;

  const DecodeArgs& args;
  const User& user;
  const Share& share;
  const int lane, warp;
  const unsigned ring;
  int tile, step, end, slot = 0;
  int length;
  Walk walk;
  Rows80 k, v;
  const int* pages = nullptr;      ///< of the entry
  int page = -1, row_of_page = 0;  ///< of the row that this lane looks up: the lane's of the step's

  __device__ Ahead(const DecodeArgs& args, const User& user, const Share& share, unsigned shared, int from)
      : args(args), user(user), share(share), lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        ring(shared + Shared::ring + static_cast<unsigned>(warp * Shared::ring_bytes)), tile(from - 1), step(0),
        end(0) {
    next();
  }

  /// Finds the warp's first step of the next tile that has one for it.
  __device__ void next() {
    while (step >= end) {
      ++tile;
      if (tile > share.end.tile || (tile == share.end.tile && share.end.step == 0)) {
        end = -1;
        return;
      }
      const auto of = DecodeTile::of<Tile>(args, tile);
      walk = of.template walk<Tile>(args, user);
      step = (tile == share.begin.tile ? share.begin.step : 0) + warp;
      end = tile == share.end.tile ? share.end.step : walk.count;
      length = of.keys.length;
      const int kv_b = args.kv_shared || Tile::paged ? 0 : of.b;
      k = rows_of<Kept<Tile>>(args.k, kv_b, of.kv_head, of.keys.start);
      v = rows_of<Kept<Tile>>(args.v, kv_b, of.kv_head, of.keys.start);
      if constexpr (Tile::paged) pages = args.pages.at + of.b * args.pages.entry;
    }
    if constexpr (Tile::paged) look_up();
  }
  /// The slot that was used longest ago gets the next rows: keys and values in turn, from keys on.
  template <bool Values>
  __device__ void load() {
    if (end >= 0) {
      const unsigned into = ring + static_cast<unsigned>(slot * Shared::slot_bytes);
      const int first = walk.tile(step) * Tile::n;
      if constexpr (Values) {
        rows<VLine, Tile::dv * Shared::kept, Tile::width_v * Shared::kept>(into, v, args.v.batch, first);
        step += Tile::warps;
        next();
      } else {
        rows<KLine, Tile::d * Shared::kept, Tile::width * Shared::kept>(into, k, args.k.batch, first);
      }
    }
    copy_commit();
    slot = slot + 1 == Tile::stages ? 0 : slot + 1;
  }
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < Tile::stages / 2; ++i) {
      load<false>();
      load<true>();
    }
    if constexpr (Tile::stages % 2) load<false>();
  }

 private:
  /// Each lane finds the page of one of the step's rows, well before it is needed.
  __device__ void look_up() {
    const int row = walk.tile(step) * Tile::n + lane;
    page = -1;
    if (lane >= Tile::n || row >= length) return;
    const int nth = row / args.pages.rows, found = pages[nth * args.pages.nth];
    row_of_page = row - nth * args.pages.rows;
    if (found < args.pages.count) page = found;
  }
  /// n rows of Width bytes into lines of Pitch; what does not exist is 0.
  template <class Line, int Pitch, int Width>
  __device__ void rows(unsigned into, const Rows80& rows, long long page_stride, int first) const {
    constexpr int piece = 16, pieces = Pitch / piece, across = (pieces & -pieces) < 32 ? pieces & -pieces : 32,
                  down = 32 / across;
    const int row0 = lane / across, byte0 = lane % across * piece;
    const long long mine = page * page_stride * Shared::kept + row_of_page * rows.position;
    const unsigned there = Tile::paged ? __ballot_sync(~0u, page >= 0) : 0;
    const auto is_there = [&](int row) { return Tile::paged ? (there >> row & 1) != 0 : first + row < length; };
    const char* from = rows.data + (first + row0) * rows.position + byte0;
#pragma unroll
    for (int r = 0; r < Tile::n; r += down, from += down * rows.position) {
      if constexpr (Tile::paged) from = rows.data + __shfl_sync(~0u, mine, row0 + r) + byte0;
      const bool has_row = is_there(row0 + r);
#pragma unroll
      for (int c = 0; c < Pitch; c += across * piece) {
        const int count = !has_row ? 0 : Width == Pitch ? piece : min(max(Width - byte0 - c, 0), piece);
        copy_async<piece>(into + Line::at(row0 + r, byte0 + c), count ? from + c : rows.data, count);
      }
    }
  }
};

// ---- computing ---------------------------------------------------------------------------------------------------

/// A tile of queries, or a part of its keys. Careful: values that are not finite are kept apart.
template <class Tile, class User, bool Careful>
struct DecodeBlock {
  using Element = typename Tile::Element;
  using Out = typename Tile::Out;
  using Shared = SharedDecode<Tile>;
  using Stream = Ahead<Tile, User>;
  using QLine = Lines<Tile::d * Shared::size>;
  static constexpr int size = Shared::size, per_step = 32 / size, n = Tile::n, heads = Tile::heads,
                       threads = 32 * Tile::warps;
  static constexpr bool running = !fixed_maximum<Tile, User>;
  static constexpr int slack = Tile::max ? 0 : 8;
  static constexpr int q_steps = Tile::d / per_step;
  static constexpr bool held = !Careful && q_steps * 4 + Tile::dv / 2 <= 112;
  static_assert(size == 2 && Tile::m == 16 && 16 % heads == 0 && (n == 16 || n == 32) && Tile::stages >= 2);
  static_assert(!User::traits.has_prob || User::traits.linear_prob);

  const DecodeArgs& args;
  const unsigned shared;
  Stream& ahead;
  const DecodeTile of;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rows;  ///< that exist
  Softmax80<User, running, 1, slack, heads> softmax;
  Fragment<1, n> s;
  float o[1][Tile::dv / 8][4];
  unsigned q[held ? q_steps : 1][4];

  __device__ DecodeBlock(const DecodeArgs& args, const User& user, unsigned shared, Stream& ahead, const DecodeTile& of)
      : args(args), shared(shared), ahead(ahead), of(of), rows(of.queries.length * heads),
        softmax(user, of.at(head_of(lane / 4)), lane / 4 / heads, of.q_offset, of.q_offset, head_of(lane / 4 + 8)) {}

  /// Rows of heads that do not exist repeat the last head.
  __device__ int head_of(int row) const { return of.heads.first + min(row % heads, of.heads.count - 1); }

  /// All threads read the rows' queries, 16 bytes a piece; rows and columns that do not exist are 0.
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
      const unsigned into = shared + Shared::q + QLine::at(row, byte);
      shared_put(into, x.x, x.y);
      shared_put(into + 8, x.z, x.w);
    }
    __syncthreads();
    if constexpr (held)
#pragma unroll
      for (int step = 0; step < q_steps; ++step) Queried(shared + Shared::q, lane).load(q[step], step);
  }
  /// How q is read as an operand, and v: in the order in which keys and values of this type lie.
  using Queried = Either<Tile::narrow != 0, WidenedRows<QLine>, AsTheyLie<QLine>>;
  using Valued = Either<Tile::narrow != 0, WidenedColumns<Element, typename Stream::VLine>,
                        Columns<Element, typename Stream::VLine>>;

  /// s = q . k
  __device__ void scores(unsigned slot) {
    const Queried queries(shared + Shared::q, lane);
    const auto load_q = [&](unsigned(&a)[4], int, int step) {
      if constexpr (held)
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j] = q[step][j];
      else
        queries.load(a, step);
    };
    const auto keys = by_bytes<typename Stream::KLine>(slot, lane);
    if constexpr (Tile::narrow)
      widened_dots<Element, q_steps, n>(s, load_q, keys);
    else
      dots<Element, false, q_steps, 1, n>(s, load_q, keys);
  }
  /// o += p v
  __device__ void results(unsigned slot) {
    const Valued at(slot, lane);
    if constexpr (Careful)
      add_product_apart<Element, false, 1, n, Tile::dv>(o, s, at);
    else
      add_product<Element, false, 1, n, Tile::dv>(o, s, at);
  }
  /// Scores become powers; earlier results are rescaled to another maximum.
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
          x = Careful && lift[0][j / 2] == 0.0f ? 0.0f : x * lift[0][j / 2];
        }
    if constexpr (User::traits.has_prob) softmax.template prob<n>(s, kv);
  }

  /// The steps of this warp between two of the tile's walk.
  __device__ void visit(const Walk& walk, int begin, int end, unsigned ring, int& slot) {
#pragma unroll
    for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) o[0][i][j] = 0;
    // A slot has arrived when all but the younger ones have; it is filled again as soon as it was used.
    const auto arrived = [&] {
      copy_wait<Tile::stages - 1>();
      __syncwarp();
      return ring + static_cast<unsigned>(slot * Shared::slot_bytes);
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

  /// Has a row results that are not finite although its powers are?
  __device__ bool suspicious(const Part (&part)[2]) const {
    bool odd = false;
#pragma unroll
    for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) odd |= finite(part[j / 2].sum) && !finite(o[0][i][j]);
    return odd;
  }

  // ---- the end of a tile -----------------------------------------------------------------------------------------

  /// False: nothing is stored, the tile has to be done carefully. `nth`: which of the tile's pieces; where there are
  /// none, 0 for the first of its parts.
  __device__ bool store(bool whole, Sharing sharing, int nth) {
    const Part part[2] = {softmax.part(0, 0), softmax.part(0, 1)};
    if constexpr (!Careful)
      if (__syncthreads_or(suspicious(part))) return false;
    if (lane % 4 == 0)
#pragma unroll
      for (int r = 0; r < 2; ++r) parts_met()[warp * Tile::m + 8 * r + lane / 4] = part[r];
    const int block = static_cast<int>(blockIdx.x);
    float* const into = whole             ? nullptr
                        : in_pieces<Tile> ? part_of(sharing, nth)
                                          : slot_of(nth == 0 ? 2 * block + 1 : 2 * block);
    if (whole) read_before();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (8 * r >= rows) break;
      if (r > 0) __syncthreads();
      // Rows that do not exist are not read either.
      if (8 * r + lane / 4 < rows) {
        float* const mine = met() + (warp * Shared::met_rows + lane / 4) * Shared::met_pitch +
                            (Tile::narrow ? 4 : 2) * (lane & 3);
        if constexpr (Tile::narrow) {
          // Of sixteen columns the even ones, then the odd ones.
#pragma unroll
          for (int i = 0; i < Tile::dv / 8; i += 2)
            *reinterpret_cast<float4*>(mine + 8 * i) = {o[0][i][2 * r], o[0][i + 1][2 * r], o[0][i][2 * r + 1],
                                                        o[0][i + 1][2 * r + 1]};
        } else {
#pragma unroll
          for (int i = 0; i < Tile::dv / 8; ++i)
            *reinterpret_cast<float2*>(mine + 8 * i) = {o[0][i][2 * r], o[0][i][2 * r + 1]};
        }
      }
      __syncthreads();
      each(8 * r, min(rows - 8 * r, 8), [&](int row, int column) {
        PartOfRow::Other warps[Tile::warps];
#pragma unroll
        for (int w = 0; w < Tile::warps; ++w)
          warps[w] = {
              *reinterpret_cast<const float4*>(met() + (w * Shared::met_rows + row % 8) * Shared::met_pitch + column),
              parts_met()[w * Tile::m + row]};
        PartOfRow all;
        all.add(warps);
        if (whole) return finish(row, column, all);
        if (is_clustered()) return keep(row, column, all);
        *reinterpret_cast<float4*>(into + row * Tile::dv + column) = {all.o[0], all.o[1], all.o[2], all.o[3]};
        if (column == 0) parts_in(into)[row] = all.part;
      });
    }
    if (!whole) is_clustered() ? join_cluster(sharing) : join(sharing);
    __syncthreads();
    return true;
  }

  /// The last block to arrive adds up the tile's parts.
  __device__ void join(Sharing sharing) {
    __syncthreads();
    int& last = *shared_as<int>(Shared::last);
    if (threadIdx.x == 0) {
      wait_for_kernel_before();
      __threadfence();
      last = atomicAdd(args.arrivals + sharing.first, 1u) == static_cast<unsigned>(sharing.count - 1);
      __threadfence();
    }
    __syncthreads();
    if (!last) return;
    if constexpr (has_before<Tile>) {
      read_before();
      __syncthreads();
    }
    each(0, rows, [&](int row, int column) {
      // Several parts are under way at a time.
      constexpr int batch = 8;
      PartOfRow all;
#pragma unroll 1
      for (int first = 0; first < sharing.count; first += batch) {
        PartOfRow::Other some[batch];
#pragma unroll
        for (int i = 0; i < batch; ++i)
          if (const int nth = first + i; nth < sharing.count) {
            const float* const from = part_of(sharing, nth);
            some[i] = {__ldcg(reinterpret_cast<const float4*>(from + row * Tile::dv + column)),
                       __builtin_bit_cast(Part, __ldcg(reinterpret_cast<const float2*>(parts_in(from) + row)))};
          }
        all.add(some);
      }
      finish(row, column, all);
    });
  }

  __device__ bool is_clustered() const {
    return has_clusters && !in_pieces<Tile> && Tile::warps >= cluster_warps && args.paired != 0;
  }
  /// A part in this block's shared memory, where its keys were: none are under way any more, as such a block has one
  /// tile. Laid out as parts in memory are.
  __device__ unsigned kept_at(int floats) const {
    return shared + Shared::ring + static_cast<unsigned>(floats) * static_cast<unsigned>(sizeof(float));
  }
  __device__ void keep(int row, int column, const PartOfRow& all) const {
    const unsigned into = kept_at(row * Tile::dv + column);
    const auto bits = [](float x) { return __float_as_uint(x); };
    shared_put(into, bits(all.o[0]), bits(all.o[1]));
    shared_put(into + 8, bits(all.o[2]), bits(all.o[3]));
    if (column == 0) shared_put(kept_at(Tile::m * Tile::dv + 2 * row), bits(all.part.sum), bits(all.part.over));
  }
  /// Each of two blocks adds up half of the tile's results, whose parts lie in their shared memory.
  __device__ void join_cluster(Sharing sharing) {
    static_assert(Tile::m * (Tile::dv + 2) * static_cast<int>(sizeof(float)) <= Shared::met ||
                  Tile::warps < cluster_warps);
    // Before the other stores a row's lse in the same place.
    read_before();
    meet_cluster();
    constexpr int fours = Tile::dv / 4;
    const int each = (rows * fours + 1) / 2, first = (static_cast<int>(blockIdx.x) - sharing.first) * each,
              last = min(first + each, rows * fours);
    for (int i = first + static_cast<int>(threadIdx.x); i < last; i += threads) {
      const int row = i / fours, column = i % fours * 4;
      PartOfRow::Other both[2];
#pragma unroll
      for (int nth = 0; nth < 2; ++nth) {
        const auto of_block = [&](int floats) { return shared_of(kept_at(floats), nth); };
        both[nth] = {load_cluster(of_block(row * Tile::dv + column)),
                     __builtin_bit_cast(Part, load_cluster_pair(of_block(Tile::m * Tile::dv + 2 * row)))};
      }
      PartOfRow all;
      all.add(both);
      finish(row, column, all);
    }
    // The other may still read this block's.
    meet_cluster();
  }

  /// Calls fn(row, column) for four columns of each row, shared among the threads.
  template <class Fn>
  __device__ void each(int first, int count, Fn fn) const {
    constexpr int fours = Tile::dv / 4;
    for (int i = static_cast<int>(threadIdx.x); i < count * fours; i += threads) fn(first + i / fours, i % fours * 4);
  }

  /// Stores four columns of a row that all keys have joined.
  __device__ void finish(int row, int column, const PartOfRow& all) const {
    const int nth = row % heads, query = row / heads;
    if (nth >= of.heads.count) return;
    const User& user = softmax.user;
    const int h = of.heads.first + nth, q = of.q_offset + query;
    const Where at = of.at(h);
    const auto head = user.head(at);
    const Ended ended = end_of_row<User>(user, head, user.row(head, at, q), at, of.q_offset, q, all.part);
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = ended.factor == 0.0f ? 0.0f : all.o[i] * ended.factor;
    float lse = ended.lse;
    if constexpr (has_before<Tile>) {
      const Merged with = merged(lse, before_met()[row]);
      lse = with.lse;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] *= with.own;
        // What counts for nothing may be anything.
        if (with.before != 0.0f && column + i < Tile::width_v)
          x[i] += with.before * o_before(args, of.b, h, of.queries.start + query, column + i);
      }
    }
    put(h, query, column, x);
    if (column > 0) return;
    put(args.lse, h, query, lse);
    if constexpr (Tile::max) put(args.max, h, query, ended.max);
  }
  __device__ void put(int h, int query, int column, const float (&x)[4]) const {
    Out* const into = static_cast<Out*>(args.o.data) + of.b * args.o.batch + h * args.o.head +
                      (of.queries.start + query) * args.o.position + column * args.o.element;
    constexpr int bytes = 4 * static_cast<int>(sizeof(Out));
    if constexpr (Tile::store >= bytes) {
      if (column >= Tile::width_v) return;
      if constexpr (sizeof(Out) == 2)
        *reinterpret_cast<uint2*>(into) = {pack<Out>(x[0], x[1]), pack<Out>(x[2], x[3])};
      else
        *reinterpret_cast<float4*>(into) = {x[0], x[1], x[2], x[3]};
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column + i < Tile::width_v) {
          if constexpr (sizeof(Out) == 2)
            into[i * args.o.element] = {static_cast<unsigned short>(pack<Out>(x[i], 0.0f))};
          else
            into[i * args.o.element] = x[i];
        }
    }
  }
  __device__ void put(const Rows& to, int h, int query, float x) const {
    if (to.data) to.data[of.b * to.batch + h * to.head + (of.queries.start + query) * to.position] = x;
  }

  /// Each row's lse of other keys, read before a thread stores that of all in its place.
  __device__ void read_before() const {
    if constexpr (has_before<Tile>) {
      const int row = static_cast<int>(threadIdx.x), head = row % heads;
      if (row < rows && head < of.heads.count)
        before_met()[row] = lse_before(args, of.b, of.heads.first + head, of.queries.start + row / heads);
    }
  }

  template <class T>
  __device__ T* shared_as(int at) const {
    return reinterpret_cast<T*>(__cvta_shared_to_generic(shared + static_cast<unsigned>(at)));
  }
  __device__ float* met() const { return shared_as<float>(Shared::met); }
  __device__ Part* parts_met() const { return shared_as<Part>(Shared::parts); }
  __device__ float* before_met() const { return shared_as<float>(Shared::before); }

  /// A part in memory: results of every row that a tile may have, then their sums.
  __device__ int part_rows() const { return args.q_len * heads; }
  __device__ float* slot_of(int nth) const {
    return args.parts + static_cast<long long>(nth) * part_rows() * (Tile::dv + part_floats);
  }
  __device__ float* part_of(Sharing sharing, int nth) const {
    if constexpr (in_pieces<Tile>)
      return slot_of(sharing.first * further(args).pieces + nth);
    else
      return slot_of(2 * (sharing.first + nth) + (nth == 0));
  }
  __device__ Part* parts_in(float* slot) const { return reinterpret_cast<Part*>(slot + part_rows() * Tile::dv); }
  __device__ const Part* parts_in(const float* slot) const {
    return reinterpret_cast<const Part*>(slot + part_rows() * Tile::dv);
  }
};

/// Does the tiles of a share from this one on. Returns the first that has to be done carefully, if there is one.
template <bool Careful, class Tile, class User>
__device__ inline int do_tiles(const DecodeArgs& args, const User& user, const Share& share, unsigned shared,
                               int tile) {
  Ahead<Tile, User> ahead(args, user, share, shared, tile);
  bool started = false;
  int slot = 0;
#pragma unroll 1
  for (; tile < share.end.tile || (tile == share.end.tile && share.end.step > 0); ++tile) {
    const auto of = DecodeTile::of<Tile>(args, tile);
    const Walk walk = of.template walk<Tile>(args, user);
    const int begin = tile == share.begin.tile ? share.begin.step : 0,
              end = tile == share.end.tile ? share.end.step : walk.count;
    DecodeBlock<Tile, User, Careful> block(args, user, shared, ahead, of);
    // Queries are asked for before the first keys, which would keep them waiting.
    if (!started) wait_for_kernel_before();
    const auto queries = block.read_q();
    if (!started) ahead.fill();
    started = true;
    block.put_q(queries);
    block.visit(walk, begin, end, ahead.ring, slot);
    const bool whole = begin == 0 && end == walk.count;
    if (!block.store(whole, begin > 0 ? share.at_begin : share.at_end, begin != 0)) break;
  }
  copy_wait<0>();
  if (!started) wait_for_kernel_before();
  return tile;
}

/// A function of its own, so that it takes no registers from the rest; it never returns, so that it saves none.
template <class Tile, class User>
[[noreturn]] __device__ __noinline__ void decode_carefully(const DecodeArgs& args, const User& user, const Share& share,
                                                           unsigned shared, int tile) {
  __syncthreads();
  do_tiles<true, Tile>(args, user, share, shared, tile);
  leave();
}

/// Does the pieces of a share; carefully, one of them. Returns where it ends: at the first piece that has to be done
/// carefully, if there is one. Others are not done so: their bits may not hang on that one.
template <bool Careful, class Tile, class User>
__device__ inline Cut do_pieces(const DecodeArgs& args, const User& user, const Share& share, unsigned shared) {
  const int each = further(args).piece;
  Ahead<Tile, User> ahead(args, user, share, shared, share.begin.tile);
  bool started = false, stored = true;
  int slot = 0;
  Cut at = share.begin;
#pragma unroll 1
  while (stored && at.is_before(share.end)) {
    const int tile = at.tile;
    const auto of = DecodeTile::of<Tile>(args, tile);
    const Walk walk = of.template walk<Tile>(args, user);
    const int end = tile == share.end.tile ? share.end.step : walk.count, pieces = (walk.count + each - 1) / each;
    DecodeBlock<Tile, User, Careful> block(args, user, shared, ahead, of);
    if (!started) wait_for_kernel_before();
    const auto queries = block.read_q();
    if (!started) ahead.fill();
    started = true;
    block.put_q(queries);
    // A tile without keys has one piece.
#pragma unroll 1
    do {
      const int to = min(at.step + each, end);
      block.softmax.start();
      block.visit(walk, at.step, to, ahead.ring, slot);
      stored = block.store(pieces <= 1, {tile, pieces}, at.step / each);
      if (stored) at = to == walk.count ? Cut{tile + 1, 0} : Cut{tile, to};
    } while (!Careful && stored && at.tile == tile && at.step < end);
    if (Careful) break;
  }
  copy_wait<0>();
  if (!started) wait_for_kernel_before();
  return at;
}
template <class Tile, class User>
__device__ __noinline__ Cut do_piece_carefully(const DecodeArgs& args, const User& user, const Share& share,
                                               unsigned shared) {
  __syncthreads();
  const Cut end = do_pieces<true, Tile>(args, user, share, shared);
  __syncthreads();
  return end;
}

template <class Tile, class User>
__global__ void __launch_bounds__(Tile::warps * 32, 1)
    decode_sm80(const __grid_constant__ ArgsOf<Tile, DecodeArgs> args, const __grid_constant__ User user) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Room = ShareRoom<Tile::warps * 32>;
  static_assert(sizeof(Room) <= SharedDecode<Tile>::met_bytes);
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  // The next kernel's blocks take the places of those that are done, and wait there.
  let_next_start();
  // The kernel before may have written what this one reads, read what it writes, or clear its counters.
  const Share share = find_share<Tile>(args, user, *reinterpret_cast<Room*>(memory + SharedDecode<Tile>::met),
                                       wait_for_kernel_before);
  if (!reads_queries_first<Tile, User>(args)) wait_for_kernel_before();
  if constexpr (in_pieces<Tile>) {
    Share rest = share;
#pragma unroll 1
    for (;;) {
      rest.begin = do_pieces<false, Tile>(args, user, rest, shared);
      if (!rest.begin.is_before(rest.end)) break;
      rest.begin = do_piece_carefully<Tile>(args, user, rest, shared);
    }
  } else {
    const int tile = do_tiles<false, Tile>(args, user, share, shared, share.begin.tile);
    if (tile < share.end.tile || (tile == share.end.tile && share.end.step > 0))
      decode_carefully<Tile>(args, user, share, shared, tile);
  }
}

}  // namespace attune
