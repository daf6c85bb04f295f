// tests/runtime/engines/oracle/oracle.test.cpp — attention computed by hand, and properties that hold for any numbers
#include <attune/attune.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "compiler/check.h"
#include "compiler/trace.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/oracle/verify.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/refusal.h"

using namespace attune;
using tests::elements;

namespace {

const Device host = Device::cpu();
const double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

Array<double> numbers(std::initializer_list<std::int64_t> shape, std::vector<double> values) {
  auto out = host.array<double>(shape);
  REQUIRE(out.values().size() == values.size());
  std::copy(values.begin(), values.end(), out.data());
  return out;
}

Array<double> random_numbers(std::initializer_list<std::int64_t> shape, unsigned seed) {
  auto out = host.array<double>(shape);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (double& x : out.values()) x = uniform(random);
  return out;
}

Array<double> like(const Tensor& t) { return {host, std::span(t.shape).first(static_cast<std::size_t>(t.rank))}; }

void same(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("element " << i);
    if (std::isinf(b[i]))
      CHECK(a[i] == b[i]);
    else
      CHECK(a[i] == Approx(b[i]).margin(1e-12));
  }
}

Attention oracle(Attention a) {
  a.target = Target::oracle;
  return a;
}

struct Output {
  Array<double> o, lse, max;
};

/// Dense: o, lse and max for q [B, Hq, Sq, D] and v [.., Dv].
Output forward(const Attention& attention, const Tensor& q, const Tensor& k, const Tensor& v,
               std::int32_t q_offset = 0) {
  Output out{host.array<double>({q.shape[0], q.shape[1], q.shape[2], v.shape[3]}),
             host.array<double>({q.shape[0], q.shape[1], q.shape[2]}),
             host.array<double>({q.shape[0], q.shape[1], q.shape[2]})};
  oracle(attention).run({.q = q, .k = k, .v = v, .o = out.o, .lse = out.lse, .max = out.max, .q_offset = q_offset});
  return out;
}

struct Gradients {
  Array<double> dq, dk, dv;
};

Gradients backward(const Attention& attention, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad_o,
                   const Tensor& grad_lse = {}, std::vector<Backward::Captured> captured = {}) {
  Gradients out{like(q), like(k), like(v)};
  oracle(attention).backward({.q = q,
                              .k = k,
                              .v = v,
                              .grad_o = grad_o,
                              .grad_lse = grad_lse,
                              .dq = out.dq,
                              .dk = out.dk,
                              .dv = out.dv,
                              .captured = std::move(captured)});
  return out;
}

/// One query 1, keys 0 and ln 3, values 10 and 20, scale 1: p is 1/4 and 3/4.
struct Tiny {
  Array<double> q = numbers({1, 1, 1, 1}, {1}), k = numbers({1, 1, 2, 1}, {0, std::log(3.0)}),
                v = numbers({1, 1, 2, 1}, {10, 20}), one = numbers({1, 1, 1, 1}, {1});
};

/// Only head h of batch entry b.
Tensor slice(const Tensor& t, std::int64_t b, std::int64_t h) {
  Tensor out = t;
  out.data = static_cast<double*>(t.data) + b * t.strides[0] + h * t.strides[1];
  out.shape[0] = out.shape[1] = 1;
  return out;
}

}  // namespace

TEST_CASE("two keys by hand", "[oracle]") {
  const Tiny t;
  const Output out = forward({.scale = 1}, t.q, t.k, t.v);
  CHECK(out.o.values()[0] == Approx(17.5));
  CHECK(out.lse.values()[0] == Approx(std::log(4.0)));
  CHECK(out.max.values()[0] == Approx(std::log(3.0)));
}

TEST_CASE("two keys backwards by hand", "[oracle]") {
  const Tiny t;
  // dp = 10, 20; delta = 17.5; ds = p (dp - delta) = -1.875, 1.875.
  const Gradients g = backward({.scale = 1}, t.q, t.k, t.v, t.one);
  same(elements(g.dv), {0.25, 0.75});
  same(elements(g.dk), {-1.875, 1.875});
  same(elements(g.dq), {1.875 * std::log(3.0)});
}

