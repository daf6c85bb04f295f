// codegen/cuda/decode_sm80/epilogue.cuh — the epilogue of decode_sm80.cuh: combines each row's parts of all warps and
// blocks, and stores the result
#pragma once

#include "codegen/cuda/decode_sm80/ring.cuh"
#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

template <class Tile, class User>
struct DecodeEpilogue {
  using Out = typename Tile::Out;
  using Shared = SharedDecode<Tile>;
  static constexpr int heads = Tile::heads, threads = 32 * Tile::warps;

  const DecodeArgs& args;
  const User& user;
  const unsigned shared;
  const DecodeTile of;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rows;  ///< rows of this tile that exist

  __device__ DecodeEpilogue(const DecodeArgs& args, const User& user, unsigned shared, const DecodeTile& of)
      : args(args), user(user), shared(shared), of(of), rows(of.queries.length * heads) {}

  /// Stores the results of a tile if `whole`; otherwise stores the sums of a part of its keys, which the last block to
  /// finish adds up. `nth`: the split's number; without fixed splits, 0 for the tile's first part.
  __device__ void store(const float (&o)[Tile::dv / 8][4], const RowPartial (&part)[2], bool whole,
                        SplitTile split_tile, int nth) {
    if (lane % 4 == 0)
#pragma unroll
      for (int r = 0; r < 2; ++r) parts_met()[warp * Tile::m + 8 * r + lane / 4] = part[r];
    const int block = static_cast<int>(blockIdx.x);
    float* const into = whole                   ? nullptr
                        : has_fixed_split<Tile> ? part_of(split_tile, nth)
                                                : slot_of(nth == 0 ? 2 * block + 1 : 2 * block);
    if (whole) read_before();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (8 * r >= rows) break;
      if (r > 0) __syncthreads();
      put_side_by_side(o, r);
      __syncthreads();
      each(8 * r, min(rows - 8 * r, 8), [&](int row, int column) {
        const PartOfRow all = of_warps(row, column);
        if (whole) return finish(row, column, all);
        if (is_clustered()) return keep(row, column, all);
        *reinterpret_cast<float4*>(into + row * Tile::dv + column) = {all.o[0], all.o[1], all.o[2], all.o[3]};
        if (column == 0) parts_in(into)[row] = all.part;
      });
    }
    if (!whole) is_clustered() ? join_cluster(split_tile) : join(split_tile);
    __syncthreads();
  }

  /// Writes eight rows of every warp's results, next to each other.
  __device__ void put_side_by_side(const float (&o)[Tile::dv / 8][4], int r) const {
    // Missing rows are not read either.
    if (8 * r + lane / 4 < rows) {
      float* const mine = met() + (warp * Shared::at.met_rows + lane / 4) * Shared::at.met_pitch +
                          (Tile::fp8_kv ? 4 : 2) * (lane & 3);
      if constexpr (Tile::fp8_kv) {
        // The even columns of sixteen come first, then the odd ones.
#pragma unroll
        for (int i = 0; i < Tile::dv / 8; i += 2)
          *reinterpret_cast<float4*>(mine + 8 * i) = {o[i][2 * r], o[i + 1][2 * r], o[i][2 * r + 1],
                                                      o[i + 1][2 * r + 1]};
      } else {
#pragma unroll
        for (int i = 0; i < Tile::dv / 8; ++i)
          *reinterpret_cast<float2*>(mine + 8 * i) = {o[i][2 * r], o[i][2 * r + 1]};
      }
    }
  }
  /// Four columns of a row, over all warps.
  __device__ PartOfRow of_warps(int row, int column) const {
    PartOfRow::Other warps[Tile::warps];
#pragma unroll
    for (int w = 0; w < Tile::warps; ++w)
      warps[w] = {
          *reinterpret_cast<const float4*>(met() + (w * Shared::at.met_rows + row % 8) * Shared::at.met_pitch + column),
          parts_met()[w * Tile::m + row]};
    PartOfRow all;
    all.add<User>(warps);
    return all;
  }

  /// The last block to arrive adds up the tile's parts.
  __device__ void join(SplitTile split_tile) {
    __syncthreads();
    int& last = *shared_as<int>(Shared::at.last);
    if (threadIdx.x == 0) {
      wait_for_kernel_before();
      __threadfence();
      last = atomicAdd(args.arrivals + split_tile.first, 1u) == static_cast<unsigned>(split_tile.count - 1);
      __threadfence();
    }
    __syncthreads();
    if (!last) return;
    if constexpr (has_before<Tile>) {
      read_before();
      __syncthreads();
    }
    each(0, rows, [&](int row, int column) {
      // Several parts load at a time.
      constexpr int batch = 8;
      PartOfRow all;
#pragma unroll 1
      for (int first = 0; first < split_tile.count; first += batch) {
        PartOfRow::Other some[batch];
#pragma unroll
        for (int i = 0; i < batch; ++i)
          if (const int nth = first + i; nth < split_tile.count) {
            const float* const from = part_of(split_tile, nth);
            some[i] = {__ldcg(reinterpret_cast<const float4*>(from + row * Tile::dv + column)),
                       __builtin_bit_cast(RowPartial, __ldcg(reinterpret_cast<const float2*>(parts_in(from) + row)))};
          }
        all.add<User>(some);
      }
      finish(row, column, all);
    });
  }

  __device__ bool is_clustered() const {
    return has_clusters && !has_fixed_split<Tile> && Tile::warps >= cluster_warps && args.paired != 0;
  }
  /// A part in this block's shared memory, with the layout of parts in global memory. It overwrites keys: no loads are
  /// in flight, because such a block has only one tile.
  __device__ unsigned kept_at(int floats) const {
    return shared + Shared::at.ring + static_cast<unsigned>(floats) * static_cast<unsigned>(sizeof(float));
  }
  __device__ void keep(int row, int column, const PartOfRow& all) const {
    const unsigned into = kept_at(row * Tile::dv + column);
    const auto bits = [](float x) { return __float_as_uint(x); };
    shared_put(into, bits(all.o[0]), bits(all.o[1]));
    shared_put(into + 8, bits(all.o[2]), bits(all.o[3]));
    if (column == 0) shared_put(kept_at(Tile::m * Tile::dv + 2 * row), bits(all.part.sum), bits(all.part.over));
  }
  /// The two blocks of a cluster hold the tile's parts in shared memory; each block adds up half of the results.
  __device__ void join_cluster(SplitTile split_tile) {
    static_assert(Tile::m * (Tile::dv + 2) * static_cast<int>(sizeof(float)) <= Shared::at.met ||
                  Tile::warps < cluster_warps);
    // The other block may store a row's lse where lse_before is, so lse_before is read first.
    read_before();
    meet_cluster();
    constexpr int fours = Tile::dv / 4;
    const int each = (rows * fours + 1) / 2, first = (static_cast<int>(blockIdx.x) - split_tile.first) * each,
              last = min(first + each, rows * fours);
    for (int i = first + static_cast<int>(threadIdx.x); i < last; i += threads) {
      const int row = i / fours, column = i % fours * 4;
      PartOfRow::Other both[2];
#pragma unroll
      for (int nth = 0; nth < 2; ++nth) {
        const auto of_block = [&](int floats) { return shared_of(kept_at(floats), nth); };
        both[nth] = {load_cluster(of_block(row * Tile::dv + column)),
                     __builtin_bit_cast(RowPartial, load_cluster_pair(of_block(Tile::m * Tile::dv + 2 * row)))};
      }
      PartOfRow all;
      all.add<User>(both);
      finish(row, column, all);
    }
    // The other block may still read this block's part.
    meet_cluster();
  }

  /// Calls fn(row, column) for four columns of each row, shared among the threads.
  template <class Fn>
  __device__ void each(int first, int count, Fn fn) const {
    constexpr int fours = Tile::dv / 4;
    for (int i = static_cast<int>(threadIdx.x); i < count * fours; i += threads) fn(first + i / fours, i % fours * 4);
  }

  /// Stores four columns of a row, summed over all keys.
  __device__ void finish(int row, int column, const PartOfRow& all) const {
    const int nth = row % heads, query = row / heads;
    if (nth >= of.heads.count) return;
    const int h = of.heads.first + nth, q = of.q_offset + query, position = of.queries.start + query;
    const Where at = of.at(h);
    const auto head = user.head(at);
    const Ended ended = end_of_row<User>(user, head, user.row(head, at, q), at, of.q_offset, q, all.part);
    const Finished by = attune::finish<Tile>(ended, has_before<Tile> ? before_met()[row] : -infinity);
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = result<Tile>(args, by, all.o[i], of.b, h, position, column + i);
    put_results<Tile>(args.o, of.b * args.o.batch + h * args.o.head + position * args.o.position, column, x);
    if (column > 0) return;
    put_of_row(args.lse, of.b, h, position, by.lse);
    if constexpr (Tile::max) put_of_row(args.max, of.b, h, position, ended.max);
  }

  /// Reads each row's lse_before, before a thread overwrites it with the lse of all keys.
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
  __device__ float* met() const { return shared_as<float>(Shared::at.met); }
  __device__ RowPartial* parts_met() const { return shared_as<RowPartial>(Shared::at.parts); }
  __device__ float* before_met() const { return shared_as<float>(Shared::at.before); }

  /// A part in memory: results of every row that a tile may have, then the rows' sums.
  __device__ int part_rows() const { return args.q_len * heads; }
  __device__ float* slot_of(int nth) const {
    return args.parts + static_cast<long long>(nth) * part_rows() * (Tile::dv + part_floats);
  }
  __device__ float* part_of(SplitTile split_tile, int nth) const {
    if constexpr (has_fixed_split<Tile>)
      return slot_of(split_tile.first * further(args).splits + nth);
    else
      return slot_of(2 * (split_tile.first + nth) + (nth == 0));
  }
  __device__ RowPartial* parts_in(float* slot) const {
    return reinterpret_cast<RowPartial*>(slot + part_rows() * Tile::dv);
  }
  __device__ const RowPartial* parts_in(const float* slot) const {
    return reinterpret_cast<const RowPartial*>(slot + part_rows() * Tile::dv);
  }
};

}  // namespace attune
