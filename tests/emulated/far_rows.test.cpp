// tests/emulated/far_rows.test.cpp — rows whose scores are all as low as masks are written, such as the lowest f32,
// through the kernels that are emulated, forward and backward
#include <cmath>

#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/corpus.h"

namespace attune::tests {
namespace {

constexpr const char* kept = "kv + 5 <= q";  // by none of the first five rows

/// A mask that is written as a score, and the same as a mask.
struct Low {
  CorpusMod score, mask;
};

Low low(std::string score, const std::string& sink = "", const std::string& prob = "") {
  const CorpusCapture sinks{"sinks", DType::f32, {4}, Fill::normal};
  Low out{{.name = "low", .score = std::move(score), .prob = prob, .sink = sink},
          {.name = "mask", .mask = kept, .prob = prob, .sink = sink}};
  if (!sink.empty()) out.score.captures = out.mask.captures = {sinks};
  return out;
}

std::vector<Low> lows() {
  const std::string by_sinks = "sinks[h]";
  Low by_row = low("s + where(q >= 5, 0.0f, -1e30f)");  // a term that is constant along a row
  by_row.score.mask = "kv <= q";
  by_row.mask.mask = "kv <= q && q >= 5";
  Low capped = low("where(kv + 5 <= q, 20.0f * tanh(s / 20.0f), -3.3895314e38f)");  // the lowest bf16
  capped.mask.score = "20.0f * tanh(s / 20.0f)";
  return {low("where(kv + 5 <= q, s, -3.4028235e38f)"),
          low("where(kv + 5 <= q, s, -3.4028235e38f)", by_sinks),
          capped,
          low("s + where(kv + 5 <= q, 0.0f, -3.4028235e38f)"),
          low("s + where(kv + 5 <= q, 0.0f, -1e12f)"),
          low("where(kv + 5 <= q, s, -1e10f)", "", "p * p"),
          by_row};
}

/// What an engine's backward says of `low`, if it is asked for the gradients of the mask.
std::string backward_as_masked(const Low& low, const Engine& engine, const Shape& shape) {
  const Made by_score = make(low.score, 3), by_mask = make(low.mask, 3);
  Subject as_score(by_score.attention);
  const Subject as_mask(by_mask.attention);
  as_score.lowered.slots.captures = as_mask.lowered.slots.captures;
  Engine asked = engine;
  asked.backward = [&](const Subject&, const Backward& call, const compiler::Problem& problem) {
    engine.backward(as_score, call, problem);
  };
  return compare(as_mask, inputs(shape), std::span(&asked, 1), {.forward = false, .grad_lse = false}).wrong;
}

}  // namespace

TEST_CASE("rows whose scores are all far below, as masks are written, have no gradient and make none NaN",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  for (std::size_t nth = 0, places = 0; const Low& one : lows()) {
    ++nth;
    for (const auto& [arch, shape] :
         {std::pair{80, Shape{.dtype = DType::f32}},
          {80, Shape{.d = 64, .dv = 64, .dtype = DType::bf16}},
          {90, Shape{.d = 64, .dv = 64, .dtype = DType::bf16}},
          {90, Shape{.d = 64, .dv = 64, .dtype = DType::f32}},
          {90, Shape{.q_len = 140, .kv_len = 150, .d = 128, .dv = 128, .dtype = DType::f16}},
          {90, Shape{.d = 192, .dv = 192, .dtype = DType::bf16}}}) {
      // Wide heads and those of 128 in turn, and f32 and bf16 on sm_80.
      if (shape.d == (nth % 2 ? 192 : 128)) continue;
      if (arch == 80 && (shape.dtype == DType::f32) == (nth % 2 == 0)) continue;
      if (!in_turn(places++, 12)) continue;
      const Engine engine = emulated_engine({.arch = arch});
      INFO(one.score.score << " " << one.score.sink << " " << arch << " " << shape.describe());
      CHECK(backward_as_masked(one, engine, shape) == "");
    }
  }
}

TEST_CASE("rows whose scores are all the lowest f32 are the mean of their values, or with a sink 0", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Shape small{.q_len = 20, .kv_len = 70, .d = 64, .dv = 64, .dtype = DType::bf16};
  Shape decode = small, f32 = small, e4m3 = small, long_decode = small;
  decode.q_len = long_decode.q_len = 1;
  long_decode.kv_len = 700;
  f32.dtype = DType::f32;
  e4m3.e4m3 = true;
  const Shape mla{
      .q_heads = 16, .kv_heads = 1, .q_len = 1, .kv_len = 70, .d = 576, .dv = 512, .dtype = DType::bf16, .mla = true};
  std::size_t places = 0;
  for (const char* const score :
       {"where(h % 2 == 1, s, -3.4028235e38f)", "where(kv < 1000 * (h % 2), s, -3.4028235e38f)"})
    for (const char* const sink : {"", "0.75f", "1e38f"}) {
      const Made made = make({.name = "low", .score = score, .sink = sink}, 3);
      for (const auto& [arch, shape] :
           {std::pair{80, small}, {80, decode}, {80, long_decode}, {90, small}, {90, f32}, {90, e4m3}, {90, mla}}) {
        if (!in_turn(places++, 16)) continue;  // seven calls: each takes every turn
        Engine engine = emulated_engine({.arch = arch});
        engine.mla = shape.mla;
        INFO(score << " " << sink << " " << arch << " " << shape.describe());
        CHECK(compare(Subject(made.attention), inputs(shape), std::span(&engine, 1), {.backward = false}).wrong == "");
      }
    }
}

TEST_CASE("a maximum is raised by any power of two, and where that is too high a tile is recomputed", "[emulated]") {
  if (skipped_without_compiler()) return;
  // A few of some thousand rows have a score that is 2^126 to 2^128 times all before it; others have a higher one.
  const Shape shape{
      .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 141, .kv_len = 270, .d = 64, .dv = 64, .dtype = DType::bf16};
  std::size_t nth = 0;
  for (const DType type : {DType::bf16, DType::f16, DType::f32})
    for (const float by : {32.0f, 40.0f, 50.0f}) {
      if (!in_turn(nth++, 3)) continue;
      Shape of = shape;
      of.dtype = type;
      const Engine engine = emulated_engine({.arch = 90}, type == DType::f32 ? "forward_f32_sm90" : "forward_sm90");
      INFO(by << " " << of.describe());
      CHECK(compare(Subject({.score = [=](Float s, At) { return s * by; }}), inputs(of), std::span(&engine, 1),
                    {.backward = false})
                .wrong == "");
    }
}

}  // namespace attune::tests
