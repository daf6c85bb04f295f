// tests/runtime/attention/bind.test.cpp — calls that bind captures and parameters: values, one lowering, many threads,
// refusals
#include <attune/attune.h>

#include <array>
#include <atomic>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "compiler/bind.h"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/oracle/verify.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;
using tests::elements, tests::refusal;

namespace {

const Device host = Device::cpu();

template <class T>
Array<T> normal(std::initializer_list<std::int64_t> shape, unsigned seed, const std::string& name = {}) {
  Array<T> out = host.array<T>(shape, name);
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  for (T& x : out.values()) x = draw(random);
  return out;
}

Array<int> documents(unsigned seed) {
  Array<int> out = host.array<int>({40}, "doc");
  std::mt19937 random(seed);
  int document = 0;
  for (int& x : out.values()) x = document += random() % 4 == 0;
  return out;
}

/// What one call reads: tensors for the slots bias, doc and logits, numbers for cap and shift.
struct Bound {
  Array<float> bias, logits;
  Array<int> doc;
  float cap;
  int shift;

  explicit Bound(unsigned seed)
      : bias(normal<float>({4, 40}, seed, "bias")), logits(normal<float>({4}, seed + 1, "logits")),
        doc(documents(seed + 2)), cap(5 + static_cast<float>(seed)), shift(static_cast<int>(seed % 5)) {}
};

const char* const score = "cap * tanh((s + bias[h, kv]) / cap) + 0.01f * f32(q + shift - kv)";
const char* const mask = "kv <= q + shift && doc[q] == doc[kv]";
const char* const sink = "logits[h]";

Attention of(const Text& text, Target target) {
  return {.score = text.score(score), .mask = text.mask(mask), .sink = text.sink(sink), .target = target};
}

/// Made with what it reads.
Attention made_with(const Bound& b, Target target) {
  Text text;
  text.capture("bias", b.bias).capture("doc", b.doc).capture("logits", b.logits);
  text.param("cap", b.cap).param("shift", b.shift);
  return of(text, target);
}

/// Made with names only. Names are declared in a different order than expressions read them.
Attention declared(Target target) {
  Text text;
  text.capture("logits", Tensor::declared(DType::f32, 1)).capture("doc", Tensor::declared(DType::i32, 1));
  text.capture("bias", Tensor::declared(DType::f32, 2)).param("shift", 0).param("cap", 1.0f);
  return of(text, target);
}

/// A forward and a backward, with their results.
struct Results {
  Array<float> q = normal<float>({2, 4, 33, 16}, 1), k = normal<float>({2, 2, 40, 16}, 2),
               v = normal<float>({2, 2, 40, 24}, 3), grad_o = normal<float>({2, 4, 33, 24}, 4);
  Array<float> o = host.array<float>({2, 4, 33, 24}), lse = host.array<float>({2, 4, 33});
  Array<float> dq = host.array<float>({2, 4, 33, 16}), dk = host.array<float>({2, 2, 40, 16}),
               dv = host.array<float>({2, 2, 40, 24});
  Array<float> dbias = host.array<float>({4, 40}), dlogits = host.array<float>({4});

  Forward forward() const { return {.q = q, .k = k, .v = v, .o = o, .lse = lse}; }
  Backward backward() const { return {.q = q, .k = k, .v = v, .grad_o = grad_o, .dq = dq, .dk = dk, .dv = dv}; }

  void with(const Bound& b, Target target) const {
    const Attention attention = made_with(b, target);
    attention.run(forward());
    Backward call = backward();
    call.captured = {{.of = b.bias, .into = dbias}, {.of = b.logits, .into = dlogits}};
    attention.backward(call);
  }
  /// The same call, binding. Slots: bias, doc, logits; cap, shift.
  void binding(const Attention& attention, const Bound& b) const {
    const std::array<Tensor, 3> captures{b.bias, b.doc, b.logits};
    const std::array<double, 2> params{double{b.cap}, double(b.shift)};
    Forward call = forward();
    call.captures = captures;
    call.params = params;
    attention.run(call);
    Backward back = backward();
    back.captures = captures;
    back.params = params;
    back.captured = {{.into = dbias, .slot = 0}, {.into = dlogits, .slot = 2}};
    attention.backward(back);
  }

