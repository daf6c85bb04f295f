// codegen/cuda/backward_sm80/visited_keys.cuh — the tiles of keys that a tile of queries visits, from the table of
// visits of a kernel with larger tiles
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/parts/entry.cuh"

namespace attune {

/// True for companions of a kernel whose tile lists are a table of visits: its tiles are visits_m queries by visits_n
/// keys.
template <class Tile>
constexpr bool reads_visits = requires {
  Tile::visits_m;
  Tile::visits_n;
};

/// Replaces a Walk, for whole warps. Callers ask for its tiles in rising order, each once; is_full() describes the last
/// one.
template <class Tile>
class VisitedKeys {
 public:
  int count = 0;

  /// `first`: the first query, of an entry that has it.
  __device__ VisitedKeys(const Entries& of, const Entry& entry, Where at, int first)
      : stride_(of.tile_stride), tiles_((entry.keys.length + visits_n - 1) / visits_n),
        end_((entry.keys.length + Tile::n - 1) / Tile::n) {
    const int head = (of.tile_batches == 1 ? 0 : at.b) * of.tile_heads + (of.tile_heads == 1 ? 0 : at.h),
              rows = (of.kv_len + visits_n - 1) / visits_n, last = min(first + Tile::m, entry.queries.length) - 1;
    words_ = of.tiles + static_cast<long long>(head) * rows * stride_ + first / Tile::visits_m;
    spans_two_ = last / Tile::visits_m > first / Tile::visits_m;
    for (int t = 0; t < tiles_; t += 32) {
      const int visited = __popc(parts(t + lane()) & all_parts);
#pragma unroll
      for (int bit = 1; bit <= of_visit; bit *= 2) count += bit * __popc(__ballot_sync(~0u, (visited & bit) != 0));
    }
  }

  __device__ int tile(int i) {
    if (i > nth_) {
      nth_ = i;
      advance();
    }
    return at_;
  }
  __device__ bool is_full(int) const { return (now_ & whole) != 0; }

 private:
  static constexpr int visits_n = Tile::visits_n, of_visit = visits_n / Tile::n;
  static_assert(visits_n % Tile::n == 0 && of_visit % 2 == 0 && Tile::m <= Tile::visits_m);
  static constexpr unsigned all_parts = (1u << of_visit) - 1, first_half = (1u << of_visit / 2) - 1, whole = 1u << 31;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ static unsigned parts_of(unsigned visit) {
    if (visit == 0) return 0;
    switch (visit & Visit::kept) {
      case Visit::whole: return all_parts | whole;
      case Visit::first_half: return first_half;
      case Visit::second_half: return all_parts & ~first_half;
      default: return all_parts;
    }
  }
  /// A bit for each tile of keys within this tile of the table that is visited; and whether no pair is masked out.
  __device__ unsigned parts(int t) const {
    if (t >= tiles_) return 0;
    const int* const at = words_ + static_cast<long long>(t) * stride_;
    unsigned out = parts_of(static_cast<unsigned>(__ldg(at)));
    if (spans_two_) {
      const unsigned other = parts_of(static_cast<unsigned>(__ldg(at + 1)));
      out = ((out | other) & all_parts) | (out & other & whole);
    }
    // Tiles past the last key.
    const int left = end_ - t * of_visit;
    return left < of_visit ? out & (whole | ((1u << left) - 1)) : out;
  }
  __device__ void advance() {
    do {
      ++at_;
      if (at_ % of_visit != 0) continue;
      int t = at_ / of_visit;
      unsigned any = 0;
      for (;; t += 32) {
        any = __ballot_sync(~0u, parts(t + lane()) != 0);
        if (any != 0 || t >= tiles_) break;
      }
      t += __ffs(static_cast<int>(any)) - 1;
      at_ = t * of_visit;
      now_ = parts(t);
    } while (!(now_ >> at_ % of_visit & 1));
  }

  const int* words_;  ///< of these queries and the first keys
  int stride_, tiles_, end_;
  bool spans_two_;  ///< the queries lie in two tiles of the table
  int nth_ = -1, at_ = -1;
  unsigned now_ = 0;
};

}  // namespace attune
