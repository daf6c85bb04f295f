// codegen/cuda/companions/cover.cuh — builds tile lists on the device, FlexAttention's BlockMask, for masks that read
// data
//
// One row of lists per tile of queries (per head and batch entry too, if the mask varies with them):
//   {number of partial tiles, number of full tiles, partial tiles, full tiles}; tiles are numbered along kv, falling.
// A backward also gets one row per tile of keys, with tiles of queries; or a table of all pairs of tiles, which says
// for each pair how many tiles of keys its queries visit before it and after it. A tile that reaches past kv_len is
// partial. One block per row, one warp per verdict; no order depends on timing.
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

// ---- what a captured tensor holds between two indices of each dimension, by a whole warp ----------------------------

constexpr unsigned warp = 0xffffffffu;
constexpr int lanes = 32;

__device__ inline int whole(Int x) { return x.i(); }
__device__ inline int whole(bool x) { return x; }

template <class T, int rank, class Stride, class... Index>
__device__ __forceinline__ int between(bool least, const Capture<T, rank, Stride>& of, Index... index) {
  static_assert(sizeof...(Index) == 2 * rank);
  // Lanes share the last dimension and loop over the dimensions before it.
  constexpr int dims = 4, skip = dims - rank;
  const Int given[2 * rank] = {index...};
  int from[dims] = {}, to[dims] = {};
  long long stride[dims] = {};
#pragma unroll
  for (int d = 0; d < rank; ++d) {
    from[skip + d] = min(max(given[2 * d].i(), 0), of.last[d]);
    to[skip + d] = min(max(given[2 * d + 1].i(), 0), of.last[d]);
    stride[skip + d] = of.stride[d];
  }
  // Several reads are under way at a time; the last element may be read more than once.
  constexpr int batch = 4;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  int found = least ? 0x7fffffff : -0x7fffffff - 1;
  for (int i = from[0]; i <= to[0]; ++i)
    for (int j = from[1]; j <= to[1]; ++j)
      for (int k = from[2]; k <= to[2]; ++k) {
        const T* line = of.data + i * stride[0] + j * stride[1] + k * stride[2];
#pragma unroll 1
        for (int left = to[3] - from[3] - lane; left >= 0; left -= batch * lanes) {
          const T* first = line + (to[3] - left) * stride[3];
          int read[batch];
#pragma unroll
          for (int n = 0; n < batch; ++n) read[n] = whole(seen(first + min(n * lanes, left) * of.stride[rank - 1]));
#pragma unroll
          for (int n = 0; n < batch; ++n) found = least ? min(found, read[n]) : max(found, read[n]);
        }
      }
  return least ? __reduce_min_sync(warp, found) : __reduce_max_sync(warp, found);
}
template <class T, class Stride>
__device__ int between(bool, const Capture<T, 0, Stride>& of) {
  return whole(of());
}

