// examples/06_text.cpp — the same language as text: for configuration files, command lines, other languages
#include <attune/attune.h>

#include <algorithm>
#include <cstdio>
#include <random>

using namespace attune;

int main() {
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({1, 4, 32, 8}), k = cpu.array<float>({1, 4, 32, 8}),
             v = cpu.array<float>({1, 4, 32, 8}), from_text = cpu.array<float>({1, 4, 32, 8}),
             from_cpp = cpu.array<float>({1, 4, 32, 8});
  const auto slope = cpu.array<float>({4}, "slope");
  std::mt19937 dice(6);
  std::normal_distribution<float> normal;
  for (const auto& t : {q, k, v, slope})
    for (float& x : t.values()) x = normal(dice);

  // [text]
  Text text;
  text.capture("slope", slope).param("cap", 30.0f).let("distance", "f32(kv - q)");
  const Attention written{.score = text.score("cap * tanh((s + slope[h] * distance) / cap)"),
                          .mask = text.mask("kv <= q && q - kv < 12")};
  // [text]
  const Attention built{.score = mods::alibi(slope) | mods::softcap(30), .mask = mods::sliding_window(12)};
  written(q, k, v, from_text);
  built(q, k, v, from_cpp);
  bool refused = false;
  try {
    text.mask("kv <= w");
  } catch (const Error& e) {
    refused = e.code == "unknown-name";
  }
  std::puts(refused && std::ranges::equal(from_text.values(), from_cpp.values()) ? "ok" : "wrong");
}
