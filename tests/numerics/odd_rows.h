// tests/numerics/odd_rows.h — mods whose rows have p that underflow, scores of -inf next to NaN, or a sink far above
#pragma once

#include <attune/attune.h>

#include <limits>
#include <vector>

namespace attune::tests {

/// Random mods found each of these wrong on a GPU; the seeds are those of the random mods on emulated GPUs.
inline std::vector<Attention> odd_rows() {
  const auto of = [](float x) { return [x](SinkAt) { return Float(x); }; };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Prob half = [](Float, At) { return Float(0.5f); };
  // -inf for key 0, NaN for others.
  const Score hole = [](Float s, At at) { return s + log(f32(-at.kv)); };
  const Score gone = [](Float s, At at) { return where(at.kv >= 0, -std::numeric_limits<float>::infinity(), s); };
  const Score infinite = [](Float s, At at) { return s - log(f32(at.q % 3)); };
  return {
      // p underflows, and dv has prob(0): 21718, 20586.
      {.score = [](Float s, At at) { return s - 200 * f32(at.kv % 2); }, .prob = half},
      {.score = [](Float s, At) { return s - 100; },
       .prob = [](Float p, At at) { return p * p + 0.01f * f32(at.kv); },
       .sink = of(0)},
      // A removed pair of a row whose lse is NaN: 20489, 20902, 20187, 21497.
      {.score = hole},
      {.score = hole, .prob = half},
      {.score = gone, .sink = of(nan)},
      {.score = gone, .prob = half, .sink = of(nan)},
      // prob() hides infinite scores: 21187, 20547, 22444.
      {.score = infinite, .prob = half},
      {.score = infinite, .prob = [](Float, At) { return Float(0); }},
      // A p of 0 times NaN: 21835.
      {.prob = [](Float p, At at) { return p * sqrt(f32(-1 - at.kv)); }, .sink = of(1e7f)},
      // A row's constant far below its sink must not show in lse: 22587. The exponent's rounding: 20467.
      {.score = [](Float, At) { return Float(-88.8f); }, .sink = of(0.2924813f)},
      {.sink = of(30)},
      // A comparison that every number passes, and no NaN: 910083. The argument is NaN from key 2 on.
      {.score = [](Float s, At at) { return where(exp2(s + log(f32(1 - at.kv))) >= -0.4f, s, -s); }},
  };
}

}  // namespace attune::tests