  std::vector<std::vector<double>> all() const {
    std::vector<std::vector<double>> out;
    for (const Tensor& t : {Tensor(o), Tensor(lse), Tensor(dq), Tensor(dk), Tensor(dv), Tensor(dbias), Tensor(dlogits)})
      out.push_back(elements(t));
    return out;
  }
};

constexpr std::array engines{Target::oracle, Target::cpu};

}  // namespace

TEST_CASE("a call that binds gives what an attention made with the same gives, bit by bit", "[bind]") {
  for (const Target target : engines) {
    const Attention one = declared(target);
    for (const unsigned seed : {11u, 12u, 13u}) {
      const Bound b(seed);
      const Results wanted, got;
      wanted.with(b, target);
      got.binding(one, b);
      CHECK(got.all() == wanted.all());
    }
  }
}

TEST_CASE("slots are in the order in which expressions read them", "[bind]") {
  const Attention one = declared(Target::oracle);
  CHECK(one.captures() ==
        std::vector<Slot>{{"bias", DType::f32, 2}, {"doc", DType::i32, 1}, {"logits", DType::f32, 1}});
  CHECK(one.params() == std::vector<Slot>{{"cap", DType::f32, 0}, {"shift", DType::i32, 0}});
  CHECK(Attention{}.captures().empty());
}

TEST_CASE("lambdas read what calls bind", "[bind]") {
  const Capture<float> bias(Tensor::declared(DType::f32, 2), "bias"), logits(Tensor::declared(DType::f32, 1), "logits");
  const Capture<int> doc(Tensor::declared(DType::i32, 1), "doc");
  const Param<float> cap("cap", 0);
  const Param<int> shift("shift", 0);
  for (const Target target : engines) {
    const Attention one{.score =
                            [=](Float s, At at) {
                              const Float most = cap;
                              return most * tanh((s + bias(at.head, at.kv)) / most) + 0.01f * f32(at.q + shift - at.kv);
                            },
                        .mask = [=](At at) { return at.kv <= at.q + shift && doc[at.q] == doc[at.kv]; },
                        .sink = [=](SinkAt at) { return logits[at.head]; },
                        .target = target};
    const Bound b(21);
    const Results wanted, got;
    wanted.with(b, target);
    got.binding(one, b);
    CHECK(got.all() == wanted.all());
  }
}

TEST_CASE("what a call leaves out is what the attention was made with", "[bind]") {
  const Bound made(31), bound(32);
  Bound mixed = made;
  mixed.doc = bound.doc;
  const Attention attention = made_with(made, Target::oracle);
  const Results wanted, got;
  const std::array<Tensor, 3> captures{Tensor{}, bound.doc, Tensor{}};
  Forward call = got.forward();
  call.captures = captures;
  attention.run(call);
  made_with(mixed, Target::oracle).run(wanted.forward());
  CHECK(elements(got.o) == elements(wanted.o));

  // And the other way round: only parameters.
  Bound other = made;
  other.cap = 3;
  other.shift = 4;
  const std::array<double, 2> params{3, 4};
  call.captures = {};
  call.params = params;
  attention.run(call);
  made_with(other, Target::oracle).run(wanted.forward());
  CHECK(elements(got.o) == elements(wanted.o));
  // The attention itself is as it was.
  attention.run(got.forward());
  made_with(made, Target::oracle).run(wanted.forward());
  CHECK(elements(got.o) == elements(wanted.o));
}

TEST_CASE("a Float parameter is rounded to f32 whichever way it comes", "[bind]") {
  const Param<float> tenth("tenth", 0.1f);
  const Attention attention{.score = [=](Float s, At at) { return s + tenth * f32(at.kv); }, .target = Target::oracle};
  const Results made, bound;
  attention.run(made.forward());
  const std::array<double, 1> params{0.1};
  Forward call = bound.forward();
  call.params = params;
  attention.run(call);
  CHECK(elements(bound.o) == elements(made.o));
}

