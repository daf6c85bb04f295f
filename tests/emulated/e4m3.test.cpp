// tests/emulated/e4m3.test.cpp — FP8 (E4M3) heads wider than 128, whose values are transposed before and multiplied in
// parts, where kernels are emulated
#include <array>

#include "codegen/choose/kind.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/fp8_mods.h"

namespace attune::tests {
namespace {

/// More tiles of queries than blocks, the last of few rows; three tiles of keys.
Shape wide(std::int64_t d, std::int64_t dv, std::uint64_t seed) {
  Shape out{.batch = 2,
            .q_heads = 4,
            .kv_heads = 2,
            .q_len = 141,
            .kv_len = 300,
            .d = d,
            .dv = dv,
            .dtype = seed % 2 ? DType::bf16 : DType::f16,
            .layout = seed % 3 ? Layout::bhsd : Layout::bshd,
            .seed = seed};
  out.e4m3 = true;
  return out;
}

std::string wrong(const Engine& engine, const Attention& attention, const Shape& shape) {
  return compare(Subject(attention), inputs(shape), std::span(&engine, 1),
                 {.backward = false, .max = shape.seed % 2 == 0})
      .wrong;
}

constexpr runtime::emulated::Gpu gpu{.arch = 90, .sms = 3, .seed = 11};

}  // namespace

TEST_CASE("FP8 heads wider than 128 are what the oracle says, with every mod", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine(gpu);
  constexpr std::array<std::pair<int, int>, 4> widths{{{256, 256}, {192, 192}, {192, 128}, {144, 176}}};
  std::uint64_t seed = 0;
  for (const Attention* const attention : fp8::all) {
    const auto& [d, dv] = widths[seed % widths.size()];
    const Shape shape = wide(d, dv, ++seed);
    if (!in_turn(seed, 8)) continue;
    INFO(shape.describe());
    CHECK(wrong(engine, *attention, shape) == "");
  }
}

TEST_CASE("FP8 heads wider than 128, packed, of one query and of few that share keys, are what the oracle says",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine(gpu);
  Shape packed = wide(256, 256, 21), few = wide(256, 224, 22), one = wide(64, 256, 23), shared = wide(256, 160, 24);
  packed.q_lens = {130, 0, 1, 70};
  packed.kv_lens = {130, 7, 0, 199};
  few.q_heads = 8;
  few.q_len = 5;
  one.q_len = 1;
  shared.kv_shared = true;
  shared.before = true;
  for (const Shape& shape : {packed, few, one, shared})
    for (const Attention* const attention : {&fp8::causal, &fp8::scaled}) {
      INFO(shape.describe());
      CHECK(wrong(engine, *attention, shape) == "");
    }
}

TEST_CASE("every tile of FP8 heads wider than 128 computes the same", "[emulated]") {
  if (skipped_without_compiler()) return;
  for (std::size_t nth = 0;
       const char* const text : {"forward_e4m3_sm90:n=128,q_stages=1,transposed=1,columns=64",
                                 "forward_e4m3_sm90:n=128,q_stages=1,transposed=1,own_o=0,issue_order=0",
                                 "forward_e4m3_sm90:n=96,q_stages=1,transposed=1,issue_order=2",
                                 "forward_e4m3_sm90:n=64,q_stages=2,transposed=1,stages=2,own_o=1,columns=64",
                                 "forward_e4m3_sm90:n=32,q_stages=1,transposed=1,own_o=0,issue_order=1"}) {
    Engine engine = emulated_engine(gpu);
    const codegen::Preference preference{codegen::variant(text), true, ""};
    engine.forward = [&](const Subject& subject, const Forward& call, const compiler::Problem& problem) {
      on_device(subject, call, problem, {.preference = &preference});
    };
    INFO(text);
    if (in_turn(nth, 8)) CHECK(wrong(engine, fp8::causal, wide(192, 192, 31)) == "");
    if (in_turn(++nth, 8)) CHECK(wrong(engine, fp8::plain, wide(256, 192, 32)) == "");
  }
}

TEST_CASE("NaN in FP8 values wider than 128 reaches exactly the rows that keep it", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine(gpu);
  for (const Attention* const attention : {&fp8::windowed, &fp8::rich}) {
    if (!in_turn(attention == &fp8::rich, 4)) continue;
    const Shape shape = wide(256, 256, 41);
    const Inputs in = inputs(shape);
    std::int64_t nth = 0;
    each_element(in.v.tensor, [&](std::int64_t at) {
      if (nth++ % 20011 == 500) static_cast<std::uint8_t*>(in.v.tensor.data)[at] = 0x7f;
    });
    CHECK(compare(Subject(*attention), in, std::span(&engine, 1), {.backward = false}).wrong == "");
  }
}

}  // namespace attune::tests
