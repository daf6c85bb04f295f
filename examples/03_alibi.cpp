// examples/03_alibi.cpp — your own score and mask: ALiBi under a softcap, causal within documents
#include <attune/attune.h>

#include <cmath>
#include <cstdio>
#include <random>

using namespace attune;

int main() {
  const Device cpu = Device::cpu();
  auto q = cpu.array<float>({2, 4, 64, 16}), k = cpu.array<float>({2, 2, 64, 16}), v = cpu.array<float>({2, 2, 64, 16}),
       o = cpu.array<float>({2, 4, 64, 16}), lse = cpu.array<float>({2, 4, 64});
  auto slope = cpu.array<float>({4}, "slope");
  auto doc = cpu.array<int>({64}, "doc");
  std::mt19937 dice(3);
  for (auto& t : {q, k, v})
    for (float& x : t.values()) x = std::normal_distribution<float>()(dice);
  for (int h = 0; h < 4; ++h) slope.data()[h] = std::exp2(-2.0f * static_cast<float>(h + 1));
  for (int i = 0; i < 64; ++i) doc.data()[i] = i / 24;

  // [attention]
  // Two tensors: slope holds a number for each head, doc the document that each position belongs to.
  const Score alibi = [=](Float s, At at) { return s + slope[at.head] * (at.kv - at.q); };
  const Mask causal = [](At at) { return at.kv <= at.q; };
  const Mask inside = [=](At at) { return doc[at.q] == doc[at.kv]; };

  const Attention attention{.score = alibi | mods::softcap(30), .mask = causal && inside};

  attention.run({.q = q, .k = k, .v = v, .o = o, .lse = lse});  // the first call compiles, later ones only run
  std::puts(attention.explain().c_str());
  // [attention]

  // The first token of a document sees itself alone: its output is its value. A capped score bounds every lse.
  bool right = true;
  for (int x = 0; x < 16; ++x)
    for (int i : {0, 24, 48}) right &= o.data()[(7 * 64 + i) * 16 + x] == v.data()[(3 * 64 + i) * 16 + x];
  for (float x : lse.values()) right &= std::fabs(x) <= 30 + std::log(24.0f);
  std::puts(right ? "ok" : "wrong");
}