TEST_CASE("the gradient of lse adds p times it to ds", "[oracle]") {
  const Tiny t;
  const Gradients g = backward({.scale = 1}, t.q, t.k, t.v, t.one, numbers({1, 1, 1}, {2}));
  same(elements(g.dk), {-1.875 + 0.5, 1.875 + 1.5});
}

TEST_CASE("a sink takes its share by hand", "[oracle]") {
  const Tiny t;
  const auto logit = numbers({1}, {std::log(4.0)}), dlogit = numbers({1}, {99});
  const Attention attention{.sink = mods::learned_sink(logit), .scale = 1};
  const Output out = forward(attention, t.q, t.k, t.v);
  CHECK(out.o.values()[0] == Approx(8.75));  // p is 1/8, 3/8 and 1/2 for the sink
  CHECK(out.lse.values()[0] == Approx(std::log(8.0)));
  CHECK(out.max.values()[0] == Approx(std::log(3.0)));  // of the scores alone
  backward(attention, t.q, t.k, t.v, t.one, {}, {{logit, dlogit}});
  CHECK(dlogit.values()[0] == Approx(0.5 * (0 - 8.75)));
}

TEST_CASE("a prob mod changes p behind the softmax and leaves lse", "[oracle]") {
  const Tiny t;
  const Attention attention{.prob = [](Float p, At) { return p * p; }, .scale = 1};
  const Output out = forward(attention, t.q, t.k, t.v);
  CHECK(out.o.values()[0] == Approx(10.0 / 16 + 20 * 9.0 / 16));
  CHECK(out.lse.values()[0] == Approx(std::log(4.0)));
  // dp = 2 p dp' = 5, 30; delta = 23.75.
  const Gradients g = backward(attention, t.q, t.k, t.v, t.one);
  same(elements(g.dv), {1.0 / 16, 9.0 / 16});
  same(elements(g.dk), {0.25 * (5 - 23.75), 0.75 * (30 - 23.75)});
}

TEST_CASE("a captured gradient lands where it was read", "[oracle]") {
  const Tiny t;
  const auto bias = numbers({3}, {0, 0, 5}), dbias = numbers({3}, {9, 9, 9});
  const Attention attention{.score = mods::key_bias(bias), .scale = 1};
  backward(attention, t.q, t.k, t.v, t.one, {}, {{bias, dbias}});
  same(elements(dbias), {-1.875, 1.875, 0});
}

TEST_CASE("the scale defaults to one over the root of D", "[oracle]") {
  const auto q = random_numbers({1, 1, 2, 16}, 1), k = random_numbers({1, 1, 3, 16}, 2),
             v = random_numbers({1, 1, 3, 4}, 3);
  same(elements(forward({}, q, k, v).o), elements(forward({.scale = 0.25}, q, k, v).o));
}

TEST_CASE("large scores neither overflow nor lose lse", "[oracle]") {
  const Tiny t;
  const Output out = forward({.score = [](Float s, At) { return s + 5000; }, .scale = 1}, t.q, t.k, t.v);
  CHECK(out.o.values()[0] == Approx(17.5));
  CHECK(out.lse.values()[0] == Approx(5000 + std::log(4.0)));
}

TEST_CASE("two halves of the keys merge by their lse into the whole", "[oracle]") {
  const auto q = random_numbers({2, 2, 3, 4}, 1), k = random_numbers({2, 1, 7, 4}, 2),
             v = random_numbers({2, 1, 7, 3}, 3);
  const Attention low{.mask = [](At at) { return at.kv < 3; }}, high{.mask = [](At at) { return at.kv >= 3; }};
  const Output a = forward(low, q, k, v), b = forward(high, q, k, v), whole = forward({}, q, k, v);
  for (std::size_t row = 0; row < whole.lse.values().size(); ++row) {
    const double la = a.lse.values()[row], lb = b.lse.values()[row], lse = std::log(std::exp(la) + std::exp(lb));
    CHECK(whole.lse.values()[row] == Approx(lse));
    CHECK(whole.max.values()[row] == std::max(a.max.values()[row], b.max.values()[row]));
    for (std::size_t j = 0; j < 3; ++j)
      CHECK(whole.o.values()[row * 3 + j] ==
            Approx(std::exp(la - lse) * a.o.values()[row * 3 + j] + std::exp(lb - lse) * b.o.values()[row * 3 + j]));
  }
}

