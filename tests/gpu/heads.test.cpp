// tests/gpu/heads.test.cpp — decode, where heads share tiles: each head gets its own results
#include <attune/attune.h>

#include <limits>

#include "runtime/attention/tools.h"
#include "runtime/machine/tensor.h"
#include "tests/gpu/device.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

Array<float> numbers(std::initializer_list<std::int64_t> shape) {
  auto out = Device::cpu().array<float>(shape, "numbers");
  for (std::size_t i = 0; i < out.values().size(); ++i)
    out.values()[i] = 0.01f * static_cast<float>((i * 37 + 11) % 101) - 0.5f;
  return out;
}
Array<int> documents(std::int64_t length) {
  auto out = Device::cpu().array<int>({length}, "doc");
  for (std::int64_t i = 0; i < length; ++i) out.data()[i] = static_cast<int>(i / 23);
  return out;
}

/// Mods that depend on the head: every kind that lets heads share a tile, and kinds that do not.
std::vector<Attention> attentions() {
  const auto slope = numbers({32}), table = numbers({32, 50}), column = numbers({32, 300});
  const auto doc = documents(300);
  const Mask causal = [](At at) { return at.kv <= at.q; };
  return {
      {},
      {.mask = causal},
      {.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); }, .mask = causal},
      {.score = [=](Float s, At at) { return s * slope[at.head]; }},
      {.score = [=](Float s, At at) { return 20.0f * tanh(s * slope[at.head] / 20.0f); },
       .sink = [=](SinkAt at) { return slope[at.head]; }},
      {.score = [=](Float s, At at) { return s + table(at.head, clamp(at.q - at.kv, 0, 49)); }, .mask = causal},
      {.mask = [=](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; },
       .prob = [=](Float p, At at) { return p * slope[at.head]; }},
      // Heads cannot share a tile.
      {.score = [=](Float s, At at) { return s + column(at.head, at.kv); }},
      {.mask = [](At at) { return at.kv <= at.q + at.head; }},
  };
}

/// A few queries against the last keys.
Shape shape(std::int64_t group, std::int64_t q_len, int d, std::uint64_t seed) {
  return {.q_heads = 2 * group,
          .kv_heads = 2,
          .q_len = q_len,
          .kv_len = 257,
          .d = d,
          .dv = d,
          .dtype = seed % 2 ? DType::bf16 : DType::f16,
          .layout = seed % 3 ? Layout::bhsd : Layout::bshd,
          .q_offset = static_cast<std::int32_t>(257 - q_len),
          .seed = seed};
}

std::string judge(const Attention& attention, const Shape& shape) {
  return compare(Subject(attention), inputs(shape), std::span(&device_engine(), 1),
                 {.backward = false, .max = shape.seed % 5 == 0})
      .wrong;
}

}  // namespace

TEST_CASE("heads that share a tile each get what the oracle says", "[gpu]") {
  if (skipped()) return;
  struct One {
    Attention attention;
    Shape shape;
  };
  std::vector<One> all;
  const std::vector<Attention> what = attentions();
  constexpr std::pair<std::int64_t, std::int64_t> sizes[] = {{2, 1}, {2, 64}, {3, 7}, {4, 33}, {5, 1},
                                                             {8, 1}, {8, 17}, {9, 2}, {11, 1}, {16, 1}};
  constexpr int widths[] = {64, 128, 72, 256, 192};
  for (std::size_t i = 0; i < what.size(); ++i)
    for (std::size_t j = 0; j < std::size(sizes); ++j) {
      const auto& [group, q_len] = sizes[j];
      Shape one = shape(group, q_len, widths[(i + j) % std::size(widths)], i * std::size(sizes) + j);
      all.push_back({what[i], one});
      // Non-contiguous elements, and f32, take the portable kernel.
      if (j % 2 == 0) one.layout = Layout::spread;
      if (j % 4 == 1) one.dtype = DType::f32;
      if (j % 4 == 3) {
        one.q_lens = {q_len, 0, 1, 5};
        one.kv_lens = {40, 5, 200, 0};
        one.q_offset = 0;
      }
      all.push_back({what[i], one});
    }
  const std::string wrong = side_by_side(all.size(),
                                         [&](std::size_t i) { return judge(all[i].attention, all[i].shape); });
  CHECK(wrong == "");
}

TEST_CASE("packed sequences with few queries never write to their neighbours' heads", "[gpu][small]") {
  if (skipped()) return;
  const Mask causal = [](At at) { return at.kv <= at.q + 30; };
  for (const std::int64_t group : {2, 3, 8, 11})
    for (const int d : {64, 72}) {
      Shape one = shape(group, 0, d, static_cast<std::uint64_t>(group));
      one.layout = Layout::bhsd;
      one.q_offset = 0;
      one.q_lens = {1, 1, 0, 3, 1, 16, 2, 15, 64, 1};
      one.kv_lens = {9, 1, 4, 70, 0, 40, 129, 3, 200, 31};
      CHECK(judge({.mask = causal}, one) == "");
    }
}

TEST_CASE("NaN in a value that is removed reaches no head of a shared tile", "[gpu][small]") {
  if (skipped()) return;
  const auto slope = numbers({32});
  const Attention holes{.score = [=](Float s, At at) { return s * (1.0f + slope[at.head]) + slope[at.head]; },
                        .mask = [](At at) { return at.kv % 5 != 3; },
                        .sink = [=](SinkAt at) { return slope[at.head]; }};
  for (const std::int64_t group : {2, 3, 8, 12})
    for (const DType dtype : {DType::bf16, DType::f32}) {
      Shape one = shape(group, 5, 64, 1);
      one.dtype = dtype;
      one.layout = Layout::bhsd;
      const Inputs in = inputs(one);
      for (const Placed* of : {&in.k, &in.v})
        for (std::int64_t kv = 3; kv < one.kv_len; kv += 5)
          for (std::int64_t h = 0; h < one.kv_heads; ++h)
            runtime::store(of->tensor, runtime::offset(of->tensor, 0, h, kv, 0),
                           std::numeric_limits<double>::quiet_NaN());
      CHECK(compare(Subject(holes), in, std::span(&device_engine(), 1), {.backward = false}).wrong == "");
    }
}

TEST_CASE("heads share a tile where that is fewer tiles, and say so", "[gpu][small]") {
  if (skipped()) return;
  const auto story = [](std::int64_t q_len, std::int64_t heads, const Mask& mask) {
    const Device gpu = Device::cuda();
    const auto q = gpu.array<bf16>({1, heads, q_len, 64}), k = gpu.array<bf16>({1, 2, 100, 64}),
               o = gpu.array<bf16>({1, heads, q_len, 64});
    return runtime::stories({.mask = mask}, Forward{.q = q, .k = k, .v = k, .o = o}).front().kernel;
  };
  const Mask causal = [](At at) { return at.kv <= at.q; }, by_head = [](At at) { return at.kv <= at.q + at.head; };
  CHECK(story(1, 16, causal).find("8 heads share a tile") != std::string::npos);
  CHECK(story(64, 4, causal).find("2 heads share a tile") != std::string::npos);
  CHECK(story(65, 16, causal).find("share a tile") == std::string::npos);
  CHECK(story(1, 2, causal).find("share a tile") == std::string::npos);
  CHECK(story(1, 16, by_head).find("share a tile") == std::string::npos);
}

}  // namespace attune::tests
