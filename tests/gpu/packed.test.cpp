// tests/gpu/packed.test.cpp — packed sequences on a device: each gets what it gets alone, whatever its neighbours are
#include <attune/attune.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/gpu/device.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

constexpr std::int64_t q_heads = 4, kv_heads = 2;

/// Sequences of so many queries and keys each, on a device.
struct Packed {
  std::vector<std::int64_t> q_lens, kv_lens;
  std::int64_t d;
  Device gpu = Device::cuda();
  Array<bf16> q = filled(1, q_lens, q_heads), k = filled(2, kv_lens, kv_heads), v = filled(3, kv_lens, kv_heads);
  Array<bf16> o = filled(4, q_lens, q_heads);
  Array<float> lse = gpu.array<float>({q_heads, total(q_lens)});
  Array<int> cu_q = starts(q_lens), cu_kv = starts(kv_lens);

  static std::int64_t total(const std::vector<std::int64_t>& lens) {
    return std::accumulate(lens.begin(), lens.end(), std::int64_t{0});
  }
  static std::int64_t start(const std::vector<std::int64_t>& lens, std::size_t b) {
    return std::accumulate(lens.begin(), lens.begin() + static_cast<std::ptrdiff_t>(b), std::int64_t{0});
  }
  static Array<int> starts(const std::vector<std::int64_t>& lens) {
    auto out = Device::cpu().array<int>({static_cast<std::int64_t>(lens.size()) + 1});
    std::partial_sum(lens.begin(), lens.end(), out.values().begin() + 1);
    return out;
  }
  Array<bf16> filled(unsigned seed, const std::vector<std::int64_t>& lens, std::int64_t heads) const {
    auto out = Device::cpu().array<bf16>({total(lens), heads, d});
    std::mt19937 dice(seed);
    for (bf16& x : out.values()) x = std::normal_distribution<float>()(dice);
    return out.on(gpu);
  }
  Forward call() const {
    return {.q = q, .k = k, .v = v, .o = o, .lse = lse, .cu_seqlens_q = cu_q, .cu_seqlens_kv = cu_kv};
  }
  /// One of them as a dense call, into memory of its own.
  Forward alone(std::size_t b, const Array<bf16>& into) const {
    const auto part = [&](const Array<bf16>& of, const std::vector<std::int64_t>& lens, std::int64_t heads) {
      return Tensor(of.data() + start(lens, b) * heads * d, DType::bf16, {1, heads, lens[b], d},
                    {lens[b] * heads * d, d, heads * d, 1}, gpu);
    };
    return {.q = part(q, q_lens, q_heads),
            .k = part(k, kv_lens, kv_heads),
            .v = part(v, kv_lens, kv_heads),
            .o = Tensor(into.data(), DType::bf16, {1, q_heads, q_lens[b], d},
                        {q_lens[b] * q_heads * d, d, q_heads * d, 1}, gpu)};
  }
};

std::vector<Attention> attentions() {
  return {Attention{}, Attention{.mask = mods::causal()},
          Attention{.score = [](Float s, At at) { return s + 0.03f * f32(at.kv - at.q); },
                    .mask = [](At at) { return at.kv <= at.q || at.kv < 20; }}};
}

}  // namespace

TEST_CASE("a packed sequence gets what it gets alone, and writes nothing of its neighbours", "[gpu]") {
  if (skipped()) return;
  for (const std::int64_t d : {64, 72, 128, 192})
    for (const Attention& attention : attentions()) {
      const Packed all{.q_lens = {1, 128, 17, 0, 300, 129, 5}, .kv_lens = {7, 128, 0, 9, 300, 260, 64}, .d = d};
      attention.run(all.call());
      const auto o = all.o.on(Device::cpu());
      std::size_t wrong = 0;
      for (std::size_t b = 0; b < all.q_lens.size(); ++b) {
        if (all.q_lens[b] == 0) continue;
        const auto own = all.filled(5, {all.q_lens[b]}, q_heads);
        attention.run(all.alone(b, own));
        const auto expected = own.on(Device::cpu());
        const auto first = static_cast<std::size_t>(Packed::start(all.q_lens, b) * q_heads * d);
        for (std::size_t i = 0; i < expected.values().size(); ++i) {
          const float x = o.values()[first + i], y = expected.values()[i];
          wrong += !is_near(x, y);
        }
      }
      INFO("d " << d);
      CHECK(wrong == 0);
    }
}

TEST_CASE("NaN in a packed sequence reaches no other", "[gpu]") {
  if (skipped()) return;
  for (const Attention& attention : attentions()) {
    Packed all{.q_lens = {40, 129, 3, 70}, .kv_lens = {50, 130, 3, 200}, .d = 64};
    attention.run(all.call());
    const auto before = all.o.on(Device::cpu());
    const auto lse_before = all.lse.on(Device::cpu());
    for (std::size_t b = 0; b < all.q_lens.size(); ++b) {
      Packed spoilt = all;
      const auto with_nan = [&](const Array<bf16>& of, const std::vector<std::int64_t>& lens, std::int64_t heads) {
        auto out = of.on(Device::cpu());
        const auto first = Packed::start(lens, b) * heads * all.d, count = lens[b] * heads * all.d;
        for (std::int64_t i = first; i < first + count; ++i)
          out.values()[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
        return out.on(all.gpu);
      };
      spoilt.q = with_nan(all.q, all.q_lens, q_heads);
      spoilt.k = with_nan(all.k, all.kv_lens, kv_heads);
      spoilt.v = with_nan(all.v, all.kv_lens, kv_heads);
      attention.run(spoilt.call());
      const auto o = spoilt.o.on(Device::cpu());
      const auto lse = spoilt.lse.on(Device::cpu());
      const std::int64_t begin = Packed::start(all.q_lens, b), end = begin + all.q_lens[b],
                         count = Packed::total(all.q_lens), row = q_heads * all.d;
      std::size_t wrong = 0, spoilt_rows = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const bool own = i >= begin && i < end;
        for (std::int64_t j = 0; j < row; ++j) {
          const auto at = static_cast<std::size_t>(i * row + j);
          const float x = o.values()[at], y = before.values()[at];
          if (own)
            spoilt_rows += std::isnan(x);
          else
            wrong += !is_near(x, y);
        }
        for (std::int64_t h = 0; h < q_heads; ++h) {
          const auto at = static_cast<std::size_t>(h * count + i);
          if (!own) wrong += !(std::fabs(lse.values()[at] - lse_before.values()[at]) < 1e-3f);
        }
      }
      INFO("sequence " << b);
      CHECK(wrong == 0);
      CHECK(spoilt_rows == static_cast<std::size_t>((end - begin) * row));
    }
  }
}

}  // namespace attune::tests
