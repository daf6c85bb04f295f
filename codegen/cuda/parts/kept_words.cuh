// codegen/cuda/parts/kept_words.cuh — which pairs dropout keeps, drawn 32 at a time and exchanged between lanes
#pragma once

#include "codegen/cuda/contract/mod.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"

namespace attune {

/// The decisions of one head.
template <class User>
struct KeptDraws {
  Int seed, share, b, h;

  __device__ KeptDraws(const User& user, const typename User::Head& head, Where at)
      : seed(user.drop_seed(head, at)), share(user.drop_share(head, at)), b(at.b), h(at.h) {}
  __device__ FourWords block(int q, unsigned nth) const { return words_of(seed, b, h, q, nth); }
  /// Of a query and 32 keys, from a multiple of 16 on.
  __device__ unsigned along(int q, unsigned kv) const {
    return kept_word(share, block(q, kv >> 4), block(q, (kv >> 4) + 1));
  }
  /// Of a query and 32 keys from any position on, unless `aligned`.
  template <bool aligned>
  __device__ unsigned from(int q, unsigned kv) const {
    if constexpr (aligned) return along(q, kv);
    unsigned low = 0, high = 0;
    // A loop, so that there is one copy of the code.
#pragma unroll 1
    for (unsigned more = 0; more <= ((kv & 15) > 0 ? 32 : 0); more += 32) {
      low = high;
      high = along(q, kv + more);
    }
    return (kv & 15) > 0 ? __funnelshift_r(low, high, kv & 15) : high;
  }
  /// Of two queries and the 16 keys of a block.
  __device__ unsigned across(int q, int other, unsigned kv) const {
    return kept_word(share, block(q, kv >> 4), block(other, kv >> 4));
  }
};

/// For scores of 16 queries by n keys: a lane has rows lane / 4 and that + 8, and columns 8 i + 2 (lane % 4) + e.
template <int n>
struct KeptByQueries {
  static constexpr int words = (n + 31) / 32;
  unsigned of_row[words][2];  ///< shifted, so that the lane's first column is bit 0

  /// The head and the query are those of this lane's row lane % 2. Keys begin at `kv`, at any position unless
  /// `aligned`: at a multiple of 16. The whole warp calls this.
  template <bool aligned, class User>
  __device__ void draw(const KeptDraws<User>& draws, int q, int kv, int lane) {
    // The four lanes that share rows take turns at drawing their words.
    unsigned mine[(2 * words + 3) / 4];
#pragma unroll
    for (int i = 0; i < (2 * words + 3) / 4; ++i)
      mine[i] = draws.template from<aligned>(q, static_cast<unsigned>(kv + 32 * (2 * i + (lane >> 1 & 1))));
#pragma unroll
    for (int nth = 0; nth < 2 * words; ++nth)
      of_row[nth / 2][nth % 2] = __shfl_sync(~0u, mine[nth / 4], (lane & ~3) | nth % 4) >> 2 * (lane & 3);
  }
  __device__ bool holds(int i, int r, int e) const { return of_row[i / 4][r] & 1u << (8 * (i % 4) + e); }
};

/// None.
template <>
struct KeptByQueries<0> {};

/// For scores of 16 keys by m queries: a lane has rows lane / 4 and that + 8, and columns 8 i + 2 (lane % 4) + e.
template <int m>
struct KeptByKeys {
  static constexpr int words = (m + 63) / 64;
  unsigned of_queries[words];  ///< of 16 columns: for the first eight, a byte of each row; then for the others

  /// `q`: of this lane's first column. Keys begin at `kv`, a multiple of 16. The whole warp calls this.
  template <class User>
  __device__ void draw(const KeptDraws<User>& draws, int q, int kv, int lane) {
#pragma unroll
    for (int j = 0; j < words; ++j) {
      // The eight lanes that share queries draw two of them each, for all keys. In each byte, bit k of lane g becomes
      // bit g of lane k.
      const int query = q + 64 * j + (lane >> 3) * 8 + (lane >> 2 & 1);
      unsigned x = draws.across(query, query + 32, static_cast<unsigned>(kv));
#pragma unroll
      for (int d = 1; d < 8; d *= 2) {
        const unsigned low = d == 1 ? 0x55555555u : d == 2 ? 0x33333333u : 0x0f0f0f0fu;
        const unsigned other = __shfl_xor_sync(~0u, x, 4 * d);
        x = lane & 4 * d ? (x & ~low) | (other >> d & low) : (x & low) | (other << d & ~low);
      }
      of_queries[j] = x;
    }
  }
  /// Masks are computed again afterwards. Otherwise the assembler keeps those of before, which takes registers (D=64:
  /// 292 bytes spilled); an exchange with itself is what it does not see through.
  __device__ void forget(int lane) {
    for (unsigned& x : of_queries) x = __shfl_sync(~0u, x, lane);
  }
  /// All bits if the pair is kept, otherwise none: copies of its bit, as the sign of a byte.
  __device__ unsigned mask(int i, int e, int r) const {
    const int nth = 2 * i + e, byte = r + nth / 8 % 2 * 2;
    return copies_of_sign(of_queries[nth / 16] << (7 - nth % 8), byte);
  }
};
template <>
struct KeptByKeys<0> {};

}  // namespace attune