TEST_CASE("a NaN or inf in what the mask removes reaches nothing", "[oracle]") {
  const double poison = GENERATE(not_a_number, infinity, -infinity);
  const auto q = random_numbers({1, 1, 2, 2}, 1), grad = random_numbers({1, 1, 2, 2}, 4);
  const auto k = random_numbers({1, 1, 3, 2}, 2), v = random_numbers({1, 1, 3, 2}, 3);
  const auto bias = random_numbers({3}, 5), dbias = like(bias), clean = like(bias);
  const Attention attention{.score = mods::key_bias(bias), .mask = [](At at) { return at.kv != 1; }};
  const Output right = forward(attention, q, k, v);
  const Gradients right_g = backward(attention, q, k, v, grad, {}, {{bias, clean}});
  k.data()[2] = k.data()[3] = v.data()[2] = v.data()[3] = bias.data()[1] = poison;
  const Output out = forward(attention, q, k, v);
  const Gradients g = backward(attention, q, k, v, grad, {}, {{bias, dbias}});
  same(elements(out.o), elements(right.o));
  same(elements(out.lse), elements(right.lse));
  same(elements(g.dq), elements(right_g.dq));
  same(elements(g.dk), elements(right_g.dk));
  same(elements(g.dv), elements(right_g.dv));
  same(elements(dbias), elements(clean));
}

TEST_CASE("a score of -inf removes the pair as a mask does", "[oracle]") {
  const auto q = random_numbers({1, 1, 2, 2}, 1), k = random_numbers({1, 1, 3, 2}, 2),
             v = random_numbers({1, 1, 3, 2}, 3), grad = random_numbers({1, 1, 2, 2}, 4);
  v.data()[0] = not_a_number;
  const Attention by_score{.score = [](Float s, At at) { return where(at.kv == 0, -INFINITY, s); }};
  const Attention by_mask{.mask = [](At at) { return at.kv != 0; }};
  same(elements(forward(by_score, q, k, v).o), elements(forward(by_mask, q, k, v).o));
  same(elements(backward(by_score, q, k, v, grad).dk), elements(backward(by_mask, q, k, v, grad).dk));
}

TEST_CASE("a NaN that is kept is not hidden", "[oracle]") {
  const Tiny t;
  t.k.data()[0] = not_a_number;
  const Output out = forward({}, t.q, t.k, t.v);
  CHECK(std::isnan(out.o.values()[0]));
  CHECK(std::isnan(out.lse.values()[0]));
}

TEST_CASE("a row with nothing left gives 0, -inf and no gradients", "[oracle]") {
  const auto q = random_numbers({1, 1, 2, 2}, 1), k = random_numbers({1, 1, 3, 2}, 2),
             v = random_numbers({1, 1, 3, 2}, 3), grad = random_numbers({1, 1, 2, 2}, 4);
  const Attention none{.mask = [](At) { return false; }};
  const Output out = forward(none, q, k, v);
  same(elements(out.o), {0, 0, 0, 0});
  same(elements(out.lse), {-infinity, -infinity});
  same(elements(out.max), {-infinity, -infinity});
  const Gradients g = backward(none, q, k, v, grad, numbers({1, 1, 2}, {not_a_number, 1}));
  same(elements(g.dq), {0, 0, 0, 0});
  same(elements(g.dk), std::vector<double>(6));
  same(elements(g.dv), std::vector<double>(6));
}

TEST_CASE("an empty row with a sink gives 0 and the sink", "[oracle]") {
  const Tiny t;
  const auto logit = numbers({1}, {3}), dlogit = like(logit);
  const Attention attention{.mask = [](At) { return false; }, .sink = mods::learned_sink(logit)};
  const Output out = forward(attention, t.q, t.k, t.v);
  CHECK(out.o.values()[0] == 0);
  CHECK(out.lse.values()[0] == Approx(3));
  CHECK(out.max.values()[0] == -infinity);
  backward(attention, t.q, t.k, t.v, t.one, numbers({1, 1, 1}, {0.5}), {{logit, dlogit}});
  CHECK(dlogit.values()[0] == Approx(0.5));
}

