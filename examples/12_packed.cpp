// examples/12_packed.cpp — packed sequences of different lengths, with their starts on the tensors' device
#include <attune/attune.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace attune;

namespace {

/// A GPU if there is one; the same program also runs on the host.
Device gpu_or_cpu() try {
  Device::cuda().array<float>({1});
  return Device::cuda();
} catch (const Error& e) {
  std::printf("on the host: %s\n", e.why.c_str());
  return Device::cpu();
}

}  // namespace

int main() {
  constexpr int heads = 4, d = 64, longest = 200;
  const std::vector<int> lengths{70, longest, 1, 0, 129};
  const Device host = Device::cpu(), device = gpu_or_cpu();
  const auto on_host = host.array<int>({static_cast<std::int64_t>(lengths.size()) + 1});
  for (std::size_t i = 0; i < lengths.size(); ++i) on_host.data()[i + 1] = on_host.data()[i] + lengths[i];
  const int total = on_host.data()[lengths.size()];
  std::mt19937 dice(12);
  const auto filled = [&] {
    const auto out = host.array<bf16>({total, heads, d});
    for (bf16& x : out.values()) x = std::normal_distribution<float>()(dice);
    return out;
  };
  const auto q_here = filled(), k_here = filled(), v_here = filled();
  const auto q = q_here.on(device), k = k_here.on(device), v = v_here.on(device),
             o = device.array<bf16>({total, heads, d});
  const Attention attention{.score = mods::softcap(30), .mask = mods::causal()};
  // [packed]
  const auto starts = on_host.on(device);  // 0, 70, 270, 271, 271, 400
  attention.run({.q = q,
                 .k = k,
                 .v = v,
                 .o = o,
                 .cu_seqlens_q = starts,
                 .cu_seqlens_kv = starts,
                 .max_q_len = longest,
                 .max_kv_len = longest});
  // [packed]

  // Each sequence has the result it has alone: positions begin at 0 in each, and no sequence sees another.
  const auto packed = o.on(host);
  bool right = true;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const int n = lengths[i], row = heads * d;
    const auto alone = [&](const Array<bf16>& of) {
      return Tensor(of.data() + on_host.data()[i] * row, DType::bf16, {1, heads, n, d}, {n * row, d, row, 1});
    };
    const auto own = host.array<bf16>({1, heads, n, d});
    attention(alone(q_here), alone(k_here), alone(v_here), own);
    for (int h = 0; h < heads; ++h)
      for (int p = 0; p < n; ++p)
        for (int x = 0; x < d; ++x) {
          const float got = packed.data()[(on_host.data()[i] + p) * row + h * d + x];
          const float wanted = own.data()[(h * n + p) * d + x];
          right &= std::fabs(got - wanted) <= 0.02f + std::fabs(wanted) / 64;
        }
  }
  std::puts(right ? "ok" : "wrong");
}
