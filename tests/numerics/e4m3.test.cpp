// tests/numerics/e4m3.test.cpp — every engine where q, k and v all hold e4m3
#include <attune/attune.h>

#include <cmath>

#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/numerics/agree.h"
#include "tests/sanitizers.h"

using namespace attune;
using tests::Inputs, tests::Layout, tests::Placed, tests::Shape, tests::Subject;

namespace {

const Attention plain{};
const Attention causal{.mask = mods::causal()};
const Attention rich = [] {
  static const auto slope = Device::cpu().array<float>({24}, "slope"),
                    sinks = Device::cpu().array<float>({24}, "sinks");
  for (std::int64_t i = 0; i < 24; ++i) slope.data()[i] = 1.0f / static_cast<float>(i + 2);
  for (std::int64_t i = 0; i < 24; ++i) sinks.data()[i] = static_cast<float>(i % 5) * 0.5f - 1;
  return Attention{.score = [](Float s, At at) { return 5 * tanh((s + slope[at.head] * (at.kv - at.q)) / 5); },
                   .mask = [](At at) { return at.kv <= at.q + 30 && at.kv % 3 != at.q % 2; },
                   .prob = [](Float p, At) { return where(attune::random(11) < 0.9f, p / 0.9f, 0); },
                   .sink = [](SinkAt at) { return sinks[at.head]; }};
}();
/// Scales of k for each head and of v for each key, of the sizes that they may have.
const Attention scaled = [] {
  static const auto of_k = Device::cpu().array<float>({24}, "of_k"), of_v = Device::cpu().array<float>({300}, "of_v");
  for (std::int64_t i = 0; i < 24; ++i) of_k.data()[i] = 0.5f + 0.1f * static_cast<float>(i);
  for (std::int64_t i = 0; i < 300; ++i)
    of_v.data()[i] = std::ldexp(1.0f + 0.1f * static_cast<float>(i % 7), static_cast<int>(9 - i / 64));
  return Attention{.score = [](Float s, At at) { return s * of_k[at.head]; },
                   .mask = mods::causal(),
                   .prob = [](Float p, At at) { return p * of_v[at.kv]; }};
}();

void agree(const Attention& attention, Shape shape) {
  shape.e4m3 = true;
  const std::string wrong = tests::disagreement(attention, shape, {.backward = false});
  INFO(wrong);
  CHECK(wrong.empty());
}

}  // namespace

TEST_CASE("queries, keys and values of e4m3 are as the oracle has them, o being of any type", "[engine][e4m3]") {
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t q_len : {1, 3, 70, 130})
      for (const std::int64_t d : {8, 40, 64, 128}) {
        const Attention* const each[] = {&plain, &causal, &rich, &scaled};
        const Attention& attention = *each[seed++ % std::size(each)];
        if (!tests::runs_case(seed + seed / 4, 7)) continue;
        agree(attention, {.q_len = q_len, .kv_len = 200, .d = d, .dv = d, .dtype = dtype, .seed = seed});
      }
}

TEST_CASE("hostile shapes of e4m3 are as the oracle has them", "[engine][e4m3]") {
  std::uint64_t seed = 100;
  // No keys, one key, rows that a mask leaves empty, more queries than keys.
  for (const std::int64_t q_len : {1, 65, 129})
    for (const std::int64_t kv_len : {0, 1, 31, 33, 127}) {
      const Attention& attention = seed++ % 2 ? causal : rich;
      agree(attention, {.q_len = q_len, .kv_len = kv_len, .d = 64, .dv = 64, .dtype = DType::bf16, .seed = seed});
    }
  for (const Layout layout :
       {Layout::bshd, Layout::columns, Layout::reversed, Layout::padded, Layout::spread, Layout::one_head})
    agree(rich, {.q_len = 70, .kv_len = 45, .d = 32, .dv = 48, .dtype = DType::f16, .layout = layout, .seed = ++seed});
  agree(rich, {.q_heads = 6,
               .kv_heads = 2,
               .d = 64,
               .dv = 64,
               .dtype = DType::bf16,
               .q_lens = {70, 0, 1, 133},
               .kv_lens = {80, 5, 0, 133},
               .seed = ++seed});
  agree(causal, {.q_len = 60,
                 .kv_len = 90,
                 .d = 64,
                 .dv = 64,
                 .dtype = DType::bf16,
                 .kv_shared = true,
                 .q_offset = 30,
                 .seed = ++seed});
  agree(plain, {.q_len = 60, .kv_len = 90, .d = 64, .dv = 64, .dtype = DType::bf16, .before = true, .seed = ++seed});
  agree(rich, {.q_len = 2,
               .kv_len = 190,
               .d = 64,
               .dv = 64,
               .dtype = DType::bf16,
               .used = {190, 3},
               .q_offsets = {188, 1},
               .page = 16,
               .seed = ++seed});
}

TEST_CASE("every e4m3 is a query and a key as it is, also NaN, which reaches no other row", "[engine][e4m3]") {
  // A query for each of them, times one key of ones: its score is lse.
  for (const tests::Engine& engine : tests::engines()) {
    Shape shape{
        .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 256, .kv_len = 1, .d = 16, .dv = 16, .dtype = DType::bf16};
    shape.e4m3 = true;
    for (const bool of_keys : {false, true}) {
      if (of_keys) shape.kv_len = 256, shape.q_len = 256;
      const Inputs in = tests::inputs(shape);
      const auto fill = [](const Placed& t, auto value) {
        for (std::int64_t i = 0; i < t.tensor.shape[2]; ++i)
          for (std::int64_t j = 0; j < 16; ++j)
            *(static_cast<std::uint8_t*>(t.tensor.data) + runtime::offset(t.tensor, 0, 0, i, j)) = value(i, j);
      };
      const auto one = static_cast<std::uint8_t>(e4m3(1.0f).bits);
      const auto all = [](std::int64_t i, std::int64_t j) { return static_cast<std::uint8_t>(j == 0 ? i : 0); };
      const auto ones = [&](std::int64_t, std::int64_t) { return one; };
      of_keys ? fill(in.q, ones) : fill(in.q, all);
      of_keys ? fill(in.k, all) : fill(in.k, ones);
      const Placed o = tests::place(DType::bf16, in.shape_of_o()), lse = tests::place(DType::f32, in.shape_of_lse());
      Forward call = in.forward();
      call.o = o.tensor, call.lse = lse.tensor;
      Attention own{.scale = 1.0};
      if (of_keys) own.mask = [](At at) { return at.q == at.kv; };
      const Subject subject(own);
      engine.forward(subject, call, compiler::check(subject.lowered, call, subject.scale));
      const auto sums = tests::elements(lse.tensor);
      for (std::size_t i = 0; i < 256; ++i) {
        e4m3 value;
        value.bits = static_cast<std::uint8_t>(i);
        const double wanted = static_cast<double>(static_cast<float>(value));
        INFO(engine.name << ", bits " << i << " of " << (of_keys ? "a key" : "a query") << ": " << wanted << ", lse "
                         << sums[i]);
        CHECK((std::isnan(wanted) ? std::isnan(sums[i]) : std::abs(sums[i] - wanted) <= std::abs(wanted) * 0x1p-20));
      }
    }
  }
}