TEST_CASE("a sink of -inf is no sink", "[oracle]") {
  const Tiny t;
  const Attention attention{.sink = [](SinkAt) { return Float(-INFINITY); }, .scale = 1};
  CHECK(forward(attention, t.q, t.k, t.v).o.values()[0] == Approx(17.5));
  const Attention empty{.mask = [](At) { return false; }, .sink = [](SinkAt) { return Float(-INFINITY); }};
  CHECK(forward(empty, t.q, t.k, t.v).lse.values()[0] == -infinity);
}

TEST_CASE("query heads share KV heads in groups of any size", "[oracle]") {
  const std::int64_t group = GENERATE(1, 3, 5, 7, 8);
  const auto q = random_numbers({2, 2 * group, 3, 4}, 1), k = random_numbers({2, 2, 5, 4}, 2),
             v = random_numbers({2, 2, 5, 6}, 3), grad = random_numbers({2, 2 * group, 3, 6}, 4);
  const Output out = forward({}, q, k, v);
  const Gradients g = backward({}, q, k, v, grad);
  auto dk = like(k);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 2 * group; ++h) {
      const Tensor qh = slice(q, b, h), kh = slice(k, b, h / group), vh = slice(v, b, h / group);
      same(elements(slice(out.o, b, h)), elements(forward({}, qh, kh, vh).o));
      const Gradients alone = backward({}, qh, kh, vh, slice(grad, b, h));
      same(elements(slice(g.dq, b, h)), elements(alone.dq));
      const Tensor into = slice(dk, b, h / group);
      for (std::size_t i = 0; i < 20; ++i) static_cast<double*>(into.data)[i] += alone.dk.values()[i];
    }
  same(elements(g.dk), elements(dk));
}

TEST_CASE("keys of one batch entry serve all, and their gradients add up", "[oracle]") {
  const auto q = random_numbers({3, 2, 2, 4}, 1), k = random_numbers({1, 1, 5, 4}, 2),
             v = random_numbers({1, 1, 5, 4}, 3), grad = random_numbers({3, 2, 2, 4}, 4);
  const auto repeated = [](const Tensor& t) {
    Tensor out = t;
    out.shape[0] = 3;
    out.strides[0] = 0;
    return out;
  };
  const Tensor ks = repeated(k), vs = repeated(v);
  same(elements(forward({}, q, k, v).o), elements(forward({}, q, ks, vs).o));
  const Gradients shared = backward({}, q, k, v, grad), each = backward({}, q, ks, vs, grad);
  same(elements(shared.dq), elements(each.dq));
  for (std::size_t i = 0; i < 20; ++i)
    CHECK(shared.dk.values()[i] == Approx(each.dk.values()[i] + each.dk.values()[20 + i] + each.dk.values()[40 + i]));
}

TEST_CASE("strides may be anything: permuted, reversed, 0", "[oracle]") {
  const auto q = random_numbers({2, 3, 2, 4}, 1), k = random_numbers({2, 3, 5, 4}, 2),
             v = random_numbers({2, 3, 5, 4}, 3);
  const auto as_bshd = [](const Array<double>& from) {
    const Tensor& t = from;
    auto memory = host.array<double>({t.shape[0], t.shape[2], t.shape[1], t.shape[3]});
    const Tensor view = memory.tensor().permuted({0, 2, 1, 3});
    for (std::int64_t b = 0; b < t.shape[0]; ++b)
      for (std::int64_t h = 0; h < t.shape[1]; ++h)
        for (std::int64_t s = 0; s < t.shape[2]; ++s)
          for (std::int64_t d = 0; d < t.shape[3]; ++d)
            memory.data()[b * view.strides[0] + h * view.strides[1] + s * view.strides[2] + d] =
                from.data()[b * t.strides[0] + h * t.strides[1] + s * t.strides[2] + d];
    return memory;
  };
  const Output right = forward({.mask = mods::causal()}, q, k, v);
  const auto q2 = as_bshd(q), k2 = as_bshd(k), v2 = as_bshd(v);
  const auto o2 = host.array<double>({2, 2, 3, 4});
  oracle({.mask = mods::causal()})(q2.tensor().permuted({0, 2, 1, 3}), k2.tensor().permuted({0, 2, 1, 3}),
                                   v2.tensor().permuted({0, 2, 1, 3}), o2.tensor().permuted({0, 2, 1, 3}));
  same(elements(o2.tensor().permuted({0, 2, 1, 3})), elements(right.o));

  // Without a mask, keys and values in reverse order give the same result.
  const auto reversed = [](const Tensor& t) {
    Tensor out = t;
    out.data = static_cast<double*>(t.data) + (t.shape[2] - 1) * t.strides[2];
    out.strides[2] = -t.strides[2];
    return out;
  };
  same(elements(forward({}, q, reversed(k), reversed(v)).o), elements(forward({}, q, k, v).o));

  // One key for all positions: p is the same everywhere, and o is the mean of v.
  Tensor still = k;
  still.strides[2] = 0;
  const Output mean = forward({}, q, still, v);
  double first = 0;
  for (std::size_t s = 0; s < 5; ++s) first += v.values()[s * 4] / 5;
  CHECK(mean.o.values()[0] == Approx(first));
}

