// tests/numerics/agree.test.cpp — the yardstick is strict, and every kind of wrong engine is found
#include "tests/numerics/agree.h"

#include <attune/attune.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/numerics/corpus.h"
#include "tests/numerics/dense.h"
#include "tests/sanitizers.h"

using namespace attune;
using tests::Compared, tests::Engine, tests::Layout, tests::Shape, tests::Subject;

namespace {

/// Dense attention as an engine, with results changed by `spoil`.
Engine dense_but(std::function<void(const Forward&)> spoil, std::function<void(const Backward&)> spoil_backward = {}) {
  return {.name = "dense",
          .forward =
              [=](const Subject& subject, const Forward& call, const compiler::Problem& problem) {
                tests::dense_forward(subject.written, call, problem, call.q.dtype);
                if (spoil) spoil(call);
              },
          .backward =
              [=](const Subject& subject, const Backward& call, const compiler::Problem& problem) {
                tests::dense_backward(subject.lowered, call, problem);
                if (spoil_backward) spoil_backward(call);
              }};
}

std::string wrong(const Engine& engine, const Attention& attention, const Shape& shape, const Compared& what = {}) {
  return tests::compare(Subject(attention), tests::inputs(shape), std::span(&engine, 1), what).wrong;
}

void multiply(const Tensor& t, std::int64_t at, double by) { runtime::store(t, at, runtime::load(t, at) * by); }

const Attention causal{.score = mods::softcap(20), .mask = [](At at) { return at.kv + 4 <= at.q; }};

}  // namespace

TEST_CASE("dense attention is near the oracle over the corpus: f32 to rounding, 16 bits to theirs", "[agree]") {
  std::size_t next = 0;
  for (const tests::CorpusMod& mod : tests::corpus()) {
    if (!tests::runs_case(next++, 11)) continue;
    const tests::Made made = tests::make(mod, 3);
    const Subject subject(made.attention);
    // Only a comparison with an observer uses all yardsticks.
    const Engine itself = dense_but({});
    const Compared what{.observe = [](const tests::Observed&) {}};
    const auto error = [&](DType dtype) {
      return tests::compare(subject, tests::inputs({.dtype = dtype, .seed = 5}), std::span(&itself, 1), what)
          .dense_error;
    };
    INFO(mod.name);
    CHECK(error(DType::f32) < 4e-5);  // 2.7e-5 from lse rounded up: a scalar's gradient that cancels
    CHECK(error(DType::f16) < 2e-2);
    CHECK(error(DType::bf16) < 1e-1);
  }
}

TEST_CASE("dense attention itself is found right, in every layout", "[agree]") {
  for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::columns, Layout::reversed, Layout::padded,
                              Layout::spread, Layout::one_head}) {
    CHECK(wrong(dense_but({}), causal, {.layout = layout}) == "");
    CHECK(wrong(dense_but({}), causal,
                {.dtype = DType::bf16, .layout = layout, .q_lens = {3, 0, 9}, .kv_lens = {5, 2, 0}}) == "");
  }
}

TEST_CASE("a result that is a little off is found wrong", "[agree]") {
  const auto off = [](double by) {
    return dense_but([=](const Forward& call) {
      for (std::int64_t i = 0; i < call.o.size(); ++i) multiply(call.o, i, 1 + by);
    });
  };
  CHECK(wrong(off(2e-6), causal, {}) != "");
  CHECK(wrong(off(0.02), causal, {.dtype = DType::bf16}) != "");
  CHECK(wrong(off(1e-8), causal, {}) == "");
}

TEST_CASE("one wrong element of many is found", "[agree]") {
  CHECK(wrong(dense_but([](const Forward& call) { multiply(call.o, 3000, 1.01); }), causal, {}) != "");
  CHECK(wrong(dense_but([](const Forward& call) { runtime::store(call.lse, 70, 0.5); }), causal, {}) != "");
  CHECK(wrong(dense_but([](const Forward& call) { multiply(call.max, 90, 1.001); }), causal, {}) != "");
  CHECK(wrong(dense_but({}, [](const Backward& call) { multiply(call.dq, 3000, 1.01); }), causal, {}) != "");
  CHECK(wrong(dense_but({}, [](const Backward& call) { multiply(call.dk, 101, 1.01); }), causal, {}) != "");
  CHECK(wrong(dense_but({}, [](const Backward& call) { multiply(call.dv, 101, 1.01); }), causal, {}) != "");
}