template <class T, int rank, class Stride, class... Index>
__device__ __forceinline__ auto least(const Capture<T, rank, Stride>& of, Index... index) {
  return decltype(seen(of.data))(between(true, of, index...));
}
template <class T, int rank, class Stride, class... Index>
__device__ __forceinline__ auto greatest(const Capture<T, rank, Stride>& of, Index... index) {
  return decltype(seen(of.data))(between(false, of, index...));
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

/// What a source provides for a mask: whether a tile may keep, and may drop, any pair. Called by whole warps.
template <class C>
concept Covers = requires(const C c, Where at, typename C::Row row, typename C::Col col, int i) {
  row = c.row(at, i, i);                       // queries [begin, end)
  col = c.col(at, i, i);                       // keys [begin, end)
  bool(c.may_keep(row, col, at, i, i, i, i));  // queries, keys
  bool(c.may_drop(row, col, at, i, i, i, i));
};

/// The positions of one axis, divided into tiles.
struct Side {
  int tile, length, offset;

  __device__ int tiles() const { return (length + tile - 1) / tile; }
  __device__ int begin(int i) const { return offset + i * tile; }
  __device__ int end(int i) const { return offset + min((i + 1) * tile, length); }
};

/// The last two only in a table: pairs of the other half of the keys are all masked out.
enum Verdict : int { None, Some, All, FirstHalf, SecondHalf };
static_assert(All - Some == Visit::whole && FirstHalf - Some == Visit::first_half &&
              SecondHalf - Some == Visit::second_half);

/// A warp computes the verdicts of `tiles` tiles, of which `partial` are Some, into lists.
__device__ inline void write_lists(int* row, const int* verdicts, int tiles, int partial, int lane) {
  int some = 0, all = 0;
  for (int top = tiles; top > 0; top -= lanes) {
    const int t = top - 1 - lane;
    const int verdict = t >= 0 ? verdicts[t] : None;
    const unsigned are_some = __ballot_sync(warp, verdict == Some), are_all = __ballot_sync(warp, verdict == All);
    const unsigned before = (1u << lane) - 1;
    if (verdict == Some) row[2 + some + __popc(are_some & before)] = t;
    if (verdict == All) row[2 + partial + all + __popc(are_all & before)] = t;
    some += __popc(are_some);
    all += __popc(are_all);
  }
  if (lane == 0) {
    row[0] = some;
    row[1] = all;
  }
}

/// A warp turns a table's column of verdicts, `tiles` tiles of which `visited` are not None, into visits.
__device__ inline void write_visits(int* column, int stride, int tiles, int visited, int lane) {
  int below = 0;
  for (int first = 0; first < tiles; first += lanes) {
    const int t = first + lane;
    int* const at = column + static_cast<long long>(t) * stride;
    const int verdict = t < tiles ? *at : None;
    const unsigned are = __ballot_sync(warp, verdict != None);
    const int nth = below + __popc(are & ((1u << lane) - 1));
    if (verdict != None)
      *at = static_cast<int>(static_cast<unsigned>(verdict - Some) | static_cast<unsigned>(nth) << Visit::below_at |
                             static_cast<unsigned>(visited - nth) << Visit::above_at);
    below += __popc(are);
  }
}

template <Covers C, CoverForm What>
__global__ void __launch_bounds__(cover_threads)
    cover(const __grid_constant__ CoverArgs args, const __grid_constant__ C of) {
  constexpr int warps = cover_threads / lanes;
  constexpr bool AlongQ = What == CoverForm::of_keys;
  __shared__ int counted;  // partial tiles, or all visited tiles for a table
  const int warp_id = static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  const int b = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y), tile = static_cast<int>(blockIdx.x);
  const Entry entry = entry_of<true, true>(args, b);
  const Where at = entry.at(b, h);
  const Side queries{args.m, entry.queries.length, entry.q_offset}, keys{args.n, entry.keys.length, entry.kv_offset};
  const Side &fixed = AlongQ ? keys : queries, &walked = AlongQ ? queries : keys;
  // The grid is made for the longest packed sequence; this one may be shorter.
  const int tiles = tile * fixed.tile < fixed.length ? walked.tiles() : 0;
  const long long head = static_cast<long long>(b) * gridDim.y + h;
  int* row = args.into + (head * gridDim.x + tile) * args.tile_stride;
  int* verdicts = row + 2 + tiles;
  int stride = 1;
  if constexpr (What == CoverForm::visits) {
    stride = args.tile_stride;
    verdicts = args.into + head * ((args.kv_len + args.n - 1) / args.n) * stride + tile;
  }

  let_next_start();
  if (threadIdx.x == 0) {
    counted = 0;
    if (args.next && tile == 0 && h == 0 && b == 0) *args.next = 0;
  }
  typename C::Row q_fields;
  typename C::Col kv_fields;
  if constexpr (AlongQ)
    kv_fields = of.col(at, keys.begin(tile), keys.end(tile));
  else
    q_fields = of.row(at, queries.begin(tile), queries.end(tile));
  __syncthreads();
  for (int t = warp_id; t < tiles; t += warps) {
    const int q_tile = AlongQ ? t : tile, kv_tile = AlongQ ? tile : t;
    const int from = queries.begin(q_tile), to = queries.end(q_tile), kv_begin = keys.begin(kv_tile),
              kv_end = keys.end(kv_tile);
    if constexpr (AlongQ)
      q_fields = of.row(at, from, to);
    else
      kv_fields = of.col(at, kv_begin, kv_end);
    int verdict = None;
    if (of.may_keep(q_fields, kv_fields, at, from, to, kv_begin, kv_end))
      verdict = kv_begin + args.n > at.kv_len || of.may_drop(q_fields, kv_fields, at, from, to, kv_begin, kv_end) ? Some
                                                                                                                  : All;
    if constexpr (What == CoverForm::visits)
      if (verdict == Some) {
        const int middle = kv_begin + args.n / 2;
        const auto may_keep = [&](int begin, int end) {
          return begin < end && of.may_keep(q_fields, of.col(at, begin, end), at, from, to, begin, end);
        };
        if (!may_keep(middle, kv_end))
          verdict = FirstHalf;
        else if (!may_keep(kv_begin, middle))
          verdict = SecondHalf;
      }
    if (lane == 0) {
      verdicts[static_cast<long long>(t) * stride] = verdict;
      if (What == CoverForm::visits ? verdict != None : verdict == Some) atomicAdd(&counted, 1);
    }
  }
  __syncthreads();
  if (warp_id != 0) return;
  if constexpr (What == CoverForm::visits) {
    write_visits(verdicts, stride, tiles, counted, lane);
    if (lane == 0 && args.visited) atomicAdd(args.visited, static_cast<unsigned>(counted));
  } else {
    write_lists(row, verdicts, tiles, counted, lane);
  }
  wait_for_kernel_before();
}

}  // namespace attune
