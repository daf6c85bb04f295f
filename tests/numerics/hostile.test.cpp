// tests/numerics/hostile.test.cpp — masked-out pairs have no effect; empty rows, sinks, and scores that overflow
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/odd_rows.h"
#include "tests/numerics/zeros.h"
#include "tests/sanitizers.h"

using namespace attune;
using tests::Compared, tests::Inputs, tests::Shape;

namespace {

const Device host = Device::cpu();
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float poisons[] = {not_a_number, infinity, -infinity};

void agree(const Attention& attention, const Inputs& in, const Compared& what = {}) {
  const std::string wrong = tests::disagreement(attention, in, what);
  INFO(wrong);
  CHECK(wrong.empty());
}

/// Sets a whole position of [B, H, S, D], or of [B, H, S].
void poison(const Tensor& t, std::int64_t at, float with) {
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t j = 0; j < (t.rank == 4 ? t.shape[3] : 1); ++j)
        runtime::store(t, runtime::offset(t, b, h, at, j), static_cast<double>(with));
}

/// Requires a finite o from the oracle: poison that shows there would not be an engine's fault.
void require_clean(const Attention& attention, const Inputs& in) {
  const tests::Placed o = tests::place(DType::f64, in.shape_of_o(), tests::Layout::bhsd);
  Forward call = in.forward();
  call.o = o.tensor;
  Attention oracle = attention;
  oracle.target = Target::oracle;
  oracle.run(call);
  for (const double x : tests::elements(o.tensor)) REQUIRE(std::isfinite(x));
}

/// Tensors whose keys and values at these positions are poisoned.
Inputs poisoned(const Shape& shape, float with, const std::function<bool(std::int64_t)>& bad) {
  const Inputs in = tests::inputs(shape);
  for (std::int64_t kv = 0; kv < shape.kv_len; ++kv)
    if (bad(kv)) {
      poison(in.k.tensor, kv, with);
      poison(in.v.tensor, kv, with);
    }
  return in;
}

Shape shape(DType dtype, std::int64_t q_len = 20, std::int64_t kv_len = 150, std::int64_t dv = 5) {
  return {.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = q_len, .kv_len = kv_len, .d = 8, .dv = dv, .dtype = dtype};
}

}  // namespace

TEST_CASE("p that underflow, scores of -inf next to NaN and sinks far above them are as in the oracle", "[engine]") {
  for (const Attention& attention : tests::odd_rows()) agree(attention, tests::inputs(shape(DType::f32)));
}

TEST_CASE("max and min order -0 below 0 in every engine, and a tie passes its gradient to the first", "[engine]") {
  agree(tests::zeros_of_both_signs(), tests::inputs(shape(DType::f32)));
  agree(tests::zeros_of_both_signs(), tests::inputs(shape(DType::bf16)));
}

TEST_CASE("nothing in a key or value that is removed from every row reaches a result", "[engine]") {
  const Attention padded{.mask = [](At at) { return at.kv < 131; }};
  const Attention holes{.score = mods::softcap(8), .mask = [](At at) { return at.kv % 5 != 3; }};
  const Attention by_score{.score = [](Float s, At at) { return where(at.kv % 5 != 3, s, -infinity); }};
  const Attention twice{.mask = [](At at) { return at.kv % 5 != 3; }, .prob = [](Float p, At) { return p * p; }};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const float with : poisons) {
      const Inputs tail = poisoned(shape(dtype), with, [](std::int64_t kv) { return kv >= 131; });
      require_clean(padded, tail);
      agree(padded, tail);
      for (const Attention* attention : {&holes, &by_score, &twice}) {
        const Inputs in = poisoned(shape(dtype), with, [](std::int64_t kv) { return kv % 5 == 3; });
        require_clean(*attention, in);
        agree(*attention, in);
      }
    }
}

