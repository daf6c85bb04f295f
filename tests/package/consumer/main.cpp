// tests/package/consumer/main.cpp — a user's program: the public headers compile, the libraries link, an engine runs
#include <attune/attune.h>

#include <cstdio>

using namespace attune;

int main() {
  const auto q = Device::cpu().array<float>({1, 1, 3, 4}), k = Device::cpu().array<float>({1, 1, 3, 4}),
             v = Device::cpu().array<float>({1, 1, 3, 4}), o = Device::cpu().array<float>({1, 1, 3, 4});
  for (float& x : v.values()) x = 2;
  const Mask causal = [](At at) { return at.q >= at.kv; };
  const Mask near = [](At at) { return at.q - at.kv < 1024; };
  Attention attention{.mask = causal && near, .target = Target::oracle};
  attention(q, k, v, o);
  const bool oracle = o.values()[11] == 2;
  try {
    attention.target = Target::automatic;
    attention(q, k, v, o);
    std::puts(oracle && o.values()[11] == 2 ? "ok" : "wrong");
  } catch (const Error& e) {
    std::puts(oracle ? e.code.c_str() : "wrong");
  }
}
