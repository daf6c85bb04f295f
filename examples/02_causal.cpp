// examples/02_causal.cpp — a mask: keys that a query may not see do not affect its result
#include <attune/attune.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

using namespace attune;

int main() {
  constexpr int n = 32, d = 8, seen = 20;
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({1, 2, n, d}), k = cpu.array<float>({1, 2, n, d}), v = cpu.array<float>({1, 2, n, d}),
             o = cpu.array<float>({1, 2, n, d});
  std::mt19937 dice(2);
  std::normal_distribution<float> normal;
  for (const auto& t : {q, k, v})
    for (float& x : t.values()) x = normal(dice);

  // [mask]
  const Mask causal = [](At at) { return at.kv <= at.q; };
  const Attention attention{.mask = causal};
  // [mask]
  attention(q, k, v, o);
  const std::vector<float> before(o.values().begin(), o.values().end());

  // Spoil the keys and values after the first `seen`: the first `seen` queries must not change, the others must.
  for (int x = seen * d; x < n * d; ++x) k.data()[x] = v.data()[x] = std::numeric_limits<float>::quiet_NaN();
  attention(q, k, v, o);
  const bool same = std::equal(before.begin(), before.begin() + seen * d, o.data());
  const bool noticed = std::all_of(o.data() + seen * d, o.data() + n * d, [](float x) { return x != x; });
  std::printf("%s: %d of %d queries see no NaN\n", same && noticed ? "ok" : "wrong", seen, n);
}
