// codegen/cuda/forward_sm90/softmax.cuh — the softmax of a consumer warpgroup of Hopper's forward
#pragma once

#include "codegen/cuda/forward_sm90/scores.cuh"

namespace attune {

template <class Tile, class User>
struct ForwardSoftmax90 : ForwardScores90<Tile, User> {
  using Scores = ForwardScores90<Tile, User>;
  using Scores::ahead, Scores::args, Scores::at, Scores::below, Scores::factor, Scores::fixed, Scores::head, Scores::l,
      Scores::lean, Scores::leads, Scores::led, Scores::lift, Scores::m, Scores::moved, Scores::o, Scores::peak,
      Scores::q0, Scores::s;
  using Scores::each, Scores::remove;
  using typename Scores::Element;

  /// True if all rows' maxima are known, so that powers can be relative to them.
  __device__ bool ready(bool recomputing) const {
    return recomputes<Tile, User> && !recomputing && !__any_sync(~0u, m[0] == -infinity || m[1] == -infinity);
  }

  /// P = exp2(S - max), not yet divided by the sum; updates the rows' maxima.
  __device__ void softmax(bool first) {
    float top[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
    each([&](int i, int r, int e) { top[r][e] = fmaxf(top[r][e], s[4 * i + 2 * r + e]); });
    float most[2] = {fmaxf(top[0][0], top[0][1]), fmaxf(top[1][0], top[1][1])};
    float parts[2][2] = {}, base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(below_maximum(scaled(row_max(most[r]))), m[r]);
      base[r] = most[r] == -infinity ? 0.0f : most[r];
      if (!first) lift[r] = power_of_two(m[r] - base[r]);
      m[r] = most[r];
      if constexpr (leads) peak[r] = fmaxf(peak[r], ahead[r]);
    }
    moved = true;
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = power_of_two(scaled(x) - base[r]);
      parts[r][e] += x;
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = parts[r][0] + parts[r][1];
      l[r] = first ? sum : l[r] * lift[r] + sum;
    }
  }
  /// The exponent that powers of a row with this maximum are relative to.
  __device__ static float below_maximum(float top) {
    if constexpr (most_exponent<Element> == 0) {
      return top;
    } else {
      // If `top` is so large that the subtraction rounds to more, powers are relative to `top` itself.
      const float below = top - most_exponent<Element>;
      return top - below > most_exponent<Element> ? top : below;
    }
  }
  __device__ float scaled(float x) const { return User::traits.scaled ? x * factor : x; }

