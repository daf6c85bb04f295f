// tests/emulated/entries.test.cpp — Hopper's forward over keys whose entries have their own lengths, positions and
// pages: values, hostile pages, what lies behind the last key
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "runtime/machine/tensor.h"
#include "tests/elements.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/rich.h"

namespace attune::tests {
namespace {

const Attention plain{};
const Attention causal{.mask = mods::causal()};
const Attention windowed{.mask = mods::sliding_window(40)};

void check(const Attention& attention, const Shape& shape, const std::string& kernel = "forward_sm90") {
  if (skipped_without_compiler()) return;
  const std::vector<Engine> gpu{emulated_engine({.arch = 90, .sms = 3, .seed = shape.seed}, kernel)};
  INFO(kernel << " " << shape.describe());
  CHECK(compare(Subject(attention), inputs(shape), gpu, {.backward = false}).wrong == "");
}

/// Few rows over caches so long that blocks share the keys of each tile: three parts of 26 or 51 tiles of keys.
Shape drafts(std::uint64_t seed) {
  return {.batch = 3,
          .q_heads = 8,
          .kv_heads = 2,
          .q_len = 5,
          .kv_len = 3300,
          .d = 64,
          .dv = 64,
          .dtype = seed % 2 ? DType::bf16 : DType::f16,
          .used = {3300, 1, 2049},
          .q_offsets = {3295, 0, 2044},
          .seed = seed};
}
std::vector<Engine> many_sms(std::uint64_t seed) {
  return {emulated_engine({.arch = 90, .sms = 20, .seed = seed}, "forward_sm90")};
}
/// With and without maxima, whose softmax is another.
void check_split(const Attention& attention, const Inputs& in) {
  if (skipped_without_compiler()) return;
  for (const bool max : {false, true}) {
    INFO(in.shape.describe() << (max ? ", max" : ""));
    CHECK(compare(Subject(attention), in, many_sms(in.shape.seed), {.backward = false, .max = max}).wrong == "");
  }
}

}  // namespace

TEST_CASE("prompts over pages of any size are right on Hopper's kernel", "[emulated]") {
  std::uint64_t seed = 0;
  for (const std::int64_t page : {0, 1, 3, 4, 8, 16, 48, 64, 256})
    for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}}) {
      if (!in_turn(seed + seed / 16, 16)) {
        ++seed;
        continue;
      }
      const Shape shape{.batch = 3,
                        .q_heads = 2,
                        .kv_heads = 2,
                        .q_len = 200,
                        .kv_len = 333,
                        .d = d,
                        .dv = dv,
                        .dtype = seed % 2 ? DType::f16 : DType::bf16,
                        .used = {333, 0, 177},
                        .q_offsets = {133, 0, 40},
                        .page = page,
                        .holes = seed % 3 == 2,
                        .before = seed % 5 == 4,
                        .seed = ++seed};
      check(seed % 4 == 3 ? plain : seed % 4 == 1 ? windowed : causal, shape);
    }
}

TEST_CASE("keys in small pages are copied where many queries share them", "[emulated]") {
  std::uint64_t seed = 0;
  for (const std::int64_t page : {1, 3, 4, 20})
    for (const std::int64_t d : {64, 128}) {
      const Shape shape{.batch = 2,
                        .q_heads = 4,
                        .kv_heads = 1,
                        .q_len = 260,
                        .kv_len = 333,
                        .d = d,
                        .dv = 64,
                        .dtype = DType::bf16,
                        .used = {333, 177},
                        .q_offsets = {73, 0},
                        .page = page,
                        .holes = ++seed % 2 == 0,
                        .seed = seed};
      check(seed % 3 == 0 ? plain : causal, shape);
    }
}

TEST_CASE("lengths below 0 and beyond the cache on a device are 0 and all keys, and reach no other memory",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  for (const std::int64_t page : {0, 1, 16})
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const Shape shape{.batch = 3,
                        .q_heads = 2,
                        .kv_heads = 2,
                        .q_len = 300,
                        .kv_len = 320,
                        .d = 64,
                        .dv = 64,
                        .dtype = dtype,
                        .used = {320, 0, 177},
                        .q_offsets = {20, 0, 40},
                        .page = page};
      const Engine gpu = emulated_engine({.arch = 90, .sms = 3},
                                         dtype == DType::f32 ? "forward_f32_sm90" : "forward_sm90");
      const Subject subject(causal);
      Inputs in = inputs(shape);
      const auto results = [&] {
        const Placed o = place(dtype, in.shape_of_o());
        Forward call = in.forward();
        call.o = o.tensor;
        Forward checked = call;
        const auto lengths = Device::cpu().array<std::int32_t>({3}, "lengths");
        std::ranges::copy(std::array{320, 0, 177}, lengths.data());
        checked.kv_len = lengths;
        gpu.forward(subject, call, compiler::check(subject.lowered, checked, {}));
        return elements(o.tensor);
      };
      const auto wanted = results();
      auto* const given = static_cast<std::int32_t*>(in.kv_len.tensor.data);
      given[0] = std::numeric_limits<std::int32_t>::max(), given[in.kv_len.tensor.strides[0]] = -7;
      INFO(shape.describe());
      CHECK(results() == wanted);
    }
}