TEST_CASE("packed sequences give what each gives alone", "[oracle]") {
  const std::vector<std::int32_t> q_starts{0, 3, 3, 4, 6}, kv_starts{0, 2, 5, 5, 9};
  auto cu_q = host.array<std::int32_t>({5}), cu_kv = host.array<std::int32_t>({5});
  std::copy(q_starts.begin(), q_starts.end(), cu_q.data());
  std::copy(kv_starts.begin(), kv_starts.end(), cu_kv.data());
  const auto q = random_numbers({6, 4, 3}, 1), k = random_numbers({9, 2, 3}, 2), v = random_numbers({9, 2, 5}, 3),
             grad = random_numbers({6, 4, 5}, 4), grad_lse = random_numbers({4, 6}, 5);
  const auto o = host.array<double>({6, 4, 5}), lse = host.array<double>({4, 6});
  const auto dq = like(q), dk = like(k), dv = like(v);
  // The mod uses every coordinate; q_len differs between the sequences.
  const Attention attention = oracle(
      {.score = [](Float s, At at) { return s + f32(at.batch) * 0.1f * f32(at.q - at.kv) + f32(at.q_len - at.kv_len); },
       .mask = [](At at) { return at.kv <= at.q + at.batch; },
       .prob = mods::dropout(0.7, 11)});
  attention.run({.q = q, .k = k, .v = v, .o = o, .lse = lse, .cu_seqlens_q = cu_q, .cu_seqlens_kv = cu_kv});
  attention.backward({.q = q,
                      .k = k,
                      .v = v,
                      .grad_o = grad,
                      .grad_lse = grad_lse,
                      .dq = dq,
                      .dk = dk,
                      .dv = dv,
                      .cu_seqlens_q = cu_q,
                      .cu_seqlens_kv = cu_kv});
  for (std::size_t b = 0; b < 4; ++b) {
    const std::int64_t rows = q_starts[b + 1] - q_starts[b], keys = kv_starts[b + 1] - kv_starts[b];
    // Alone, but still batch entry b: the entries before it are meaningless, and are not compared.
    const auto alone = [&](const Array<double>& packed, std::int64_t start, std::int64_t count) {
      const Tensor& t = packed;
      const auto entries = static_cast<std::int64_t>(b) + 1;
      return Tensor(packed.data() + start * t.strides[0], DType::f64, {entries, t.shape[1], count, t.shape[2]},
                    {0, t.strides[1], t.strides[0], t.strides[2]});
    };
    const auto last = [&](const Tensor& t) {
      Tensor out = t;
      out.data = static_cast<double*>(t.data) + static_cast<std::int64_t>(b) * t.strides[0];
      out.shape[0] = 1;
      return out;
    };
    const Tensor qs = alone(q, q_starts[b], rows), ks = alone(k, kv_starts[b], keys), vs = alone(v, kv_starts[b], keys);
    const Tensor lse_row(lse.data() + q_starts[b], DType::f64, {1, 4, rows}, {0, 6, 1});
    const Tensor grad_lse_row(grad_lse.data() + q_starts[b], DType::f64, {static_cast<std::int64_t>(b) + 1, 4, rows},
                              {0, 6, 1});
    const Output out = forward(attention, qs, ks, vs);
    same(elements(last(alone(o, q_starts[b], rows))), elements(last(out.o)));
    same(elements(lse_row), elements(last(out.lse)));
    const Gradients g = backward(attention, qs, ks, vs, alone(grad, q_starts[b], rows), grad_lse_row);
    same(elements(last(alone(dq, q_starts[b], rows))), elements(last(g.dq)));
    same(elements(last(alone(dk, kv_starts[b], keys))), elements(last(g.dk)));
    same(elements(last(alone(dv, kv_starts[b], keys))), elements(last(g.dv)));
  }
}

