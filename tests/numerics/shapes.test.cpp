// tests/numerics/shapes.test.cpp — every engine with many lengths, widths, ratios of heads, packings and strides
#include <attune/attune.h>

#include "tests/catch.h"
#include "tests/numerics/agree.h"
#include "tests/sanitizers.h"

using namespace attune;
using tests::Compared, tests::Layout, tests::Shape;

namespace {

const Attention plain{};
const Attention causal{.mask = mods::causal()};
/// Reads of every level, a mask, a sink and a prob mod.
const Attention rich = [] {
  static const auto slope = Device::cpu().array<float>({24}, "slope"), bias = Device::cpu().array<float>({600}, "bias"),
                    sinks = Device::cpu().array<float>({24}, "sinks");
  for (std::int64_t i = 0; i < 24; ++i) slope.data()[i] = 1.0f / static_cast<float>(i + 2);
  for (std::int64_t i = 0; i < 600; ++i) bias.data()[i] = static_cast<float>(i % 7) * 0.3f - 1;
  for (std::int64_t i = 0; i < 24; ++i) sinks.data()[i] = static_cast<float>(i % 5) * 0.5f - 1;
  return Attention{
      .score = [](Float s, At at) { return 5 * tanh((s + slope[at.head] * (at.kv - at.q) + bias[at.kv]) / 5); },
      .mask = [](At at) { return at.kv <= at.q + 3 && (at.q - at.kv < 40 || at.kv < 3); },
      .prob = [](Float p, At at) { return where(attune::random(11) < 0.9f, p / 0.9f, 0) + 0 * at.q; },
      .sink = [](SinkAt at) { return sinks[at.head]; }};
}();

void agree(const Attention& attention, const Shape& shape, const Compared& what = {}) {
  const std::string wrong = tests::disagreement(attention, shape, what);
  INFO(wrong);
  CHECK(wrong.empty());
}
void forward(const Attention& attention, const Shape& shape) { agree(attention, shape, {.backward = false}); }
void backward(const Attention& attention, const Shape& shape) { agree(attention, shape, {.forward = false}); }

constexpr std::int64_t lengths[] = {0, 1, 63, 64, 65, 127, 129, 257};

/// Every length of queries and of keys, each with a few lengths of the other.
std::vector<Shape> by_length() {
  std::vector<Shape> out;
  std::uint64_t seed = 0;
  for (const std::int64_t q : lengths)
    for (const std::int64_t kv : lengths) {
      if (q > 1 && kv > 1 && (q / 64 + kv / 64) % 3 == 1) continue;
      out.push_back(
          {.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = q, .kv_len = kv, .d = 8, .dv = 8, .seed = ++seed});
    }
  return out;
}

constexpr std::int64_t widths[] = {1, 2, 3, 16, 31, 64, 80, 96, 128, 192, 256, 512};

/// Each width as D and as Dv, with the same and with another one.
std::vector<Shape> by_width(DType dtype) {
  std::vector<Shape> out;
  const std::size_t n = std::size(widths);
  for (std::size_t i = 0; i < n; ++i)
    for (const std::int64_t dv : {widths[i], widths[(i * 5 + 3) % n]})
      out.push_back({.batch = 1,
                     .q_heads = 2,
                     .kv_heads = 2,
                     .q_len = 19,
                     .kv_len = 37,
                     .d = widths[i],
                     .dv = dv,
                     .dtype = dtype,
                     .seed = 50 + i});
  return out;
}

std::vector<Shape> by_layout() {
  std::vector<Shape> out;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Layout layout :
         {Layout::bshd, Layout::columns, Layout::reversed, Layout::padded, Layout::spread, Layout::one_head})
      for (const std::int64_t d : {5, 32}) {
        out.push_back({.q_len = 70, .kv_len = 45, .d = d, .dv = d + 2, .dtype = dtype, .layout = layout, .seed = 7});
        // Values that engines may read in place: as wide as whole registers, with rows adjacent or far apart.
        for (const std::int64_t dv : {64, 320})
          out.push_back({.q_len = 70, .kv_len = 45, .d = d, .dv = dv, .dtype = dtype, .layout = layout, .seed = 9});
        out.push_back({.kv_heads = 1,
                       .d = d,
                       .dv = d + 11,
                       .dtype = dtype,
                       .layout = layout,
                       .q_lens = {5, 0, 1, 30},
                       .kv_lens = {9, 4, 1, 33},
                       .seed = 8});
      }
  // An odd fraction, so that a sanitized build gets every layout, type and width.
  std::size_t next = 0;
  std::erase_if(out, [&](const Shape&) { return !tests::runs_case(next++, 11); });
  return out;
}

std::vector<Shape> by_heads() {
  std::vector<Shape> out;
  for (const std::int64_t group : {1, 3, 5, 8})
    for (const std::int64_t kv_heads : {1, 2, 3})
      for (const bool shared : {false, true})
        out.push_back({.batch = 3,
                       .q_heads = group * kv_heads,
                       .kv_heads = kv_heads,
                       .q_len = 17,
                       .kv_len = 33,
                       .d = 8,
                       .dv = 8,
                       .kv_shared = shared,
                       .seed = 30});
  return out;
}