  /// Raises the maxima before powers() of a tile whose term() may be larger than before, so that no power overflows for
  /// it. `by`: the factors of what is relative to them.
  __device__ void raise(float (&by)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float up = ahead[r] - peak[r];
      if (m[r] == -infinity || up >= 128) {  // nothing before is left: as if the largest s were 0
        m[r] = ahead[r];
        by[r] = 0;
      } else {
        m[r] += fmaxf(up, 0.0f);
        by[r] = power_of_two(-fmaxf(up, 0.0f));
      }
      peak[r] = fmaxf(peak[r], ahead[r]);
      l[r] *= by[r];
    }
  }
  /// True if a row's maximum was raised so high that its powers have lost digits.
  __device__ bool is_high() const {
    bool out = false;
    if constexpr (leads) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool there = q0 + below * r < this->q_end() && m[r] != -infinity;
        out |= row_sum(l[r]) < too_small<Element> && there;
      }
    }
    return out;
  }

  /// each() in another order, four scores of a row one after another, so that the assembler reuses a maximum whichever
  /// registers it chose. Kernels that are compiled as a whole were up to 1 % slower with it.
  template <class F>
  __device__ void each_power(const F& f) {
    if constexpr (!is_skeleton<User>) {
      each(f);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::n / 8; i += 2)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (i + j / 2 < Tile::n / 8) f(i + j / 2, r, j % 2);
    }
  }
  /// Powers relative to a maximum that is already known, so no score waits for another. A maximum that turns out to be
  /// too low is raised afterwards; if a power overflows, l ends up non-finite, and the tile is recomputed.
  __device__ void powers() {
    powers([&](int i, int r, int e) { return scaled(s[4 * i + 2 * r + e]); });
  }
  /// `exponent` gives that of a score, by its place.
  template <class F>
  __device__ void powers(const F& exponent) {
    constexpr float too_large = attune::too_large<Element>;
    float parts[2][2] = {}, sum[2];
    lift[0] = lift[1] = 1;
    moved = false;
    each_power([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = power_of_two(exponent(i, r, e) - (fixed ? most_of(this->user) : base_of(m[r])));
      parts[r][e] += x;
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = parts[r][0] + parts[r][1];
    if constexpr (!fixed) {
      moved = __any_sync(~0u, !(fmaxf(sum[0], sum[1]) < too_large));
      if (moved) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float total = row_max(sum[r]);
          if (!(total < too_large)) {
            float by = log2f(total);
            // A whole number, so that results that were exact in 8 bits stay exact.
            if constexpr (most_exponent<Element> != 0) by = ceilf(by - most_exponent<Element>);
            lift[r] = power_of_two(-by);
            m[r] += by;
          }
        }
        each([&](int i, int r, int e) { s[4 * i + 2 * r + e] *= lift[r]; });
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) l[r] = (l[r] + sum[r]) * lift[r];
  }
  /// What powers are relative to. With leads, a row without a maximum has no finite score.
  __device__ static float base_of(float m) { return leads && m == -infinity ? 0.0f : m; }

  __device__ void rescale() {
    if (!moved) return;
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i) o[i] *= lift[i / 2 % 2];
  }

  /// Applies the prob mod to P; dropout's factor is left to finish(), and drawn decisions to operand().
  template <bool Partial>
  __device__ void prob(int tile) {
    if constexpr (Scores::is_drawn)
      this->drawn.read(this->numbers, 64 * this->group + 16 * this->warp, this->lane);
    else if constexpr (User::traits.drops)
      each([&](int i, int r, int e) {
        float& x = s[4 * i + 2 * r + e];
        x = this->kept.holds(i, r, e) ? x : 0.0f;
      });
    else if constexpr (User::traits.has_prob)
      this->template each_pair<Partial>(tile, [&](float& x, const auto& mod, const auto& row, const auto& col, Int q,
                                                  Int kv) { x = mod.prob(x, head, row, col, at, q, kv); });
  }
  /// The first of two walks: adds the powers of a tile to its rows' sums.
  template <bool Partial>
  __device__ void add_up(int tile) {
    this->template exponents<Partial>(tile);
    if constexpr (Partial) remove(tile);
    if constexpr (fixed)
      powers();
    else
      softmax(false);
  }
  /// The second: P = prob(exp2(S - max) / sum). A pair that is masked out, in a full tile by a score of -inf, has 0,
  /// whatever prob(0) is.
  template <bool Partial>
  __device__ void probabilities(int tile) {
    this->template exponents<Partial>(tile);
    if constexpr (Partial) remove(tile);
    moved = false;
    const float under[2] = {fixed               ? most_of(this->user)
                            : m[0] == -infinity ? 0.0f
                                                : m[0],
                            fixed               ? most_of(this->user)
                            : m[1] == -infinity ? 0.0f
                                                : m[1]};
    constexpr float removed = -1;
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = x == -infinity ? removed : power_of_two(scaled(x) - under[r]) * this->per_power[r];
    });
    this->template each_pair<Partial>(tile,
                                      [&](float& x, const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
                                        x = x == removed ? 0.0f : mod.prob(x, head, row, col, at, q, kv);
                                      });
  }

  /// P of a tile. Partial: some of its pairs may be masked out.
  template <bool Partial>
  __device__ void weigh(int tile, bool first, bool recomputing) {
    if constexpr (two_walks<User>) return probabilities<Partial>(tile);
    if constexpr (fixed && Scores::has_tanh && !Partial) {
      // Together, so that the special-function unit computes powers while others compute polynomials.
      this->template by_tanh<false>(tile, [&](const auto& exponent) { powers(exponent); });
      return prob<false>(tile);
    }
    this->template exponents<Partial>(tile);
    if constexpr (Partial) remove(tile);
    constexpr bool guesses = leads && lean && !Partial;  // a maximum for rows without one
    const bool known = fixed || (!first && ready(recomputing));
    if (guesses || known) {
      const bool raises = leads && (led || !known);
      float by[2];
      if (raises) raise(by);
      powers();
      if (raises) {
#pragma unroll
        for (int r = 0; r < 2; ++r) lift[r] *= by[r];
        moved = true;
      }
    } else if constexpr (Partial || !lean) {
      softmax(first);
    } else {
      moved = false, l[0] = infinity;  // a row had no pair before: recomputed
    }
    prob<Partial>(tile);
  }
};

}  // namespace attune
