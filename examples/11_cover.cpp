// examples/11_cover.cpp — a model's layers under one document mask: list the tiles once for all of them
#include <attune/attune.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

using namespace attune;

namespace {

/// A GPU if there is one; the same program also runs on the host, where its cover is empty.
Device gpu_or_cpu() try {
  Device::cuda().array<float>({1});
  return Device::cuda();
} catch (const Error& e) {
  std::printf("on the host: %s\n", e.why.c_str());
  return Device::cpu();
}

}  // namespace

int main() {
  constexpr int layers = 4, n = 300, d = 64;
  const Device host = Device::cpu(), device = gpu_or_cpu();
  std::mt19937 dice(11);
  const auto filled = [&](int heads) {
    const auto out = host.array<bf16>({1, heads, n, d});
    for (bf16& x : out.values()) x = std::normal_distribution<float>()(dice);
    return out.on(device);
  };
  const auto ids = host.array<int>({n}, "doc");
  for (int i = 0; i < n; ++i) ids.data()[i] = i / 100;
  const auto doc = ids.on(device);
  std::vector<Forward> calls;
  std::vector<Array<bf16>> q, k, v, o, each;
  for (int i = 0; i < layers; ++i) {
    q.push_back(filled(8)), k.push_back(filled(2)), v.push_back(filled(2));
    o.push_back(device.array<bf16>({1, 8, n, d})), each.push_back(device.array<bf16>({1, 8, n, d}));
    calls.push_back({.q = q.back(), .k = k.back(), .v = v.back(), .o = o.back()});
  }
  // [cover]
  const Attention attention{.mask = mods::causal() && mods::document(doc)};
  const Cover cover = attention.cover(calls[0]);
  for (const Forward& layer : calls) attention.run(layer, {.cover = cover});
  // [cover]
  bool same = true;
  for (std::size_t i = 0; i < layers; ++i) {
    attention(q[i], k[i], v[i], each[i]);
    const auto listed_once = o[i].on(host), listed_again = each[i].on(host);
    same &= std::ranges::equal(listed_once.values(), listed_again.values(), {}, &bf16::bits, &bf16::bits);
  }
  std::puts(same ? "ok" : "wrong");
}