TEST_CASE("keys of missing pages are zeros also where a masked-out value is NaN", "[emulated]") {
  if (skipped_without_compiler()) return;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const Shape shape{.batch = 2,
                      .q_heads = 2,
                      .kv_heads = 2,
                      .q_len = 40,
                      .kv_len = 160,
                      .d = 64,
                      .dv = 64,
                      .dtype = DType::bf16,
                      .used = {160, 150},
                      .q_offsets = {110, 100},
                      .page = 16,
                      .holes = true,
                      .seed = seed};
    const Inputs in = inputs(shape);
    const Tensor &table = in.page_table.tensor, &v = in.v.tensor;
    // No query of entry 0 keeps the keys of its last page.
    const std::int32_t page = static_cast<const std::int32_t*>(table.data)[9 * table.strides[1]];
    if (page < 0 || page >= v.shape[0]) continue;
    for (std::int64_t row = 0; row < shape.page; ++row)
      runtime::store(v, runtime::offset(v, page, 0, row, 0), std::numeric_limits<double>::quiet_NaN());
    const std::vector<Engine> gpu{emulated_engine({.arch = 90, .sms = 3, .seed = seed}, "forward_sm90")};
    INFO(shape.describe());
    CHECK(compare(Subject(causal), in, gpu, {.backward = false}).wrong == "");
  }
}

TEST_CASE("masks that read data list tiles of entries by their own positions", "[emulated]") {
  const auto prefix = Device::cpu().array<std::int32_t>({3}, "prefix"),
             document = Device::cpu().array<std::int32_t>({600}, "document");
  std::ranges::copy(std::array{70, 0, 333}, prefix.data());
  for (std::int64_t i = 0; i < 600; ++i) document.data()[i] = static_cast<std::int32_t>(i / 90);
  const Attention prefixes{.mask = [&](At at) { return at.kv <= at.q || at.kv < prefix[at.batch]; }},
      documents{.mask = [&](At at) { return at.kv <= at.q && document[at.q] == document[at.kv]; }};
  std::uint64_t seed = 0;
  for (const std::int64_t page : {0, 1, 16, 64})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const Attention* attention : {&prefixes, &documents}) {
        if (++seed; !in_turn(seed + seed / 32, 32)) continue;
        Shape shape{.batch = 3,
                    .q_heads = 4,
                    .kv_heads = 2,
                    .q_len = 200,
                    .kv_len = 333,
                    .d = 64,
                    .dv = 64,
                    .dtype = dtype,
                    .used = {333, 0, 177},
                    .q_offsets = {133, 5, 40},
                    .page = page,
                    .seed = seed};
        const std::string kernel = dtype == DType::f32 ? "forward_f32_sm90" : "forward_sm90";
        check(*attention, shape, kernel);
        shape.q_lens = {90, 0, 150};
        check(*attention, shape, kernel);
        shape.q_lens = {}, shape.q_offsets = {}, shape.q_offset = 200, shape.kv_offset = 77;
        check(*attention, shape, kernel);
      }
}

TEST_CASE("prompts of f32 over keys of any kind are right on Hopper's kernel", "[emulated]") {
  std::uint64_t seed = 0;
  for (const std::int64_t page : {0, 1, 5, 16, 64})
    for (const std::int64_t d : {40, 64, 128}) {
      if (++seed; !in_turn(seed + seed / 12, 12)) continue;
      Shape shape{.batch = 3,
                  .q_heads = 2,
                  .kv_heads = 2,
                  .q_len = 300,
                  .kv_len = 333,
                  .d = d,
                  .dv = d,
                  .dtype = DType::f32,
                  .kv_shared = page == 0 && d == 40,
                  .used = {333, 0, 177},
                  .q_offsets = {33, 0, 40},
                  .page = page,
                  .holes = seed % 3 == 0,
                  .seed = seed};
      check(seed % 4 == 3 ? plain : causal, shape, "forward_f32_sm90");
      if (d == 40) continue;
      shape.q_lens = {30, 0, 270}, shape.kv_shared = false;
      check(causal, shape, "forward_f32_sm90");
    }
}