TEST_CASE("a poisoned key or value shows in the rows that keep it and in no other", "[engine]") {
  const Attention causal{.mask = mods::causal()};
  const Attention documents{.mask = [](At at) { return at.q / 8 == at.kv / 8; }};
  const Attention dropped{.mask = mods::causal(), .prob = [](Float p, At) { return p * 2; }};
  std::size_t next = 0;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const float with : poisons)
      for (const std::int64_t at : {0, 9, 70}) {
        if (!tests::runs_case(next++, 7)) continue;
        const auto bad = [&](std::int64_t kv) { return kv == at; };
        for (const Attention* attention : {&causal, &documents, &dropped}) {
          Inputs in = poisoned(shape(dtype, 90, 90), with, bad);
          agree(*attention, in);
          // Only values are poisoned: scores are finite, but 0 times a value is not. Engines may read 32 columns in
          // place.
          for (const std::int64_t dv : {5, 32}) {
            in = tests::inputs(shape(dtype, 90, 90, dv));
            poison(in.v.tensor, at, with);
            agree(*attention, in);
          }
        }
      }
}

TEST_CASE("a poisoned query shows in its own row alone", "[engine]") {
  const Attention documents{.mask = [](At at) { return at.q / 8 == at.kv / 8; }};
  for (const float with : poisons) {
    const Inputs in = tests::inputs(shape(DType::f32, 70, 70));
    poison(in.q.tensor, 33, with);
    agree(documents, in);
  }
}

TEST_CASE("what a row without pairs holds reaches no gradient", "[engine]") {
  const Attention late{.mask = [](At at) { return at.q >= 5 && at.kv <= at.q; }};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const float with : poisons) {
      const Inputs in = tests::inputs(shape(dtype, 20, 40));
      for (std::int64_t q = 0; q < 5; ++q) {
        poison(in.q.tensor, q, with);
        poison(in.grad_o.tensor, q, with);
        poison(in.grad_lse.tensor, q, with);
      }
      require_clean(late, in);
      agree(late, in);
    }
}

TEST_CASE("what a score reads of a removed pair never shows", "[engine]") {
  const auto bias = host.array<float>({20, 150}, "bias"), key = host.array<float>({150}, "key"),
             row = host.array<float>({20}, "row");
  for (const float with : poisons) {
    for (std::int64_t q = 0; q < 20; ++q)
      for (std::int64_t kv = 0; kv < 150; ++kv)
        bias.data()[q * 150 + kv] = kv <= q + 100 ? 0.01f * static_cast<float>(kv - q) : with;
    for (std::int64_t kv = 0; kv < 150; ++kv) key.data()[kv] = kv < 130 ? 0.5f : with;
    for (std::int64_t q = 0; q < 20; ++q) row.data()[q] = q < 12 ? -0.5f : with;
    const Attention by_pair{.score = [=](Float s, At at) { return s + bias(at.q, at.kv); },
                            .mask = [](At at) { return at.kv <= at.q + 100; }};
    const Attention by_key{.score = [=](Float s, At at) { return s * key[at.kv]; },
                           .mask = [](At at) { return at.kv < 130; }};
    const Attention by_row{.score = [=](Float s, At at) { return s + row[at.q]; },
                           .mask = [](At at) { return at.q < 12; }};
    for (const Attention* attention : {&by_pair, &by_key, &by_row})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Inputs in = tests::inputs(shape(dtype));
        require_clean(*attention, in);
        agree(*attention, in);
      }
  }
}

TEST_CASE("rows without pairs give 0, -inf and no gradient, wherever they lie", "[engine]") {
  const Attention nothing{.mask = [](At at) { return at.kv > at.q + 1000; }};
  const Attention some{.mask = [](At at) { return at.q % 3 == 1; }};
  const Attention by_head{.mask = [](At at) { return at.head == 1 && at.kv <= at.q - 7; }};
  const Attention by_score{.score = [](Float s, At at) { return where(at.q < 66, -infinity, s); }};
  for (const Attention* attention : {&nothing, &some, &by_head, &by_score})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      agree(*attention, tests::inputs(shape(dtype, 70, 40)));
}