TEST_CASE("a captured gradient that is wrong is found", "[agree]") {
  const auto slope = Device::cpu().array<float>({4}, "slope");
  for (float& x : slope.values()) x = 0.1f;
  const Attention alibi{.score = [=](Float s, At at) { return s + slope[at.head] * (at.kv - at.q); }};
  const auto spoil = [](const Backward& call) { multiply(call.captured.at(0).into, 2, 1.001); };
  CHECK(wrong(dense_but({}), alibi, {}) == "");
  CHECK(wrong(dense_but({}, spoil), alibi, {}) != "");
}

TEST_CASE("a captured gradient whose terms cancel may be off by the roundings of o, and no more", "[agree]") {
  const auto bias = Device::cpu().array<float>({1}, "bias");
  // Values and grad_o of 1: each pair's term is p times the sink's probability, 1e-5, and delta is nearly 1.
  const Attention low_sink{.score = [=](Float s, At) { return s + bias[0]; }, .sink = [](SinkAt) { return Float(-9); }};
  const tests::Inputs in = tests::inputs(
      {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = 7, .d = 8, .dv = 1, .dtype = DType::f16});
  for (std::int64_t kv = 0; kv < 7; ++kv) runtime::store(in.v.tensor, runtime::offset(in.v.tensor, 0, 0, kv, 0), 1);
  runtime::store(in.grad_o.tensor, 0, 1);
  const auto off = [&](double roundings) {
    const Engine engine = dense_but({}, [=](const Backward& call) {
      const Tensor& into = call.captured.at(0).into;
      runtime::store(into, 0, runtime::load(into, 0) + roundings * 0x1p-11);
    });
    return tests::compare(Subject(low_sink), in, std::span(&engine, 1), {.grad_lse = false}).wrong;
  };
  CHECK(off(0.9) == "");
  CHECK(off(-0.9) == "");
  CHECK(off(1.5) != "");  // o's rounding, and one of each p: at most the root of 2
}

TEST_CASE("NaN, infinity and empty rows are found where the oracle has none, and missed where it has them", "[agree]") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double x : {infinity, -infinity, nan}) {
    CHECK(wrong(dense_but([=](const Forward& call) { runtime::store(call.o, 5, x); }), causal, {}) != "");
    CHECK(wrong(dense_but([=](const Forward& call) { runtime::store(call.lse, 10, x); }), causal, {}) != "");
    CHECK(wrong(dense_but({}, [=](const Backward& call) { runtime::store(call.dk, 5, x); }), causal, {}) != "");
  }
  // The first four rows keep nothing.
  for (const double x : {0.0, -1e30, infinity, nan}) {
    CHECK(wrong(dense_but([=](const Forward& call) { runtime::store(call.lse, 0, x); }), causal, {}) != "");
    CHECK(wrong(dense_but([=](const Forward& call) { runtime::store(call.max, 0, x); }), causal, {}) != "");
  }
}

TEST_CASE("what is written beside the elements of an output, and what is thrown, is told", "[agree]") {
  const auto beside = [](const Forward& call) { *(static_cast<float*>(call.o.data) + call.o.shape[3]) = 1; };
  CHECK(wrong(dense_but(beside), causal, {.layout = Layout::padded}).find("beside") != std::string::npos);
  const auto thrown = [](const Forward&) { throw std::runtime_error("no such luck"); };
  const std::string told = wrong(dense_but(thrown), causal, {.seed = 77});
  for (const char* part : {"no such luck", "kv + 4 <= q", "seed 77", "tanh"})
    CHECK(told.find(part) != std::string::npos);
}

TEST_CASE("a result that is not written is found", "[agree]") {
  const Engine lazy{.name = "lazy",
                    .forward = [](const Subject&, const Forward&, const compiler::Problem&) {},
                    .backward = [](const Subject&, const Backward&, const compiler::Problem&) {}};
  CHECK(wrong(lazy, causal, {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 8, .kv_len = 1, .d = 1, .dv = 1},
              {.backward = false}) != "");
  CHECK(wrong(lazy, causal, {}, {.forward = false}) != "");
}