TEST_CASE("q_offset moves the queries and nothing else", "[oracle]") {
  const auto q = random_numbers({1, 2, 6, 4}, 1), k = random_numbers({1, 2, 6, 4}, 2),
             v = random_numbers({1, 2, 6, 4}, 3);
  const Attention attention{.score = mods::relative_position(), .mask = mods::causal(), .prob = mods::dropout(0.5, 1)};
  const Output whole = forward(attention, q, k, v);
  Tensor tail = q, right = whole.o;
  for (Tensor* t : {&tail, &right}) {
    t->data = static_cast<double*>(t->data) + 4 * t->strides[2];
    t->shape[2] = 2;
  }
  same(elements(forward(attention, tail, k, v, 4).o), elements(right));
}

TEST_CASE("lengths 0 and 1 are ordinary", "[oracle]") {
  const auto make = [](std::int64_t b, std::int64_t h, std::int64_t s) { return random_numbers({b, h, s, 2}, 1); };
  const Output no_keys = forward({}, make(1, 1, 2), make(1, 1, 0), make(1, 1, 0));
  same(elements(no_keys.o), {0, 0, 0, 0});
  same(elements(no_keys.lse), {-infinity, -infinity});
  CHECK(forward({}, make(1, 1, 0), make(1, 1, 3), make(1, 1, 3)).o.values().empty());
  CHECK(forward({}, make(0, 2, 3), make(0, 1, 3), make(0, 1, 3)).o.values().empty());
  CHECK(forward({}, make(2, 0, 3), make(2, 0, 3), make(2, 0, 3)).o.values().empty());
  const auto one = make(1, 1, 1);
  same(elements(forward({}, one, one, one).o), elements(one));
  const Gradients g = backward({}, make(1, 1, 0), make(1, 1, 3), make(1, 1, 3), make(1, 1, 0));
  same(elements(g.dk), std::vector<double>(6));
}

TEST_CASE("results are rounded to the type they are stored in", "[oracle]") {
  const Tiny t;
  auto o = host.array<f16>({1, 1, 1, 1});
  auto lse = host.array<float>({1, 1, 1});
  oracle({.score = [](Float s, At) { return s * 1.1f; }, .scale = 1})
      .run({.q = t.q, .k = t.k, .v = t.v, .o = o, .lse = lse});
  const double p = 1 / (1 + std::pow(3, 1.1f));
  CHECK(o.values()[0].bits == f16(static_cast<float>(10 * p + 20 * (1 - p))).bits);
  CHECK(lse.values()[0] == static_cast<float>(-std::log(p)));
}

TEST_CASE("a parameter is read at each call", "[oracle]") {
  const Tiny t;
  Param<float> gain("gain", 0);
  const Attention attention = oracle({.score = [=](Float s, At) { return s * gain; }, .scale = 1});
  CHECK(forward(attention, t.q, t.k, t.v).o.values()[0] == Approx(15));
  gain = 1;
  CHECK(forward(attention, t.q, t.k, t.v).o.values()[0] == Approx(17.5));
}

TEST_CASE("what an Attention was lowered to follows its parts", "[oracle]") {
  const Tiny t;
  Attention attention = oracle({.scale = 1});
  CHECK(forward(attention, t.q, t.k, t.v).o.values()[0] == Approx(17.5));
  attention.mask = [](At at) { return at.kv == 0; };
  CHECK(forward(attention, t.q, t.k, t.v).o.values()[0] == Approx(10));
  attention.mask = {};
  CHECK(forward(attention, t.q, t.k, t.v).o.values()[0] == Approx(17.5));
}