TEST_CASE("sinks of any size join the softmax, at -inf they do not, and NaN and inf are NaN", "[engine]") {
  for (const float value : {0.0f, -3.0f, 4.0f, 80.0f, -200.0f, -infinity, infinity, not_a_number}) {
    const auto logit = host.array<float>({2}, "logit");
    logit.data()[0] = value;
    logit.data()[1] = 0.5f;
    const Sink sink = [=](SinkAt at) { return logit[at.head]; };
    const Attention plain{.sink = sink};
    const Attention masked{.mask = [](At at) { return at.kv <= at.q - 4; }, .sink = sink};
    const Attention relative{.score = [](Float s, At at) { return s - 0.5f * at.q; }, .sink = sink};
    const Attention squared{.mask = mods::causal(), .prob = [](Float p, At) { return p * p; }, .sink = sink};
    for (const Attention* attention : {&plain, &masked, &relative, &squared})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        INFO("sink " << value);
        agree(*attention, tests::inputs(shape(dtype, 20, 30)));
      }
  }
}

TEST_CASE("scores that are NaN, inf, or the least float are what the oracle has", "[engine]") {
  const auto score = [](float with) {
    return Attention{.score = [=](Float s, At at) { return where((at.q + at.kv) % 17 == 3 && at.q < 9, with, s); }};
  };
  for (const float with : {not_a_number, infinity, -infinity, -std::numeric_limits<float>::max(), 1e30f}) {
    INFO("score " << with);
    // A backward gets lse, and an lse of 1e30 in f32 does not tell how many such scores there were.
    const Compared what{.backward = !(std::abs(with) > 1e6f && std::isfinite(with))};
    agree(score(with), tests::inputs(shape(DType::f32, 20, 30)), what);
    agree(score(with), tests::inputs(shape(DType::bf16, 20, 30)), what);
  }
  // A common way to mask: rows with only the least float average all values.
  const float least = -std::numeric_limits<float>::max();
  const Attention usual{.score = [=](Float s, At at) { return where(at.kv <= at.q - 3, s, least); }};
  agree(usual, tests::inputs(shape(DType::f32, 20, 150)), {.backward = false});
}

TEST_CASE("softmaxes over large scores stay finite and near", "[engine]") {
  for (const float factor : {20.0f, 1000.0f, -1000.0f}) {
    const Attention steep{.score = [=](Float s, At) { return s * factor; }};
    const Attention far{.score = [=](Float s, At at) { return s + factor * at.kv; }, .mask = mods::causal()};
    agree(steep, tests::inputs(shape(DType::f32, 20, 150)));
    agree(far, tests::inputs(shape(DType::f32, 20, 150)));
  }
}

TEST_CASE("factors of a score that leave f32 together make no NaN of 0, and flush nothing", "[engine]") {
  const Inputs still = tests::inputs(shape(DType::f32));
  for (std::int64_t q = 0; q < 20; ++q) poison(still.q.tensor, q, 0);
  agree({.score = [](Float s, At) { return s / 1e-20f / 1e-20f; }}, still, {.backward = false});
  agree({.score = [](Float s, At) { return s * 1e30f * 1e30f; }}, still, {.backward = false});

  // s is large enough that s / 2^127 is not small.
  const Inputs large = tests::inputs(shape(DType::f32));
  for (std::int64_t q = 0; q < 20; ++q) poison(large.q.tensor, q, 1e37f);
  for (const float by : {0x1p127f, -0x1p127f, 3e38f})
    agree({.score = [=](Float s, At) { return s / by; }, .scale = 1}, large, {.backward = false});
}

