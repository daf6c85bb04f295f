// codegen/cuda/parts/softmax_sm80.cuh — the portable kernels' online softmax: with a running maximum, or with none
#pragma once

#include "codegen/cuda/parts/kept_words.cuh"
#include "codegen/cuda/parts/products_sm80.cuh"
#include "codegen/cuda/parts/row.cuh"

namespace attune {

/// The softmax of the 2 Tall rows of a thread. Running: P = exp2(S - max), where max is the row's maximum so far, or
/// less by up to Slack; otherwise P = exp2(S - User::traits.most). Heads: as in queries_of, or 16: then the two rows of
/// each 16 belong to two heads.
template <class User, bool Running, int Tall, int Slack, int Heads>
struct Softmax80 {
  using Head = typename User::Head;
  using Row = typename User::Row;
  using Col = typename User::Col;

  static constexpr int own = Heads > 8 ? 2 : 1;  ///< heads of a thread's rows
  struct OfHead {
    Where at;
    Head head;
    float factor;  ///< from the unit of `top` to exponents
  };

  const User& user;
  int origin;  ///< a coordinate near the rows
  OfHead of_head[own];
  int q[Tall][2];
  Row row[Tall][2];
  float top[Tall][2];
  float sum[Tall][2];  ///< this thread's part of the row's sum

  /// The thread's rows are every eighth, the first one for query `first`; rows past the end repeat the last query. With
  /// 16 heads, a thread's second rows belong to head `second`.
  __device__ Softmax80(const User& user, Where at, int first, int q_offset, int origin, int second = 0)
      : user(user), origin(origin) {
#pragma unroll
    for (int i = 0; i < own; ++i) {
      if (i > 0) at.h = second;
      const Head head = user.head(at);
      of_head[i] = {at, head, factor_of(user, head)};
    }
#pragma unroll
    for (int t = 0; t < Tall; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        q[t][r] = min(first + (16 * t + 8 * r) / Heads, at.q_len - 1) + q_offset;
        row[t][r] = user.row(head(r), this->at(r), q[t][r]);
      }
    start();
  }

  /// The head of a thread's first rows (r = 0) or second rows (r = 1).
  __device__ const Where& at(int r = 0) const { return of_head[own == 1 ? 0 : r].at; }
  __device__ const Head& head(int r = 0) const { return of_head[own == 1 ? 0 : r].head; }
  __device__ float factor(int r) const { return of_head[own == 1 ? 0 : r].factor; }

  __device__ void start() {
#pragma unroll
    for (int t = 0; t < Tall; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[t][r] = Running ? -infinity : User::traits.most;
        sum[t][r] = 0;
      }
  }

  /// Turns q . k into exponents (unchanged if User::traits.scaled), masked-out pairs into -inf. `kv` is the thread's
  /// first column. Partial: some pairs may be masked out or lie past the last key.
  template <bool Partial, int N>
  __device__ void exponents(Fragment<Tall, N>& s, int kv) const {
    if constexpr (!User::traits.scaled || Partial) {
#pragma unroll
      for (int i = 0; i < N / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = kv + 8 * i + e;
          // Keys past the end read the last key's fields.
          const int key = Partial ? min(column, at().kv_len - 1) : column;
          // Two variables, not an array: an array would change the code of kernels with one head.
          const Col first = user.col(head(), at(), origin, key),
                    second = own == 1 ? first : user.col(head(1), at(1), origin, key);
#pragma unroll
          for (int t = 0; t < Tall; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              float& x = s[t][i][2 * r + e];
              if constexpr (!User::traits.scaled)
                x = user.exponent(x, head(r), row[t][r], own > 1 && r > 0 ? second : first, at(r), origin, q[t][r],
                                  key);
              if constexpr (Partial) {
                const Reach<User> reach(user, head(r), row[t][r], at(r), q[t][r], kv);
                bool kept = reach.holds(8 * i + e);
                if constexpr (User::traits.has_keep)
                  kept = kept && user.keep(head(r), row[t][r], own > 1 && r > 0 ? second : first, at(r), q[t][r], key);
                x = kept ? x : -infinity;
              }
            }
        }
    }
  }

