// tests/runtime/engines/oracle/verify.test.cpp — a spoilt element is found anywhere, and correct results pass
#include "runtime/engines/oracle/verify.h"

#include <attune/attune.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>

#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/runtime/machine/cache/spoilt.h"

namespace attune {
namespace {

const Device host = Device::cpu();

struct Call {
  Array<float> q, k, v, o, lse;
  Array<std::int32_t> q_starts = host.array<std::int32_t>({3}), kv_starts = host.array<std::int32_t>({3});
  Forward forward;

  explicit Call(bool packed = false)
      : q(packed ? host.array<float>({20, 4, 16}) : host.array<float>({2, 4, 10, 16})),
        k(packed ? host.array<float>({30, 2, 16}) : host.array<float>({2, 2, 15, 16})),
        v(packed ? host.array<float>({30, 2, 8}) : host.array<float>({2, 2, 15, 8})),
        o(packed ? host.array<float>({20, 4, 8}) : host.array<float>({2, 4, 10, 8})),
        lse(packed ? host.array<float>({4, 20}) : host.array<float>({2, 4, 10})), forward{.q = q,
                                                                                          .k = k,
                                                                                          .v = v,
                                                                                          .o = o,
                                                                                          .lse = lse} {
    std::mt19937 dice(5);
    for (const auto& t : {q, k, v})
      for (float& x : t.values()) x = std::normal_distribution<float>()(dice);
    if (!packed) return;
    // The first sequence is long and the second short.
    q_starts.values()[1] = 17, q_starts.values()[2] = 20;
    kv_starts.values()[1] = 25, kv_starts.values()[2] = 30;
    forward.cu_seqlens_q = q_starts;
    forward.cu_seqlens_kv = kv_starts;
  }
};

struct Checked {
  compiler::LoweredMod lowered;
  compiler::Problem problem;
};
Checked checked(const Attention& attention, const Forward& call) {
  compiler::LoweredMod lowered = compiler::lower(attention);
  compiler::Problem problem = compiler::check(lowered, call, attention.scale);
  return {std::move(lowered), std::move(problem)};
}

/// Verification's message, or an empty text.
std::string found(const Attention& attention, const Forward& call, int rows = 1000000, std::uint64_t sample = 0) {
  const Checked c = checked(attention, call);
  try {
    runtime::verify(runtime::call_of(c.lowered, call, c.problem), {rows, sample, {"avx2", "tiles", 0}});
  } catch (const Bug& e) {
    return e.what();
  }
  return {};
}

const Attention causal{.score = [](Float s, At at) { return s - 0.125f * f32(at.q - at.kv); },
                       .mask = [](At at) { return at.kv <= at.q; }};

/// False if this build has no engine for it.
bool runs(const Attention& attention, const Forward& call) {
  try {
    attention.run(call);
  } catch (const Error& e) {
    REQUIRE(e.code == "no-engine");
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("what an engine computes passes, and every spoilt element is found", "[verify]") {
  for (const bool packed : {false, true}) {
    const Call c(packed);
    Attention exact = causal;
    exact.target = Target::oracle;
    exact.run(c.forward);
    CHECK(found(causal, c.forward) == "");
    for (const auto& spoilt : {c.o, c.lse})
      for (std::size_t i = 0; i < spoilt.values().size(); i += 7) {
        const float before = spoilt.values()[i];
        spoilt.values()[i] = before + 0.01f;
        INFO("element " << i);
        CHECK(found(causal, c.forward) != "");
        spoilt.values()[i] = std::numeric_limits<float>::quiet_NaN();
        CHECK(found(causal, c.forward) != "");
        spoilt.values()[i] = before;
      }
    CHECK(found(causal, c.forward) == "");
  }
}

TEST_CASE("a difference is told with its place, both values and how to report it", "[verify]") {
  const Call c;
  Attention exact = causal;
  exact.target = Target::oracle;
  exact.run(c.forward);
  // b=1 h=2 q=3, o[5]
  c.o.values()[((1 * 4 + 2) * 10 + 3) * 8 + 5] = 0.5f;
  tests::golden("runtime/verify", found(causal, c.forward));
}

TEST_CASE("samples differ from call to call, and are the same for the same call", "[verify]") {
  const Call c;
  Attention exact = causal;
  exact.target = Target::oracle;
  exact.run(c.forward);
  for (float& x : c.lse.values()) x += 1;
  std::vector<std::string> all;
  for (std::uint64_t sample = 0; sample < 8; ++sample) {
    all.push_back(found(causal, c.forward, 1, sample));
    CHECK(all.back() == found(causal, c.forward, 1, sample));
    CHECK(all.back() != "");
  }
  const std::set<std::string> different(all.begin(), all.end());
  CHECK(different.size() >= 6);
  const std::uint64_t first = runtime::next_sample();
  CHECK(runtime::next_sample() == first + 1);
}

TEST_CASE("rows that lose all of their keys are verified too", "[verify]") {
  const Call c;
  const Attention none{.mask = [](At at) { return at.kv < at.q - 4; }, .target = Target::oracle};
  none.run(c.forward);
  CHECK(found(none, c.forward) == "");
  c.o.values()[0] = 0.001f;
  CHECK(found(none, c.forward) != "");
  c.o.values()[0] = 0;
  c.lse.values()[0] = -1e30f;
  CHECK(found(none, c.forward) != "");
}

// The executor belongs to the caller, so it can corrupt results, which no engine does.
TEST_CASE("a call that is spoilt while it runs", "[.spoilt]") {
  // For a separate process, below.
  if (!std::getenv("ATTUNE_VERIFY")) return;
  const Call c;
  if (!runs(causal, c.forward)) return;
  const auto spoiling = [&](std::int64_t count, const Task& task) {
    tests::one_by_one(count, task);
    std::ranges::fill(c.o.values(), 0.5f);
  };
  CHECK_NOTHROW(causal.run(c.forward, {.executor = {.workers = 1, .parallel_for = tests::one_by_one}}));
  CHECK_THROWS_AS(causal.run(c.forward, {.executor = {.workers = 1, .parallel_for = spoiling}}), Bug);
}

TEST_CASE("ATTUNE_VERIFY looks at every call of a process", "[verify]") {
  const auto status = [](const char* rows) { return tests::status_of_spoilt("[spoilt]", rows); };
  CHECK(status("3") == 0);
  // Without it the same call passes, so the test that expects a Bug fails.
  const Call c;
  if (runs(causal, c.forward)) CHECK(status("0") == 1);
}

TEST_CASE("engines pass, in every type and for scores that amplify rounding", "[verify]") {
  const std::vector<Attention> all{
      {},
      causal,
      {.score = mods::softcap(5), .mask = mods::causal()},
      {.score = [](Float s, At) { return 40.0f * s; }},
      {.score = [](Float s, At) { return where(s > 0.25f, s, -std::numeric_limits<float>::infinity()); }},
      {.score = [](Float s, At) { return sin(1000.0f * s); }},
      {.prob = [](Float p, At) { return where(random(3) < 0.5f, p * 2.0f, 0.0f); }},
      {.prob = [](Float p, At) { return where(p > 0.1f, p, 0.0f); }},
      {.sink = [](SinkAt) { return Float(1.5f); }}};
  for (std::size_t n = 0; n < all.size(); ++n)
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      std::mt19937 dice(static_cast<unsigned>(n));
      const auto make = [&](std::initializer_list<std::int64_t> shape) {
        std::int64_t size = 1;
        for (const std::int64_t s : shape) size *= s;
        auto memory = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(size) * size_of(type));
        const Tensor t(memory->data(), type, shape);
        for (std::int64_t i = 0; i < size; ++i) runtime::store(t, i, std::normal_distribution<double>()(dice));
        return std::pair{memory, t};
      };
      const auto q = make({1, 2, 40, 64}), k = make({1, 1, 90, 64}), v = make({1, 1, 90, 4}), o = make({1, 2, 40, 4});
      const Array<float> lse = host.array<float>({1, 2, 40}), max = host.array<float>({1, 2, 40});
      const Forward call{.q = q.second, .k = k.second, .v = v.second, .o = o.second, .lse = lse, .max = max};
      if (!runs(all[n], call)) return;
      INFO("attention " << n << " of " << name_of(type));
      CHECK(found(all[n], call) == "");
    }
}

}  // namespace attune
