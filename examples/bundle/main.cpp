// examples/bundle/main.cpp — a program with its kernels in it: it compiles nothing, and needs no compiler
#include <attune/attune.h>

#include <cmath>
#include <cstdio>
#include <random>

using namespace attune;

// [embedded]
extern "C" const std::byte kernels_begin[], kernels_end[];  // kernels.attune, which attune_add_bundle made

void use_kernels() {
  offline::jit(false);
  offline::load_bytes({kernels_begin, kernels_end});
}
// [embedded]

int main() {
  use_kernels();
  const Device cpu = Device::cpu();
  auto q = cpu.array<float>({1, 8, 128, 64}), k = cpu.array<float>({1, 2, 128, 64}),
       v = cpu.array<float>({1, 2, 128, 64}), o = cpu.array<float>({1, 8, 128, 64}),
       exact = cpu.array<float>({1, 8, 128, 64});
  auto slope = cpu.array<float>({8}, "slope");
  std::mt19937 dice(7);
  for (auto& t : {q, k, v})
    for (float& x : t.values()) x = std::normal_distribution<float>()(dice);
  for (int h = 0; h < 8; ++h) slope.data()[h] = std::exp2(-static_cast<float>(h + 1));

  // The same expressions as in kernels.json.
  Attention attention{.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); },
                      .mask = [](At at) { return at.kv <= at.q; }};
  attention(q, k, v, o);

  attention.target = Target::oracle;
  attention(q, k, v, exact);
  float worst = 0;
  for (std::size_t i = 0; i < o.values().size(); ++i)
    worst = std::fmax(worst, std::fabs(o.values()[i] - exact.values()[i]));

  // The bundle holds no kernel for any other expression.
  attention.target = Target::automatic;
  attention.mask = [](At at) { return at.kv < at.q + 2; };
  try {
    attention(q, k, v, o);
  } catch (const Error& e) {
    std::printf("%s\n", e.what());
    std::puts(worst < 1e-5f && e.code == "kernel-missing" ? "ok" : "wrong");
  }
}