TEST_CASE("reads outside of captured tensors are counted where they matter, and the first is named", "[oracle]") {
  const auto q = random_numbers({2, 2, 5, 3}, 1), k = random_numbers({2, 2, 7, 3}, 2),
             v = random_numbers({2, 2, 7, 3}, 3);
  auto o = like(q), table = random_numbers({6}, 4), far = random_numbers({4}, 5);
  auto bucket = host.array<int>({7});
  std::ranges::copy(std::array{0, 1, 2, 3, 4, 5, -1}, bucket.data());
  const auto counted = [&](const std::string& score, const std::string& mask, const std::string& sink = "") {
    Text text;
    text.capture("table", table).capture("bucket", bucket).capture("far", far);
    Attention a{.score = text.score(score), .mask = text.mask(mask)};
    if (!sink.empty()) a.sink = text.sink(sink);
    const compiler::LoweredMod written = runtime::as_written(compiler::trace(a));
    const Forward call{.q = q, .k = k, .v = v, .o = o};
    const compiler::Problem problem = compiler::check(written, call, {});
    return runtime::outside_reads(written.mod, runtime::call_of(written, call, problem));
  };
  // Of four heads' 5 queries and 7 keys: bucket is 4, 5 and -1 at keys 4, 5 and 6.
  const auto by_data = counted("s + far[bucket[kv]]", "true");
  CHECK(by_data.count == 4 * 5 * 3);
  CHECK(by_data.name == "far");
  CHECK(by_data.first == "at b=0 h=0 q=0 kv=4, bucket[kv] is 4 in far[bucket[kv]], and far holds 4 values");
  CHECK(counted("s + far[bucket[kv]]", "kv != 6").count == 4 * 5 * 2);
  CHECK(counted("s + far[bucket[kv]]", "kv < 4").count == 0);
  CHECK(counted("where(bucket[kv] < 4, s + far[bucket[kv]], s)", "true").count == 4 * 5);
  CHECK(counted("s", "bucket[kv] < 0 || far[bucket[kv]] > -9.0f").count == 4 * 5 * 2);
  CHECK(counted("s", "bucket[kv] >= 0 && far[bucket[kv]] > -9.0f").count == 4 * 5 * 2);
  // Two coordinates: q + kv is above 5 for 3 + 4 + 5 + 5 + 5 pairs, minus the pairs where it is within.
  CHECK(counted("s + table[q + kv]", "true").count == 4 * (1 + 2 + 3 + 4 + 5));
  CHECK(counted("s + table[q + kv]", "q + kv < 6").count == 0);
  // Within a sum each variable counts: 6 and 7 of 0 .. 7 at kv 0, one more with each key.
  CHECK(counted("s + sum(i, 4, table[i + kv])", "q == 0").count == 4 * (0 + 0 + 0 + 1 + 2 + 3 + 4));
  CHECK(counted("s + sum(i, 4, where(i + kv < 6, table[i + kv], 0.0f))", "q == 0").count == 0);
  CHECK(counted("s", "true", "table[b * 4 + h * 2]").count == 1);
  // Clamped values do not change the result.
  CHECK(counted("s + far[clamp(bucket[kv], 0, 3)]", "true").count == 0);
}

TEST_CASE("captured tensors that are too small for a call are refused by every engine", "[oracle]") {
  const auto q = random_numbers({1, 4, 3, 2}, 1), k = random_numbers({1, 4, 5, 2}, 2),
             v = random_numbers({1, 4, 5, 2}, 3);
  auto o = like(q), slope = random_numbers({3}, 4);
  for (const Target target : {Target::oracle, Target::cpu, Target::automatic}) {
    const Capture<float> captured(slope, "slope");
    Attention a{.score = [=](Float s, At at) { return s + captured[at.head]; }, .target = target};
    const Error refused = tests::refusal([&] { a.run({.q = q, .k = k, .v = v, .o = o}); });
    CHECK(refused.code == "capture-range");
    const Error of_gradient = tests::refusal(
        [&] { a.backward({.q = q, .k = k, .v = v, .grad_o = o, .dq = o, .dk = o, .dv = o}); });
    CHECK_FALSE(of_gradient.code.empty());
  }
}