TEST_CASE("packed prompts over keys of any kind are right on Hopper's kernel", "[emulated]") {
  std::uint64_t seed = 0;
  for (const std::int64_t page : {0, 8, 16})
    for (const std::int64_t d : {64, 128, 256})
      for (const bool starts : {false, true}) {
        Shape shape{.q_heads = 4,
                    .kv_heads = 2,
                    .kv_len = 150,
                    .d = d,
                    .dv = d,
                    .dtype = DType::bf16,
                    .q_lens = {3, 0, 70, 130},
                    .used = {150, 7, 101, 140},
                    .q_offsets = {90, 0, 40, 10},
                    .page = page,
                    .seed = ++seed};
        if (starts && page) continue;
        if (starts) shape.kv_lens = {31, 20, 150, 149}, shape.used = {31, 0, 150, 120};
        check(causal, shape);
      }
}

TEST_CASE("blocks share the keys of few queries in pages of any size", "[emulated]") {
  std::uint64_t seed = 0;
  for (const std::int64_t page : {0, 1, 8, 16, 64})
    for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {72, 40}, {256, 256}}) {
      if (++seed; !in_turn(seed + seed / 32, 32)) continue;
      Shape shape = drafts(seed);
      shape.page = page, shape.d = d, shape.dv = dv, shape.holes = page > 1 && seed % 3 == 0;
      if (seed % 4 == 2) shape.used = {0, 3001, 127}, shape.q_offsets = {0, 2996, 122};
      check_split(seed % 3 == 1 ? plain : causal, inputs(shape));
    }
}

TEST_CASE("blocks share the keys of few queries under any mod", "[emulated]") {
  const auto logits = Device::cpu().array<float>({8}, "logits");
  for (std::int64_t h = 0; h < 8; ++h) logits.data()[h] = static_cast<float>(h) - 3;
  const Attention all[] = {
      {.mask = mods::causal(), .sink = mods::learned_sink(logits)},
      {.score = mods::softcap(3.0f), .mask = mods::causal()},
      {.score = mods::alibi(8), .mask = mods::causal()},
      windowed,
      {.mask = mods::sink_window(300, 4)},
      {.mask = mods::dilated_window(2000, 3)},
      {.mask = mods::causal(), .prob = mods::dropout(0.75f, 5)},
      {.mask = mods::causal(), .prob = mods::head_gate(logits), .sink = mods::learned_sink(logits)},
      // So far below 0 that the lse of all parts are equal in f32, while some have more keys.
      {.score = [](Float s, At) { return s - 1e9f; }},
  };
  std::uint64_t seed = 40;
  for (const Attention& attention : all)
    if (++seed; in_turn(seed, 12)) check_split(attention, inputs(drafts(seed)));
}

TEST_CASE("blocks share the keys of few queries whose results are merged with another's", "[emulated]") {
  for (const std::uint64_t seed : {std::uint64_t{61}, std::uint64_t{62}}) {
    Shape shape = drafts(seed);
    shape.before = true;
    check_split(seed % 2 ? causal : windowed, inputs(shape));
  }
}

TEST_CASE("blocks share the keys of packed drafts", "[emulated]") {
  std::uint64_t seed = 70;
  for (const std::int64_t page : {0, 16})
    for (const std::int64_t d : {64, 128})
      for (const bool starts : {false, true}) {
        if (starts && page) continue;
        if (++seed; !in_turn(seed, 8)) continue;
        Shape shape = drafts(seed);
        shape.d = shape.dv = d, shape.page = page;
        shape.q_lens = {3, 0, 17, 9}, shape.used = {3300, 7, 2500, 9}, shape.q_offsets = {3297, 0, 2483, 0};
        if (starts) shape.kv_lens = {3300, 20, 2600, 9}, shape.used = {3300, 0, 2500, 9};
        check_split(causal, inputs(shape));
      }
}

TEST_CASE("a masked-out NaN reaches no result where blocks share keys", "[emulated]") {
  Shape shape = drafts(80);
  shape.q_offsets = {3200, 0, 1800};
  Inputs in = inputs(shape);
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  // Behind the last key that any query of an entry sees, and before the first one.
  for (const auto& [b, first, last] : {std::tuple{0, 3205, 3230}, {2, 1700, 1761}, {2, 1805, 1900}})
    for (std::int64_t kv = first; kv < last; ++kv)
      for (std::int64_t h = 0; h < shape.kv_heads; ++h)
        for (std::int64_t i = 0; i < shape.dv; ++i)
          runtime::store(in.v.tensor, runtime::offset(in.v.tensor, b, h, kv, i), nan);
  check_split(windowed, in);
}

}  // namespace attune::tests
