// tests/runtime/engines/oracle/verify_backward.test.cpp — a spoilt gradient is found anywhere, and engines' gradients
// pass
#include <attune/attune.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <random>

#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/engines/oracle/verify.h"
#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/runtime/machine/cache/spoilt.h"
#include "tests/sanitizers.h"

namespace attune {
namespace {

const Device host = Device::cpu();

enum class Layout : std::uint8_t { dense, shared, packed };
/// Which results of its forward a backward gets.
enum class Given : std::uint8_t { nothing, o_and_lse };

/// A tensor of any type, with its memory.
struct Held {
  std::shared_ptr<std::vector<std::byte>> memory;
  Tensor tensor;

  Held(DType type, std::span<const std::int64_t> shape) {
    std::int64_t size = 1;
    for (const std::int64_t s : shape) size *= s;
    memory = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(size) * size_of(type));
    tensor = Tensor(memory->data(), type, shape);
  }
  double get(std::int64_t i) const { return runtime::load(tensor, i); }
  void set(std::int64_t i, double x) const { runtime::store(tensor, i, x); }
};

/// B=2, H=4/2, S=10x15, D=16/8; packed: 20 queries and 30 keys, most of them in the first sequence.
struct Call {
  Held q, k, v, o, lse, grad_o, grad_lse, dq, dk, dv;
  Array<std::int32_t> q_starts = host.array<std::int32_t>({3}), kv_starts = host.array<std::int32_t>({3});
  Forward forward;
  Backward backward;

  explicit Call(Layout layout = Layout::dense, DType type = DType::f32, unsigned seed = 5)
      : q(make(layout, type, {2, 4, 10, 16})), k(make(layout, type, {2, 2, 15, 16})),
        v(make(layout, type, {2, 2, 15, 8})), o(make(layout, type, {2, 4, 10, 8})), lse(line(layout)),
        grad_o(make(layout, type, {2, 4, 10, 8})), grad_lse(line(layout)), dq(q.tensor.dtype, extents(q)),
        dk(type, extents(k)), dv(type, extents(v)) {
    std::mt19937 dice(seed);
    for (const Held* t : {&q, &k, &v, &grad_o, &grad_lse})
      for (std::int64_t i = 0; i < t->tensor.size(); ++i) t->set(i, std::normal_distribution<double>()(dice));
    forward = {.q = q.tensor, .k = k.tensor, .v = v.tensor, .o = o.tensor, .lse = lse.tensor};
    backward = {.q = q.tensor,
                .k = k.tensor,
                .v = v.tensor,
                .grad_o = grad_o.tensor,
                .grad_lse = grad_lse.tensor,
                .o = o.tensor,
                .lse = lse.tensor,
                .dq = dq.tensor,
                .dk = dk.tensor,
                .dv = dv.tensor};
    if (layout != Layout::packed) return;
    q_starts.values()[1] = 17, q_starts.values()[2] = 20;
    kv_starts.values()[1] = 25, kv_starts.values()[2] = 30;
    forward.cu_seqlens_q = backward.cu_seqlens_q = q_starts;
    forward.cu_seqlens_kv = backward.cu_seqlens_kv = kv_starts;
  }

  void forget_forward() { backward.o = backward.lse = {}; }