TEST_CASE("new memory lowers nothing, and a new type lowers once", "[bind]") {
  Text text;
  text.capture("bias", Tensor::declared(DType::f32, 1));
  const Attention attention{.score = text.score("s + bias[kv]"), .target = Target::oracle};
  int lowered = 0;
  const auto watching = watch::on({.lowered = [&](const watch::Lowered&) { ++lowered; }});
  const Results r;
  const auto run = [&](const Tensor& bias) {
    const std::array<Tensor, 1> captures{bias};
    Forward call = r.forward();
    call.captures = captures;
    attention.run(call);
    return elements(r.o);
  };
  for (unsigned i = 0; i < 10; ++i) run(normal<float>({40 + i}, i));
  CHECK(lowered == 1);
  const Array<f16> half = normal<f16>({40}, 7);
  const Array<float> same = host.array<float>({40});
  for (std::size_t i = 0; i < 40; ++i) same.values()[i] = half.values()[i];
  const auto narrow = run(half);
  CHECK(narrow == run(same));
  CHECK(lowered == 2);
  for (unsigned i = 0; i < 5; ++i) run(normal<f16>({40}, i));
  for (unsigned i = 0; i < 5; ++i) run(normal<float>({40}, i));
  run(normal<double>({40}, 3));
  CHECK(lowered == 3);
}