// docs/semantics.md says what engines may do here; what they do today is written down, so that a change is noticed.
TEST_CASE("denormals, values of probability 0, inf beside NaN, NaN of a row that is -inf or dropped", "[engine]") {
  const auto one = [](std::initializer_list<std::int64_t> shape, const std::vector<float>& values) {
    const auto out = host.array<float>(shape);
    std::ranges::copy(values, out.data());
    return out;
  };
  const auto q = one({1, 1, 1, 1}, {1}), k = one({1, 1, 2, 1}, {1, 1}), v = one({1, 1, 2, 1}, {1, 1}),
             bad = one({1, 1, 2, 1}, {not_a_number, 1}), o = one({1, 1, 1, 1}, {7}), lse = one({1, 1, 1}, {7}),
             max = one({1, 1, 1}, {7}), odd = one({2}, {infinity, not_a_number}),
             dead = one({2}, {-infinity, -infinity}), row = one({1}, {not_a_number}), none = one({2}, {0, 0}),
             hot = one({2}, {infinity, 1});
  const auto run = [&](Attention attention, Target target, const Array<float>& values) {
    attention.target = target;
    attention.run({.q = q, .k = k, .v = values, .o = o, .lse = lse, .max = max});
  };
  const Attention least{.score = [](Float s, At) { return where(s * 1e-38f * 1e-7f > 0.0f, 1.0f, 0.0f * s); }};
  const Attention zero{.prob = [](Float p, At at) { return where(at.kv == 0, 0.0f, p); }};
  const Attention mixed{.score = [=](Float, At at) { return odd[at.kv]; }};
  const Attention dropped{.score = [=](Float s, At at) { return s + odd[at.kv]; },
                          .prob = [=](Float p, At at) { return where(none[at.kv] > 0.0f, p, 0.0f); }};
  const Attention infinite{.score = [=](Float, At at) { return hot[at.kv]; }};
  const Attention apart{.score = [=](Float s, At at) { return s + dead[at.kv] + row[at.q]; }};

  run(least, Target::oracle, v);
  CHECK(lse.data()[0] == Approx(1 + std::log(2.0)));
  run(zero, Target::oracle, bad);
  CHECK(std::isnan(o.data()[0]));
  run(mixed, Target::oracle, v);
  CHECK((std::isnan(o.data()[0]) && std::isnan(lse.data()[0]) && std::isnan(max.data()[0])));
  run(apart, Target::oracle, v);
  CHECK((std::isnan(o.data()[0]) && std::isnan(lse.data()[0])));
  run(dropped, Target::oracle, v);
  CHECK((std::isnan(o.data()[0]) && std::isnan(lse.data()[0])));
  run(infinite, Target::oracle, v);
  CHECK((std::isnan(o.data()[0]) && std::isnan(lse.data()[0]) && max.data()[0] == infinity));

  run(least, Target::cpu, v);
  CHECK(lse.data()[0] == Approx(std::log(2.0)));
  run(zero, Target::cpu, bad);
  CHECK(o.data()[0] == Approx(0.5));
  run(mixed, Target::cpu, v);
  CHECK((std::isnan(o.data()[0]) && std::isnan(lse.data()[0])));
  CHECK(max.data()[0] == infinity);
  run(apart, Target::cpu, v);
  CHECK((o.data()[0] == 0 && lse.data()[0] == -infinity));
  run(dropped, Target::cpu, v);
  CHECK((std::isnan(o.data()[0]) && std::isnan(lse.data()[0])));
  run(infinite, Target::cpu, v);
  CHECK((std::isnan(o.data()[0]) && std::isnan(lse.data()[0]) && max.data()[0] == infinity));
}

TEST_CASE("prob mods may make anything of p, also what its pair's row lacks", "[engine]") {
  const Attention constant{.mask = mods::causal(), .prob = [](Float, At at) { return where(at.kv % 2 == 0, 1, 0); }};
  const Attention removing{.prob = [](Float p, At at) { return where(at.kv < 7, 0, p); }};
  const Attention negative{.prob = [](Float p, At) { return 0.1f - p; }};
  const Attention root{.mask = mods::causal(), .prob = [](Float p, At) { return sqrt(p + 0.01f); }};
  for (const Attention* attention : {&constant, &removing, &negative, &root})
    for (const DType dtype : {DType::f32, DType::bf16}) agree(*attention, tests::inputs(shape(dtype, 20, 150)));
}