 private:
  static Held make(Layout layout, DType type, std::array<std::int64_t, 4> shape) {
    const auto [b, h, s, d] = shape;
    if (layout == Layout::packed) return {type, std::array{b * s, h, d}};
    // Keys and values have two heads.
    const bool one = layout == Layout::shared && h == 2;
    return {type, std::array{one ? 1 : b, h, s, d}};
  }
  static Held line(Layout layout) {
    if (layout == Layout::packed) return {DType::f32, std::array<std::int64_t, 2>{4, 20}};
    return {DType::f32, std::array<std::int64_t, 3>{2, 4, 10}};
  }
  static std::span<const std::int64_t> extents(const Held& t) {
    return std::span(t.tensor.shape).first(static_cast<std::size_t>(t.tensor.rank));
  }
};

/// Verification's message, or an empty text.
std::string found(const Attention& attention, const Backward& call, int rows = 1000000, std::uint64_t sample = 0) {
  const compiler::LoweredMod lowered = compiler::lower(attention);
  const compiler::Problem problem = compiler::check(lowered, call, attention.scale);
  try {
    runtime::verify(runtime::call_of(lowered, call, problem), {rows, sample, {"avx2", "tiles", 0}});
  } catch (const Bug& e) {
    return e.what();
  }
  return {};
}

const Attention causal{.score = [](Float s, At at) { return s - 0.125f * f32(at.q - at.kv); },
                       .mask = [](At at) { return at.kv <= at.q; }};
const Attention squares{.mask = mods::causal(), .prob = [](Float p, At) { return p * p; }};

Attention by_oracle(Attention attention) {
  attention.target = Target::oracle;
  return attention;
}

/// False if this build has no engine for it.
template <class Run>
bool runs(const Run& run) {
  try {
    run();
  } catch (const Error& e) {
    REQUIRE(e.code == "no-engine");
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("gradients of the oracle pass, and every spoilt element is found", "[verify]") {
  for (const auto& attention : {causal, squares})
    for (const Layout layout : {Layout::dense, Layout::shared, Layout::packed})
      for (const Given given : {Given::nothing, Given::o_and_lse}) {
        Call c(layout);
        const Attention exact = by_oracle(attention);
        exact.run(c.forward);
        exact.backward(c.backward);
        if (given == Given::nothing) c.forget_forward();
        INFO("layout " << static_cast<int>(layout) << ", given " << static_cast<int>(given));
        CHECK(found(attention, c.backward) == "");
        for (const Held* spoilt : {&c.dq, &c.dk, &c.dv})
          for (std::int64_t i = 0; i < spoilt->tensor.size(); i += tests::sanitized ? 307 : 101) {
            const double before = spoilt->get(i);
            INFO("element " << i << ": " << before);
            spoilt->set(i, before + 0.01);
            CHECK(found(attention, c.backward) != "");
            spoilt->set(i, std::numeric_limits<double>::quiet_NaN());
            CHECK(found(attention, c.backward) != "");
            spoilt->set(i, before);
          }
        CHECK(found(attention, c.backward) == "");
      }
}

TEST_CASE("a gradient that differs is told with its place", "[verify]") {
  const Call c;
  by_oracle(causal).run(c.forward);
  by_oracle(causal).backward(c.backward);
  // b=1 h=1 kv=3, dk[5]
  c.dk.set(((1 * 2 + 1) * 15 + 3) * 16 + 5, 0.5);
  tests::golden("runtime/verify_backward", found(causal, c.backward));
}

TEST_CASE("what is a tenth too large is found, in every type", "[verify]") {
  for (const auto& attention : {Attention{}, causal, squares})
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      const Call c(Layout::dense, type);
      by_oracle(attention).run(c.forward);
      by_oracle(attention).backward(c.backward);
      for (const Held* spoilt : {&c.dq, &c.dk, &c.dv}) {
        INFO(name_of(type));
        for (std::int64_t i = 0; i < spoilt->tensor.size(); ++i) spoilt->set(i, spoilt->get(i) * 1.1);
        CHECK(found(attention, c.backward) != "");
        for (std::int64_t i = 0; i < spoilt->tensor.size(); ++i) spoilt->set(i, spoilt->get(i) / 1.1);
      }
    }
}

TEST_CASE("few rows are looked at, others from call to call", "[verify]") {
  const Call c;
  by_oracle(causal).run(c.forward);
  by_oracle(causal).backward(c.backward);
  for (std::int64_t i = 0; i < c.dv.tensor.size(); ++i) c.dv.set(i, c.dv.get(i) + 1);
  const std::string one = found(causal, c.backward, 1, 0);
  CHECK(one != "");
  CHECK(one == found(causal, c.backward, 1, 0));
  CHECK(one != found(causal, c.backward, 1, 1));
}

TEST_CASE("every element of a captured tensor's gradient is looked at, in every layout", "[verify]") {
  const auto table = host.array<float>({40}, "table"), bias = host.array<float>({4}, "bias"),
             grad_table = host.array<float>({40}), grad_bias = host.array<float>({4});
  std::mt19937 dice(3);
  for (float& x : table.values()) x = std::normal_distribution<float>()(dice);
  // The exact gradient of bias is 0 without one of lse: only its terms have a size.
  const Attention read{.score = [=](Float s, At at) { return s + table[at.q - at.kv + 20] + bias[at.head]; },
                       .mask = mods::causal()};
  for (const Layout layout : {Layout::dense, Layout::shared, Layout::packed})
    for (const bool with_lse : {true, false}) {
      Call c(layout, DType::f32);
      c.backward.captured = {{.of = table, .into = grad_table}, {.of = bias, .into = grad_bias}};
      if (!with_lse) c.backward.grad_lse = {};
      INFO("layout " << static_cast<int>(layout));
      if (!runs([&] { read.run(c.forward); })) return;
      read.backward(c.backward);
      CHECK(found(read, c.backward) == "");
      by_oracle(read).backward(c.backward);
      CHECK(found(read, c.backward) == "");
      for (float* spoilt : {&grad_table.values()[23], &grad_bias.values()[2]}) {
        const float before = *spoilt;
        *spoilt += 1;
        CHECK(found(read, c.backward) != "");
        *spoilt = std::numeric_limits<float>::quiet_NaN();
        CHECK(found(read, c.backward) != "");
        *spoilt = before;
      }
    }
}

TEST_CASE("what was not asked for is not looked at", "[verify]") {
  Call c;
  by_oracle(causal).run(c.forward);
  by_oracle(causal).backward(c.backward);
  c.dk.set(0, 1000);
  CHECK(found(causal, c.backward) != "");
  c.backward.dk = {};
  CHECK(found(causal, c.backward) == "");
}

TEST_CASE("o and lse are taken as they were given", "[verify]") {
  const Call c;
  by_oracle(causal).run(c.forward);
  for (std::int64_t i = 0; i < c.lse.tensor.size(); ++i) c.lse.set(i, c.lse.get(i) + 0.25);
  if (!runs([&] { causal.backward(c.backward); })) return;
  CHECK(found(causal, c.backward) == "");
}

TEST_CASE("keys that would take all pairs of a large head are left out, and that is told", "[verify]") {
  std::vector<std::string> told;
  const auto watching = watch::on({.notice = [&](const watch::Notice& fact) { told.push_back(fact.text); }});
  const auto q = host.array<float>({1, 1, 800, 4}), k = host.array<float>({1, 1, 800, 4}),
             grad_o = host.array<float>({1, 1, 800, 4}), lse = host.array<float>({1, 1, 800});
  const auto dq = host.array<float>({1, 1, 800, 4}), dk = host.array<float>({1, 1, 800, 4}),
             dv = host.array<float>({1, 1, 800, 4});
  // All inputs are 0, and so is every gradient; dk and dv are not 0, and are not checked.
  dk.values()[0] = dv.values()[0] = 1;
  Backward call{.q = q, .k = k, .v = k, .grad_o = grad_o, .dq = dq, .dk = dk, .dv = dv};
  CHECK(found({}, call, 1000000) == "");
  call.o = grad_o;
  call.lse = lse;
  CHECK(found({.mask = mods::causal(), .prob = [](Float p, At) { return p * p + p; }}, call, 3) == "");
  CHECK(found({}, call) != "");
  tests::golden("runtime/verify_left_out", [&] {
    std::string out;
    for (const std::string& text : told) out += text + "\n";
    return out;
  }());
}

// The executor is the caller's, and can change results as no engine does.
TEST_CASE("a backward that is spoilt while it runs", "[.spoilt_backward]") {
  // For a separate process, below.
  if (!std::getenv("ATTUNE_VERIFY")) return;
  const Call c;
  by_oracle(causal).run(c.forward);
  if (!runs([&] { causal.backward(c.backward); })) return;
  const auto spoiling = [&](std::int64_t count, const Task& task) {
    tests::one_by_one(count, task);
    for (std::int64_t i = 0; i < c.dk.tensor.size(); ++i) c.dk.set(i, 0.5);
  };
  CHECK_NOTHROW(causal.backward(c.backward, {.executor = {.workers = 1, .parallel_for = tests::one_by_one}}));
  CHECK_THROWS_AS(causal.backward(c.backward, {.executor = {.workers = 1, .parallel_for = spoiling}}), Bug);
}

TEST_CASE("ATTUNE_VERIFY looks at every backward of a process", "[verify]") {
  const auto status = [](const char* rows) { return tests::status_of_spoilt("[spoilt_backward]", rows); };
  CHECK(status("3") == 0);
  // Without it the same call passes, so the test that expects a Bug fails.
  const Call c;
  by_oracle(causal).run(c.forward);
  if (runs([&] { causal.backward(c.backward); })) CHECK(status("0") == 1);
}

TEST_CASE("gradients of engines pass, in every type and for scores that amplify rounding", "[verify]") {
  const std::vector<Attention> all{
      {},
      causal,
      squares,
      {.prob = [](Float p, At) { return p * p + p; }},
      {.score = mods::softcap(5), .mask = mods::causal()},
      {.score = [](Float s, At) { return 40.0f * s; }},
      {.score = [](Float s, At) { return where(s > 0.25f, s, -std::numeric_limits<float>::infinity()); }},
      {.score = [](Float s, At) { return sin(1000.0f * s); }},
      {.mask = [](At at) { return at.kv < at.q - 4; }},
      {.prob = [](Float p, At) { return where(random(3) < 0.5f, p * 2.0f, 0.0f); }},
      {.prob = [](Float p, At) { return where(p > 0.1f, p, 0.0f); }},
      {.sink = [](SinkAt) { return Float(1.5f); }}};
  std::size_t next = 0;
  for (std::size_t n = 0; n < all.size(); ++n)
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const Layout layout : {Layout::dense, Layout::shared, Layout::packed})
        for (const Given given : {Given::nothing, Given::o_and_lse})
          for (unsigned seed = 0; seed < 3; ++seed) {
            if (!tests::runs_case(next++, 11)) continue;
            Call c(layout, type, seed);
            if (!runs([&] { all[n].run(c.forward); })) return;
            if (given == Given::nothing) c.forget_forward();
            all[n].backward(c.backward);
            INFO("attention " << n << " of " << name_of(type) << ", layout " << static_cast<int>(layout) << ", given "
                              << static_cast<int>(given) << ", seed " << seed);
            CHECK(found(all[n], c.backward) == "");
          }
}

}  // namespace attune