TEST_CASE("threads call one attention with captures of their own", "[bind]") {
  for (const Target target : engines) {
    const Attention one = declared(target);
    constexpr unsigned threads = 4;
    std::vector<std::vector<std::vector<double>>> wanted;
    for (unsigned t = 0; t < threads; ++t) {
      const Results r;
      r.with(Bound(50 + t), target);
      wanted.push_back(r.all());
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> running;
    for (unsigned t = 0; t < threads; ++t)
      running.emplace_back([&, t] {
        const Bound b(50 + t);
        const Results r;
        for (int i = 0; i < 5; ++i) {
          for (const Array<float>& out : {r.o, r.dq, r.dbias}) std::ranges::fill(out.values(), 0.0f);
          r.binding(one, b);
          wrong += r.all() != wanted[t];
        }
      });
    for (std::thread& thread : running) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("one tensor in two slots has the gradient of each", "[bind]") {
  Text text;
  text.capture("x", Tensor::declared(DType::f32, 1)).capture("y", Tensor::declared(DType::f32, 1));
  for (const Target target : engines) {
    const Attention attention{.score = text.score("s * x[q] + y[kv]"), .target = target};
    const Array<float> both = normal<float>({40}, 5);
    const Array<float> dx = host.array<float>({40}), dy = host.array<float>({40}), sum = host.array<float>({40});
    const std::array<Tensor, 2> captures{both, both};
    const Results r;
    Backward call = r.backward();
    call.captures = captures;
    call.captured = {{.into = dx, .slot = 0}, {.into = dy, .slot = 1}};
    attention.backward(call);
    call.captured = {{.of = both, .into = sum}};
    attention.backward(call);
    // The queries end at 33: x has no gradient beyond, y has.
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK((dx.values()[i] == 0) == (i >= 33));
      CHECK(dy.values()[i] != 0);
      CHECK(std::abs(dx.values()[i] + dy.values()[i] - sum.values()[i]) < 1e-5);
    }
    call.captured = {{.of = both, .into = sum}, {.into = dx, .slot = 0}};
    CHECK(refusal([&] { attention.backward(call); }).code == "grad-twice");
    call.captured = {{.into = dx, .slot = 2}};
    CHECK(refusal([&] { attention.backward(call); }).code == "grad-not-captured");
  }
}

TEST_CASE("a cover is of the tensors that a call binds", "[bind]") {
  const Bound a(61), b(62);
  const Attention one = declared(Target::oracle);
  const compiler::LoweredMod lowered = compiler::lower(one);
  const runtime::Extent extent{.batch = 1, .heads = 1, .q_len = 40, .kv_len = 40, .tile_q = 4, .tile_kv = 4};
  for (const Bound& bound : {a, b}) {
    const std::array<Tensor, 3> captures{bound.bias, bound.doc, bound.logits};
    const std::array<double, 2> params{double{bound.cap}, double(bound.shift)};
    const runtime::Tiles tiles(lowered, compiler::args(lowered, captures, params));
    const compiler::LoweredMod made = compiler::lower(made_with(bound, Target::oracle));
    CHECK(tiles.lists(extent).runs == runtime::Tiles(made).lists(extent).runs);
  }
}

TEST_CASE("results are verified against what the call bound", "[bind]") {
  const Bound b(71);
  const Attention one = declared(Target::oracle);
  const compiler::LoweredMod lowered = compiler::lower(one);
  const std::array<Tensor, 3> captures{b.bias, b.doc, b.logits};
  const std::array<double, 2> params{double{b.cap}, double(b.shift)};
  const Results r;
  r.binding(one, b);
  Forward call = r.forward();
  call.captures = captures;
  call.params = params;
  Backward back = r.backward();
  back.o = r.o;
  back.lse = r.lse;
  back.captures = captures;
  back.params = params;
  const auto problem = compiler::check(lowered, call, {});
  CHECK_NOTHROW(runtime::verify(runtime::call_of(lowered, call, problem), {.rows = 1000}));
  CHECK_NOTHROW(runtime::verify(runtime::call_of(lowered, back, problem), {.rows = 1000}));
  for (float& x : b.bias.values()) x = -x;
  CHECK_THROWS_AS(runtime::verify(runtime::call_of(lowered, call, problem), {.rows = 1000}), Bug);
  CHECK_THROWS_AS(runtime::verify(runtime::call_of(lowered, back, problem), {.rows = 1000}), Bug);
}

TEST_CASE("a backward of packed sequences takes their longest length", "[bind]") {
  const Array<int> starts = host.array<int>({3});
  starts.values()[1] = 13;
  starts.values()[2] = 33;
  const Array<float> q = normal<float>({33, 2, 8}, 1), k = normal<float>({33, 2, 8}, 2),
                     v = normal<float>({33, 2, 8}, 3), grad = normal<float>({33, 2, 8}, 4),
                     dq = host.array<float>({33, 2, 8}), dk = host.array<float>({33, 2, 8}),
                     dv = host.array<float>({33, 2, 8});
  Backward call{.q = q, .k = k, .v = v, .grad_o = grad, .dq = dq, .dk = dk, .dv = dv};
  call.cu_seqlens_q = call.cu_seqlens_kv = starts;
  const Attention attention{.mask = mods::causal(), .target = Target::oracle};
  attention.backward(call);
  const auto wanted = elements(dq);
  call.max_q_len = call.max_kv_len = 20;
  attention.backward(call);
  CHECK(elements(dq) == wanted);
  call.max_q_len = 19;
  CHECK(refusal([&] { attention.backward(call); }).code == "max-len");
  call.max_q_len = -1;
  CHECK(refusal([&] { attention.backward(call); }).code == "max-len");
}

TEST_CASE("what a call binds must fit what is read", "[bind]") {
  const Attention one = declared(Target::oracle);
  const Bound b(81);
  const Results r;
  for (float& x : r.o.values()) x = 7;
  const std::array<Tensor, 3> good{b.bias, b.doc, b.logits};
  const std::array<double, 2> numbers{2, 3};
  const auto refused = [&](std::vector<Tensor> captures, std::vector<double> params) {
    Forward call = r.forward();
    call.captures = captures;
    call.params = params;
    const int line = __LINE__ + 1;
    const Error e = refusal([&] { one.run(call); });
    if (e.where.text.empty()) CHECK(e.where.line == line);
    const Error same = refusal([&] { one.workspace(call); });
    CHECK(same.code == e.code);
    return e;
  };
  const std::vector<Tensor> tensors(good.begin(), good.end());
  const std::vector<double> params(numbers.begin(), numbers.end());
  CHECK(refused({}, params).code == "capture-missing");
  CHECK(refused({b.bias, b.doc}, params).code == "bind-count");
  CHECK(refused({b.bias, b.doc, b.logits, b.logits}, params).code == "bind-count");
  CHECK(refused({b.bias, Tensor{}, b.logits}, params).code == "capture-missing");
  CHECK(refused({b.doc, b.bias, b.logits}, params).code == "capture-type");
  CHECK(refused({b.logits, b.doc, b.bias}, params).code == "bind-rank");
  CHECK(refused(tensors, {1}).code == "bind-count");
  CHECK(refused(tensors, {1, 2, 3}).code == "bind-count");
  CHECK(refused(tensors, {1, 2.5}).code == "bind-param");
  CHECK(refused(tensors, {1, 3e9}).code == "bind-param");
  CHECK(refused(tensors, {1, std::nan("")}).code == "bind-param");
  CHECK(refused(tensors, {1e300, 2}).code == "bind-param");
  CHECK(refused(tensors, {-3.5e38, 2}).code == "bind-param");
  CHECK(refused({b.bias, Tensor(nullptr, DType::i32, {40}), b.logits}, params).code == "tensor-null");
  Tensor away = b.bias;
  away.device = Device::cuda();
  CHECK(refused({away, b.doc, b.logits}, params).code == "tensor-device");
  CHECK(refused({host.array<float>({0, 40}), b.doc, b.logits}, params).code == "capture-empty");
  for (const float x : r.o.values()) CHECK(x == 7);
  // An output may not be a captured tensor of the call.
  Forward call = r.forward();
  const std::array<Tensor, 3> aliased{Tensor(r.o.data(), DType::f32, {4, 40}), b.doc, b.logits};
  call.captures = aliased;
  call.params = numbers;
  CHECK(refusal([&] { one.run(call); }).code == "tensor-alias");
  // Nothing to bind.
  call.params = {};
  CHECK(refusal([&] { Attention{.target = Target::oracle}.run(call); }).code == "bind-count");
}

TEST_CASE("what is said about captures and parameters that do not fit", "[bind]") {
  const compiler::LoweredMod lowered = compiler::lower(declared(Target::oracle));
  const Bound b(91);
  const auto told = [&](const char* golden, const std::vector<Tensor>& captures, const std::vector<double>& params) {
    tests::golden_error(golden, refusal([&] { compiler::check_bound(lowered, captures, params); }).what());
  };
  told("bind-count", {b.bias, b.doc}, {});
  told("bind-count.parameters", {b.bias, b.doc, b.logits}, {1, 2, 3});
  told("bind-rank", {b.logits, b.doc, b.logits}, {});
  told("bind-param", {b.bias, b.doc, b.logits}, {1, 2.5});
  told("capture-missing.call", {}, {});
  told("capture-type.call", {b.bias, b.logits, b.logits}, {});
  tests::golden_error("bad-rank.declared", refusal([] { Tensor::declared(DType::f32, 5); }).what());
}

TEST_CASE("a tensor is declared with a name and a possible rank", "[bind]") {
  CHECK(refusal([] { Tensor::declared(DType::f32, 5); }).code == "bad-rank");
  CHECK(refusal([] { Tensor::declared(DType::f32, -1); }).code == "bad-rank");
  CHECK(Tensor::declared(DType::bf16, 2).describe() == "bf16 of rank 2");
  const Capture<float> nameless(Tensor::declared(DType::f32, 1));
  const Attention attention{.score = [=](Float s, At at) { return s + nameless[at.kv]; }, .target = Target::oracle};
  const Results r;
  CHECK(refusal([&] { attention.run(r.forward()); }).code == "capture-missing");
}
