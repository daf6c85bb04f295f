// examples/04_documents.cpp — packed sequences, and the same sequences as one long row under a document mask
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

using namespace attune;

int main() {
  constexpr int tokens = 60, heads = 2, d = 8;
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({tokens, heads, d}), k = cpu.array<float>({tokens, heads, d}),
             v = cpu.array<float>({tokens, heads, d}), packed = cpu.array<float>({tokens, heads, d}),
             dense = cpu.array<float>({tokens, heads, d});
  std::mt19937 dice(4);
  std::normal_distribution<float> normal;
  for (const auto& t : {q, k, v})
    for (float& x : t.values()) x = normal(dice);

  // [documents]
  const auto starts = cpu.array<int>({4}), doc = cpu.array<int>({tokens}, "doc");
  std::ranges::copy(std::array{0, 10, 37, tokens}, starts.data());
  for (int i = 0; i < tokens; ++i) doc.data()[i] = (i >= 10) + (i >= 37);

  const Attention each{.score = mods::softcap(5), .mask = mods::causal()};
  each.run({.q = q, .k = k, .v = v, .o = packed, .cu_seqlens_q = starts, .cu_seqlens_kv = starts});

  const Attention all{.score = each.score, .mask = mods::causal() && mods::document(doc)};
  const auto long_row = [](const Array<float>& t) {  // [T, H, D] seen as [1, H, T, D]
    return Tensor(t.data(), DType::f32, {1, heads, tokens, d}, {0, d, heads * d, 1});
  };
  all(long_row(q), long_row(k), long_row(v), long_row(dense));
  // [documents]

  const bool same = std::ranges::equal(packed.values(), dense.values());
  std::printf("%s: packed and masked results are %s\n", same ? "ok" : "wrong", same ? "the same bits" : "different");
}
