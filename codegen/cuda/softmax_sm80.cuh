// codegen/cuda/softmax_sm80.cuh — the portable kernel's softmax: a running maximum, or none, over the tiles of a walk
#pragma once

#include "products_sm80.cuh"
#include "softmax.cuh"

namespace attune {

/// The softmax of 2 Tall rows of a thread. Running: the power of each score is taken relative to the row's maximum so
/// far, or to one that is Slack less; else to User::traits.most. Heads: as queries_of has them.
template <class User, bool Running, int Tall, int Slack, int Heads>
struct Softmax80 {
  using Head = typename User::Head;
  using Row = typename User::Row;
  using Col = typename User::Col;

  const User& user;
  Where at;
  int origin;  ///< a coordinate near the rows
  Head head;
  float factor;  ///< makes what `top` is a maximum of an exponent
  int q[Tall][2];
  Row row[Tall][2];
  float top[Tall][2];
  float sum[Tall][2];  ///< this thread's part

  /// Every eighth row, the first one for query `first`; rows past the end repeat the last query.
  __device__ Softmax80(const User& user, Where at, int first, int q_offset, int origin)
      : user(user), at(at), origin(origin), head(user.head(at)), factor(factor_of(user, head)) {
#pragma unroll
    for (int t = 0; t < Tall; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        q[t][r] = min(first + (16 * t + 8 * r) / Heads, at.q_len - 1) + q_offset;
        row[t][r] = user.row(head, at, q[t][r]);
      }
    start();
  }

  __device__ void start() {
#pragma unroll
    for (int t = 0; t < Tall; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[t][r] = Running ? -infinity : User::traits.most;
        sum[t][r] = 0;
      }
  }

  /// q . k become exponents (stay as they are if User::traits.scaled), -inf where a pair is removed. `kv` is the
  /// thread's first column. Partial: some pairs may be removed, or lie beyond the last key.
  template <bool Partial, int N>
  __device__ void exponents(Fragment<Tall, N>& s, int kv) const {
    if constexpr (!User::traits.scaled || Partial) {
#pragma unroll
      for (int i = 0; i < N / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = kv + 8 * i + e;
          // Keys past the end are read as the last one.
          const int key = Partial ? min(column, at.kv_len - 1) : column;
          const Col col = user.col(head, at, origin, key);
#pragma unroll
          for (int t = 0; t < Tall; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              float& x = s[t][i][2 * r + e];
              if constexpr (!User::traits.scaled) x = user.exponent(x, head, row[t][r], col, at, origin, q[t][r], key);
              if constexpr (Partial) {
                const Reach<User> reach(user, head, row[t][r], at, q[t][r], kv);
                bool kept = reach.holds(8 * i + e);
                if constexpr (User::traits.has_keep) kept = kept && user.keep(head, row[t][r], col, at, q[t][r], key);
                x = kept ? x : -infinity;
              }
            }
        }
    }
  }

  /// Exponents become powers, which join the rows' sums. If this returns true, earlier sums of powers times values have
  /// to be multiplied by `lift`.
  template <int N>
  __device__ bool powers(Fragment<Tall, N>& s, float (&lift)[Tall][2]) {
    const bool moved = Running && raise<N>(s, lift);
#pragma unroll
    for (int t = 0; t < Tall; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float under = base(t, r);
        float add = 0;
#pragma unroll
        for (int i = 0; i < N / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[t][i][2 * r + e];
            x = power_of_two(x * factor - under);
            add += x;
          }
        sum[t][r] += add;
      }
    return moved;
  }

  /// A prob mod that is a multiple of p acts on powers. 0 stays 0, even if the factor is infinite or NaN.
  template <int N>
  __device__ void prob(Fragment<Tall, N>& p, int kv) const {
    each<N>(p, kv, [&](float x, const Row& row, const Col& col, int q, int kv, int, int) {
      return x == 0.0f ? 0.0f : user.prob(x, head, row, col, at, q, kv);
    });
  }

  /// Exponents become probabilities by the rows' known maxima and sums, and prob acts on these.
  template <int N>
  __device__ void probabilities(Fragment<Tall, N>& s, int kv, const Ended (&ended)[Tall][2]) const {
    each<N>(s, kv, [&](float x, const Row& row, const Col& col, int q, int kv, int t, int r) {
      const float p = power_of_two(x * factor - base(t, r)) * ended[t][r].factor;
      return x == -infinity ? 0.0f : user.prob(p, head, row, col, at, q, kv);
    });
  }

  /// What the keys that were visited come to.
  __device__ Part part(int t, int r) const {
    return {row_sum(sum[t][r]), Running ? top[t][r] * factor : User::traits.most};
  }
  __device__ Ended end(int t, int r) const {
    return end_of_row<User>(user, head, row[t][r], at, origin, q[t][r], part(t, r));
  }

 private:
  /// Updates the rows' maxima if any of the warp's has risen by more than Slack, which is rare after the first few
  /// tiles. Powers up to 2^Slack are as accurate as powers below 1.
  template <int N>
  __device__ bool raise(const Fragment<Tall, N>& s, float (&lift)[Tall][2]) {
    float most[Tall][2];
    bool moved = false;
#pragma unroll
    for (int t = 0; t < Tall; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = most[t][r];
        x = s[t][0][2 * r];
#pragma unroll
        for (int i = 0; i < N / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) x = fmaxf(x, s[t][i][2 * r + e]);
        moved |= x * factor > top[t][r] * factor + Slack;
      }
    moved = __any_sync(~0u, moved);
    if (moved)
#pragma unroll
      for (int t = 0; t < Tall; ++t)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float before = top[t][r] * factor;
          top[t][r] = fmaxf(top[t][r], row_max(most[t][r]));
          lift[t][r] = power_of_two(before - base(t, r));
          sum[t][r] *= lift[t][r];
        }
    return moved;
  }

  /// What a row's powers are relative to: 0 while all exponents are -inf.
  __device__ float base(int t, int r) const {
    if constexpr (!Running) return User::traits.most;
    return top[t][r] == -infinity ? 0.0f : top[t][r] * factor;
  }

  template <int N, class Fn>
  __device__ void each(Fragment<Tall, N>& p, int kv, Fn fn) const {
#pragma unroll
    for (int i = 0; i < N / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // Keys past the end have p = 0, and are read as the last one.
        const int key = min(kv + 8 * i + e, at.kv_len - 1);
        const Col col = user.col(head, at, origin, key);
#pragma unroll
        for (int t = 0; t < Tall; ++t)
#pragma unroll
          for (int r = 0; r < 2; ++r) p[t][i][2 * r + e] = fn(p[t][i][2 * r + e], row[t][r], col, q[t][r], key, t, r);
      }
  }
};

}  // namespace attune
