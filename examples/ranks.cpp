// examples/ranks.cpp — one attention over several ranks: each holds some positions, and gets the keys that it needs
#include <attune/attune.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace attune;

int main() {
  constexpr int count = 3, heads = 4, kv_heads = 2, length = 1500, d = 32;
  const Device host = Device::cpu();
  std::mt19937 dice(14);
  const auto filled = [&](int h) {
    const auto out = host.array<float>({1, h, length, d});
    for (float& x : out.values()) x = std::normal_distribution<float>()(dice);
    return out;
  };
  const auto q = filled(heads), k = filled(kv_heads), v = filled(kv_heads),
             o = host.array<float>({1, heads, length, d});
  const Attention attention{.score = mods::alibi(heads), .mask = mods::sliding_window(300)};
  attention(q, k, v, o);  // what one rank computes

  // [rank]
  // On every rank: the whole call, of which only the shapes count here, and a way to exchange bytes with the others.
  const Forward whole{.q = q, .k = k, .v = v};
  const auto on_rank = [&](const Transport& at) {
    const Sharding sharding(std::span(&attention, 1), whole, at);
    std::int64_t rows = 0;
    for (const Sharding::Range& s : sharding.of(at.rank)) rows += s.end - s.begin;
    const auto my_q = host.array<float>({1, heads, rows, d}), my_o = host.array<float>({1, heads, rows, d}),
               my_k = host.array<float>({1, kv_heads, rows, d}), my_v = host.array<float>({1, kv_heads, rows, d});
    // [rank]
    // Rows [begin, end) of every head, one range after the other.
    const auto each = [&](const Array<float>& all, const Array<float>& mine, int h, const auto& body) {
      for (int head = 0; head < h; ++head) {
        float* at_mine = mine.data() + head * rows * d;
        for (const Sharding::Range& s : sharding.of(at.rank)) {
          body(all.data() + (head * length + s.begin) * d, at_mine, static_cast<std::size_t>((s.end - s.begin) * d));
          at_mine += (s.end - s.begin) * d;
        }
      }
    };
    const auto take = [](const float* all, float* mine, std::size_t n) { std::memcpy(mine, all, n * sizeof(float)); };
    each(q, my_q, heads, take);
    each(k, my_k, kv_heads, take);
    each(v, my_v, kv_heads, take);
    // [call]
    attention.run({.q = my_q, .k = my_k, .v = my_v, .o = my_o}, {.sharding = sharding});
    // [call]
    bool same = true;
    each(o, my_o, heads, [&](const float* all, const float* mine, std::size_t n) {
      same = same && std::memcmp(all, mine, n * sizeof(float)) == 0;
    });
    return same;
  };

  std::vector<char> same(count);
  std::vector<std::thread> ranks;
  for (const Transport& at : threads(count))
    ranks.emplace_back([&, at] { same[static_cast<std::size_t>(at.rank)] = on_rank(at); });
  for (std::thread& rank : ranks) rank.join();
  const bool right = same[0] && same[1] && same[2];
  std::puts(right ? "ok: three ranks give the bits of one" : "ranks give other bits than one does");
  return right ? 0 : 1;
}