  /// P = exp2(S - max), added to the rows' sums. If this returns true, earlier sums of P V have to be multiplied by
  /// `lift`.
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
            x = power_of_two(x * factor(r) - under);
            add += x;
          }
        sum[t][r] += add;
      }
    return moved;
  }

  /// Applies a prob mod that has a degree. 0 stays 0, even if a factor is infinite or NaN.
  template <int N>
  __device__ void prob(Fragment<Tall, N>& p, int kv) const {
    if constexpr (User::traits.drops)
      drop<N>(p, kv);
    else
      each<N>(p, kv, [&](float x, const Row& row, const Col& col, int q, int kv, int, int r) {
        return x == 0.0f ? 0.0f : user.prob(x, head(r), row, col, at(r), q, kv);
      });
  }

  /// P = exp2(S - max) / sum with known maxima and sums, then the prob mod.
  template <int N>
  __device__ void probabilities(Fragment<Tall, N>& s, int kv, const Ended (&ended)[Tall][2]) const {
    each<N>(s, kv, [&](float x, const Row& row, const Col& col, int q, int kv, int t, int r) {
      const float p = power_of_two(x * factor(r) - base(t, r)) * ended[t][r].factor;
      return x == -infinity ? 0.0f : user.prob(p, head(r), row, col, at(r), q, kv);
    });
  }

  /// The sum and maximum over the keys visited so far.
  __device__ RowPartial part(int t, int r) const {
    return {row_sum(sum[t][r]), Running ? top[t][r] * factor(r) : User::traits.most};
  }
  __device__ Ended end(int t, int r) const {
    return end_of_row<User>(user, head(r), row[t][r], at(r), origin, q[t][r], part(t, r));
  }

 private:
  /// Dropout.
  template <int N>
  __device__ void drop(Fragment<Tall, N>& p, int kv) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, mine = lane & 1;
    const KeptDraws<User> draws(user, head(mine), at(mine));
#pragma unroll
    for (int t = 0; t < Tall; ++t) {
      KeptByQueries<N> kept;
      kept.template draw<false>(draws, mine ? q[t][1] : q[t][0], kv - 2 * (lane & 3), lane);
#pragma unroll
      for (int i = 0; i < N / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float& x = p[t][i][2 * r + e];
            x = kept.holds(i, r, e) ? x * user.drop_factor(head(r)) : 0.0f;
          }
    }
  }

  /// Updates the rows' maxima if any maximum of the warp has risen by more than Slack, which is rare after the first
  /// few tiles. Powers up to 2^Slack are as accurate as powers below 1.
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
        moved |= x * factor(r) > top[t][r] * factor(r) + Slack;
      }
    moved = __any_sync(~0u, moved);
    if (moved)
#pragma unroll
      for (int t = 0; t < Tall; ++t)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float before = top[t][r] * factor(r);
          top[t][r] = fmaxf(top[t][r], row_max(most[t][r]));
          lift[t][r] = power_of_two(before - base(t, r));
          sum[t][r] *= lift[t][r];
        }
    return moved;
  }

  /// The exponent that a row's powers are relative to: 0 while all exponents are -inf.
  __device__ float base(int t, int r) const {
    if constexpr (!Running) return User::traits.most;
    return top[t][r] == -infinity ? 0.0f : top[t][r] * factor(r);
  }

  template <int N, class Fn>
  __device__ void each(Fragment<Tall, N>& p, int kv, Fn fn) const {
#pragma unroll
    for (int i = 0; i < N / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // Keys past the end have p = 0 and read the last key's fields.
        const int key = min(kv + 8 * i + e, at().kv_len - 1);
        const Col first = user.col(head(), at(), origin, key),
                  second = own == 1 ? first : user.col(head(1), at(1), origin, key);
#pragma unroll
        for (int t = 0; t < Tall; ++t)
#pragma unroll
          for (int r = 0; r < 2; ++r)
            p[t][i][2 * r + e] = fn(p[t][i][2 * r + e], row[t][r], own > 1 && r > 0 ? second : first, q[t][r], key, t,
                                    r);
      }
  }
};

}  // namespace attune
