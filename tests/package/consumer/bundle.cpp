// tests/package/consumer/bundle.cpp — a user's program whose kernels were compiled with it: it compiles nothing itself
#include <attune/attune.h>

#include <cstdio>

using namespace attune;

extern "C" const std::byte kernels_begin[], kernels_end[];

int main() {
  offline::jit(false);
  offline::load_bytes({kernels_begin, kernels_end});
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({1, 1, 9, 16}), k = cpu.array<float>({1, 1, 9, 16}),
             v = cpu.array<float>({1, 1, 9, 16}), o = cpu.array<float>({1, 1, 9, 16});
  for (float& x : v.values()) x = 3;
  const Attention causal{.mask = [](At at) { return at.kv <= at.q; }, .target = Target::cpu};
  causal(q, k, v, o);
  std::puts(o.values()[17] == 3 ? "ok" : "wrong");
}
