// tests/gpu/large.test.cpp — device tensors of more than 2^31 elements: calls reach their far ends
#include <attune/attune.h>

#include <cmath>
#include <random>

#include "tests/gpu/device.h"

namespace attune::tests {
namespace {

constexpr std::int64_t heads = 8, d = 128, block = 4096, length = (std::int64_t{1} << 21) + 2 * block;
static_assert(heads * length * d > std::int64_t{1} << 31 && length % block == 0);

const Device host = Device::cpu();

Array<bf16> rows(unsigned seed, std::int64_t count) {
  auto out = host.array<bf16>({1, 1, count, d});
  std::mt19937 dice(seed);
  for (bf16& x : out.values()) x = std::normal_distribution<float>()(dice);
  return out;
}

/// A block of rows repeated, and another one at the far end. Nothing if the device has too little memory.
std::optional<Array<bf16>> large(const Array<bf16>& often, const Array<bf16>& last) {
  try {
    auto out = Device::cuda().array<bf16>({1, heads, length, d});
    const std::int64_t blocks = heads * length / block;
    for (std::int64_t i = 0; i < blocks; ++i)
      copy(i + 1 == blocks ? last : often,
           Tensor(out.data() + i * block * d, DType::bf16, {1, 1, block, d}, {}, Device::cuda()));
    return out;
  } catch (const Error& e) {
    if (e.code != "no-memory") throw;
    WARN("[skip] " << e.why);
    return {};
  }
}

Tensor last_rows(const Array<bf16>& of, std::int64_t count) {
  const Tensor& t = of.tensor();
  return Tensor(of.data() + t.size() - count * d, DType::bf16, {1, 1, count, d}, {}, t.device);
}

/// Whether each result is within one rounding of bf16, and one of its probabilities, of the oracle's.
void check(const Tensor& device, const Array<float>& oracle) {
  const auto o = host.array<bf16>({1, 1, device.shape[2], d});
  copy(device, o);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < o.values().size(); ++i) {
    const float x = o.values()[i], y = oracle.values()[i];
    wrong += !(std::fabs(x - y) <= 0.01f + std::fabs(y) * 0x1p-7f);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("queries and results beyond 2^31 elements are read and written where they are", "[gpu]") {
  if (skipped()) return;
  const auto often = rows(1, block), last = rows(2, block), k = rows(3, 200), v = rows(4, 200);
  const auto q = large(often, last);
  if (!q) return;
  const auto o = large(last, often);
  if (!o) return;
  // The score and the mask depend on q, and repeat in every block.
  Attention attention{.score = [](Float s, At at) { return s * (1 + 0.01f * (at.q % 64)); },
                      .mask = [](At at) { return (at.kv + at.q) % 8 != 0; }};
  const auto k_there = k.on(Device::cuda()), v_there = v.on(Device::cuda());
  attention.run({.q = *q, .k = k_there, .v = v_there, .o = *o});

  constexpr std::int64_t some = 64;
  attention.target = Target::oracle;
  const auto wanted = host.array<float>({1, 1, some, d});
  attention.run(
      {.q = last_rows(last, some), .k = k, .v = v, .o = wanted, .q_offset = static_cast<std::int32_t>(length - some)});
  check(last_rows(*o, some), wanted);

  const auto part = [&](std::int64_t i) {
    const auto out = host.array<bf16>({1, 1, block, d});
    copy(Tensor(o->data() + i * block * d, DType::bf16, {1, 1, block, d}, {}, Device::cuda()), out);
    return out;
  };
  const auto first = part(0);
  std::int64_t different = 0;
  for (std::int64_t i = 1; i + 1 < heads * length / block; ++i) {
    const auto other = part(i);
    different += !std::ranges::equal(first.values(), other.values(),
                                     [](const bf16& x, const bf16& y) { return x.bits == y.bits; });
  }
  CHECK(different == 0);
}

TEST_CASE("keys and values beyond 2^31 elements are read where they are", "[gpu]") {
  if (skipped()) return;
  const auto often = rows(1, block), last = rows(2, block), queries = rows(3, heads);
  const auto k = large(often, last);
  if (!k) return;
  const auto v = large(last, often);
  if (!v) return;
  constexpr int some = 200;
  const Attention attention{.mask = [=](At at) { return at.kv >= at.kv_len - some; }};
  const auto q = queries.on(Device::cuda());
  const auto o = Device::cuda().array<bf16>({1, heads, 1, d});
  attention.run({.q = Tensor(q.data(), DType::bf16, {1, heads, 1, d}, {}, Device::cuda()), .k = *k, .v = *v, .o = o});

  // For the last head alone.
  const auto wanted = host.array<float>({1, 1, 1, d});
  Attention{.target = Target::oracle}.run(
      {.q = last_rows(queries, 1), .k = last_rows(last, some), .v = last_rows(often, some), .o = wanted});
  check(last_rows(o, 1), wanted);
}

}  // namespace attune::tests