std::vector<Shape> packed() {
  const std::vector<std::vector<std::int64_t>> q{
      {0}, {1}, {0, 0, 3}, {64, 0, 1, 65, 7}, {130, 1, 1, 40}, {1, 1, 1, 1, 1, 1}},
      kv{{0}, {5}, {2, 0, 0}, {64, 3, 0, 129, 1}, {20, 257, 1, 40}, {7, 0, 1, 130, 64, 2}};
  std::vector<Shape> out;
  for (std::size_t i = 0; i < q.size(); ++i)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Shape shape{.q_heads = 4, .kv_heads = 2, .d = 8, .dv = 8, .dtype = dtype, .q_lens = q[i], .kv_lens = kv[i]};
      shape.seed = i;
      out.push_back(shape);
      shape.q_offset = 9;
      out.push_back(shape);
    }
  return out;
}

}  // namespace

TEST_CASE("every engine attends at any length of queries and keys", "[engine]") {
  for (const Shape& shape : by_length()) forward(rich, shape);
}
TEST_CASE("every engine goes backward at any length of queries and keys", "[engine]") {
  for (const Shape& shape : by_length()) backward(rich, shape);
}

TEST_CASE("every engine attends at any width of heads", "[engine]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Shape& shape : by_width(dtype)) forward(dtype == DType::f32 ? rich : plain, shape);
}
TEST_CASE("every engine goes backward at any width of heads", "[engine]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Shape& shape : by_width(dtype)) backward(dtype == DType::f32 ? rich : plain, shape);
}

TEST_CASE("every engine attends with any ratio of heads, and with keys that all batch entries share", "[engine]") {
  for (const Shape& shape : by_heads()) forward(rich, shape);
}
TEST_CASE("every engine goes backward with any ratio of heads, and with shared keys", "[engine]") {
  for (const Shape& shape : by_heads()) backward(rich, shape);
}

TEST_CASE("every engine attends to packed sequences, empty ones and those of one position too", "[engine]") {
  for (const Shape& shape : packed()) {
    forward(rich, shape);
    forward(plain, shape);
  }
}
TEST_CASE("every engine goes backward through packed sequences", "[engine]") {
  for (const Shape& shape : packed()) backward(rich, shape);
}

TEST_CASE("every engine reads and writes any strides", "[engine]") {
  for (const Shape& shape : by_layout()) forward(causal, shape);
}
TEST_CASE("every engine goes backward through any strides", "[engine]") {
  for (const Shape& shape : by_layout()) backward(causal, shape);
}

TEST_CASE("every engine counts queries from an offset, at decoding and near the end of what coordinates hold",
          "[engine]") {
  for (const std::int64_t q_len : {1, 2, 7, 66})
    for (const std::int32_t offset : {1, 40, 100}) {
      const Shape shape{.q_len = q_len, .kv_len = 101, .d = 16, .q_offset = offset, .seed = 3};
      agree(rich, shape);
      agree(causal, shape);
    }
  const Attention far{.score = [](Float s, At at) { return where(at.q % 2 == at.kv % 2, s, s - 1); },
                      .mask = [](At at) { return at.q - at.kv > (1 << 30) - 90; }};
  agree(far, {.q_len = 40, .kv_len = 60, .q_offset = (1 << 30) - 40, .seed = 4});
}

TEST_CASE("every engine decodes: one query, many keys", "[engine]") {
  std::size_t next = 0;
  for (const std::int64_t kv_len : {1, 100, 1000})
    for (const std::int64_t group : {1, 4})
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
        if (tests::runs_case(next++, 7))
          agree(plain, {.q_heads = 2 * group,
                        .kv_heads = 2,
                        .q_len = 1,
                        .kv_len = kv_len,
                        .d = 64,
                        .dv = 64,
                        .dtype = dtype,
                        .q_offset = 999,
                        .seed = 60});
}

TEST_CASE("every engine takes any finite scale", "[engine]") {
  for (const double scale : {0.0, -0.3, 1.0, 3.0, 1e-20}) {
    Attention attention = rich;
    attention.scale = scale;
    agree(attention, {.q_len = 20, .kv_len = 40, .seed = 12});
    agree(attention, {.q_len = 20, .kv_len = 40, .dtype = DType::bf16, .seed = 12});
  }
}

TEST_CASE("lse and max are given to those who ask, each alone too, and f64 where asked", "[engine]") {
  for (const bool lse : {false, true})
    for (const bool max : {false, true}) agree(rich, {.seed = 5}, {.backward = false, .lse = lse, .max = max});
  agree(rich, {.seed = 6}, {.forward = false, .grad_lse = false});
  agree(rich, {.seed = 6}, {.forward = false, .captured = false});
}
