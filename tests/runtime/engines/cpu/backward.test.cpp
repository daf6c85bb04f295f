// tests/runtime/engines/cpu/backward.test.cpp — the CPU engine's gradients against the oracle's
#include <attune/attune.h>

#include <cmath>
#include <limits>
#include <random>

#include "codegen/cpu.h"
#include "compiler/lower.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/oracle/oracle.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/numerics/corpus.h"
#include "tests/sanitizers.h"

using namespace attune;
using runtime::cpu::Isa;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN(),
                infinite = std::numeric_limits<float>::infinity();

/// A tensor and its memory.
struct Owned {
  Tensor tensor;
  std::shared_ptr<void> memory;
  operator Tensor() const { return tensor; }
};

Owned owned(DType type, std::vector<std::int64_t> shape) {
  std::size_t size = 1;
  for (const std::int64_t n : shape) size *= static_cast<std::size_t>(n);
  const std::shared_ptr<void> memory(std::calloc(std::max<std::size_t>(1, size), 8), std::free);
  return {Tensor(memory.get(), type, shape), memory};
}

template <class F>
void each_offset(const Tensor& t, const F& body) {
  Tensor::Extents n{1, 1, 1, 1};
  std::copy_n(t.shape.begin(), t.rank, n.begin());
  for (std::int64_t a = 0; a < n[0]; ++a)
    for (std::int64_t b = 0; b < n[1]; ++b)
      for (std::int64_t c = 0; c < n[2]; ++c)
        for (std::int64_t d = 0; d < n[3]; ++d) body(runtime::offset(t, a, b, c, d));
}

Owned normal(DType type, std::vector<std::int64_t> shape, std::mt19937& random, double scale = 1) {
  Owned out = owned(type, std::move(shape));
  std::normal_distribution<double> of;
  each_offset(out.tensor, [&](std::int64_t at) { runtime::store(out.tensor, at, scale * of(random)); });
  return out;
}

struct Shape {
  std::int64_t batch = 2, q_heads = 4, kv_heads = 2, q_len = 24, kv_len = 28, d = 4, dv = 3;
  std::int64_t kv_batch = 0;  ///< 0: as batch
  std::int32_t q_offset = 0;
  std::vector<std::int32_t> q_starts{}, kv_starts{};  ///< packed
};

/// A call's inputs, and the gradients of two engines.
struct Case {
  Owned q, k, v, grad_o, grad_lse, o, lse, cu_q, cu_kv;
  std::map<std::string, Tensor> captures;
  struct Gradients {
    Owned dq, dk, dv;
    std::map<std::string, Owned> captured;
  };
  Gradients wanted, got;
  Shape shape;
  bool with_lse = true;

  Case(const Shape& s, DType type, const std::map<std::string, Tensor>& captured, unsigned seed,
       DType gradients = DType::f32)
      : captures(captured), shape(s) {
    std::mt19937 random(seed);
    const bool packed = !s.q_starts.empty();
    const std::int64_t kv_batch = s.kv_batch ? s.kv_batch : s.batch;
    const auto make = [&](DType t, std::int64_t b, std::int64_t heads, std::int64_t length, std::int64_t width) {
      return normal(t, packed ? std::vector{length, heads, width} : std::vector{b, heads, length, width}, random);
    };
    q = make(type, s.batch, s.q_heads, s.q_len, s.d);
    k = make(type, kv_batch, s.kv_heads, s.kv_len, s.d);
    v = make(type, kv_batch, s.kv_heads, s.kv_len, s.dv);
    grad_o = make(type, s.batch, s.q_heads, s.q_len, s.dv);
    const std::vector<std::int64_t> rows = packed ? std::vector{s.q_heads, s.q_len}
                                                  : std::vector{s.batch, s.q_heads, s.q_len};
    grad_lse = normal(DType::f32, rows, random);
    if (packed) {
      cu_q = starts(s.q_starts);
      cu_kv = starts(s.kv_starts);
    }
    for (auto [into, t] : {std::pair(&wanted, DType::f64), std::pair(&got, gradients)}) {
      const auto like = [&, as = t](const Tensor& of) {
        return owned(as, {of.shape.begin(), of.shape.begin() + of.rank});
      };
      into->dq = like(q);
      into->dk = like(k);
      into->dv = like(v);
      for (const auto& [name, of] : captures)
        if (compiler::type_of(of.dtype) == ir::Type::F32) into->captured.emplace(name, like(of));
    }
  }

  static Owned starts(const std::vector<std::int32_t>& of) {
    Owned out = owned(DType::i32, {static_cast<std::int64_t>(of.size())});
    for (std::size_t i = 0; i < of.size(); ++i) runtime::store(out.tensor, static_cast<std::int64_t>(i), of[i]);
    return out;
  }

  Backward call(const Gradients& into) const {
    Backward c{.q = q, .k = k, .v = v, .grad_o = grad_o};
    if (with_lse) c.grad_lse = grad_lse;
    c.dq = into.dq;
    c.dk = into.dk;
    c.dv = into.dv;
    for (const auto& [name, gradient] : into.captured) c.captured.push_back({captures.at(name), gradient});
    if (cu_q.memory) {
      c.cu_seqlens_q = cu_q;
      c.cu_seqlens_kv = cu_kv;
    }
    c.q_offset = shape.q_offset;
    return c;
  }
};

/// An attention in the form that engines get.
struct Lowered {
  compiler::LoweredMod lowered;
  std::optional<double> scale;

  explicit Lowered(const Attention& a) : lowered(compiler::lower(a)), scale(a.scale) {}
  void oracle(const Backward& call) const {
    runtime::oracle_backward(runtime::call_of(lowered, call, compiler::check(lowered, call, scale)));
  }
  void cpu(const Backward& call, Isa isa, int threads = 1) const {
    runtime::cpu::engine.run(runtime::call_of(lowered, call, compiler::check(lowered, call, scale)),
                             {.isa = isa, .executor = {.workers = threads}});
  }
};

std::vector<Isa> isas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx})
    if (runtime::cpu::supports(isa)) out.push_back(isa);
  return out;
}

/// Relative, in the Frobenius norm; infinite where only one of the two has a NaN.
double distance(const Tensor& got, const Tensor& want) {
  const std::vector<double> a = tests::elements(got), b = tests::elements(want);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return infinite;
    if (std::isnan(a[i]) || a[i] == b[i]) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

void agree(const Case& c, double tolerance, const std::string& what) {
  const auto near = [&](const char* name, const Tensor& got, const Tensor& want) {
    INFO(what << ": " << name);
    CHECK(distance(got, want) <= tolerance);
  };
  near("dq", c.got.dq, c.wanted.dq);
  near("dk", c.got.dk, c.wanted.dk);
  near("dv", c.got.dv, c.wanted.dv);
  for (const auto& [name, gradient] : c.got.captured) near(name.c_str(), gradient, c.wanted.captured.at(name));
}

}  // namespace

namespace {

void same_on(const Attention& attention, Case& c, double tolerance, const std::string& what, Isa isa, int threads = 1) {
  const Lowered lowered(attention);
  lowered.oracle(c.call(c.wanted));
  lowered.cpu(c.call(c.got), isa, threads);
  agree(c, tolerance, what + " on " + std::string(codegen::name_of(isa)));
}

const tests::CorpusMod& mod_named(const std::string& name) {
  for (const tests::CorpusMod& mod : tests::corpus())
    if (mod.name == name) return mod;
  throw std::runtime_error("no mod " + name);
}

// The error of f32 over a few dozen terms, and of bf16's rounding of P and dS.
constexpr double f32_tolerance = 2e-5, bf16_tolerance = 2e-2;

const std::vector<std::string> representative{
    "plain", "alibi",     "softcap_after_alibi",  "bias_4d",          "bias_transposed", "relative_table",
    "t5",    "sum_table", "relative_table_short", "head_temperature", "everything"};

}  // namespace

TEST_CASE("the corpus has the oracle's gradients", "[cpu_backward]") {
  unsigned seed = 0;
  for (const tests::CorpusMod& mod : tests::corpus()) {
    if (!tests::runs_case(++seed, 5)) continue;
    const tests::Made made = tests::make(mod, seed);
    Case c({}, DType::f32, made.captures, seed);
    same_on(made.attention, c, f32_tolerance, mod.name, runtime::cpu::best_isa());
  }
}

TEST_CASE("every instruction set has the oracle's gradients, f32 and 16 bits", "[cpu_backward]") {
  unsigned seed = 100;
  std::size_t next = 0;
  for (const std::string& name : representative) {
    const tests::Made made = tests::make(mod_named(name), ++seed);
    for (const Isa isa : isas()) {
      if (!tests::runs_case(next++, 5)) continue;
      Case c({}, DType::f32, made.captures, seed);
      same_on(made.attention, c, f32_tolerance, name, isa);
      for (const DType type : {DType::f16, DType::bf16}) {
        Case narrow({}, type, made.captures, seed);
        const bool pairs = type == DType::bf16 && codegen::has_bf16(isa);
        same_on(made.attention, narrow, pairs ? bf16_tolerance : f32_tolerance, name + " of 16 bits", isa);
      }
    }
  }
}

TEST_CASE("gradients of hostile shapes", "[cpu_backward]") {
  unsigned seed = 200;
  const std::vector<Shape> shapes{
      {.batch = 1, .q_heads = 4, .kv_heads = 4, .q_len = 1, .kv_len = 1, .d = 1, .dv = 1},
      {.batch = 1, .q_heads = 4, .kv_heads = 1, .q_len = 1, .kv_len = 300, .d = 3, .dv = 130},
      {.batch = 1, .q_heads = 4, .kv_heads = 4, .q_len = 261, .kv_len = 1, .d = 17, .dv = 1},
      {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 0, .kv_len = 28},
      {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 24, .kv_len = 0},
      {.batch = 0, .q_heads = 4, .kv_heads = 2, .q_len = 5, .kv_len = 7, .kv_batch = 1},
      {.batch = 3, .q_heads = 4, .kv_heads = 1, .q_len = 33, .kv_len = 65, .kv_batch = 1},
      {.batch = 1, .q_heads = 4, .kv_heads = 4, .q_len = 130, .kv_len = 523, .d = 40, .dv = 24},
      {.batch = 1, .q_heads = 4, .kv_heads = 2, .q_len = 40, .kv_len = 70, .d = 300, .dv = 5},
      {.batch = 1, .q_heads = 4, .kv_heads = 2, .q_len = 40, .kv_len = 70, .d = 5, .dv = 512},
      {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 30, .kv_len = 100, .q_offset = 70},
      // Several readers of several tiles in one task.
      {.batch = 16, .q_heads = 4, .kv_heads = 2, .q_len = 10, .kv_len = 600},
      {.batch = 1, .q_heads = 7, .kv_heads = 1, .q_len = 20, .kv_len = 20},
      {.batch = 3,
       .q_heads = 4,
       .kv_heads = 2,
       .q_len = 40,
       .kv_len = 90,
       .q_starts = {0, 33, 33, 40},
       .kv_starts = {0, 10, 89, 90}},
  };
  for (const Shape& shape : shapes)
    for (const char* name : {"plain", "alibi", "bias_4d", "relative_table", "everything"}) {
      if (!tests::runs_case(++seed, 13)) continue;
      const tests::Made made = tests::make(mod_named(name), seed);
      INFO("batch " << shape.batch << " heads " << shape.q_heads << " q " << shape.q_len << " kv " << shape.kv_len
                    << " d " << shape.d << " dv " << shape.dv);
      for (const Isa isa : {Isa::portable, runtime::cpu::best_isa()})
        for (const DType type : {DType::f32, DType::bf16}) {
          if (!runtime::cpu::supports(isa)) continue;
          Case c(shape, type, made.captures, seed);
          const bool pairs = type == DType::bf16 && codegen::has_bf16(isa);
          same_on(made.attention, c, pairs ? bf16_tolerance : f32_tolerance, name, isa);
        }
    }
}

TEST_CASE("more queries than a worker keeps prepared", "[cpu_backward]") {
  for (const char* name : {"plain", "bias_4d"}) {
    if (tests::sanitized && name == std::string_view("plain")) continue;
    const tests::Made made = tests::make(mod_named(name), 300);
    Case c({.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 1100, .kv_len = 300, .d = 512, .dv = 512}, DType::f32,
           made.captures, 300);
    same_on(made.attention, c, f32_tolerance, name, runtime::cpu::best_isa());
  }
}

TEST_CASE("given what the forward gave, or computed again: the same gradients", "[cpu_backward]") {
  for (const char* name : {"alibi", "everything"}) {
    const tests::Made made = tests::make(mod_named(name), 7);
    Case c({}, DType::f32, made.captures, 7);
    const Lowered lowered(made.attention);
    lowered.oracle(c.call(c.wanted));
    Backward call = c.call(c.got);
    const Owned o = owned(DType::f32, {2, 4, 24, 3}), lse = owned(DType::f32, {2, 4, 24});
    const Forward forward{.q = c.q, .k = c.k, .v = c.v, .o = o, .lse = lse};
    runtime::oracle_forward(runtime::call_of(lowered.lowered, forward, compiler::check(lowered.lowered, forward, {})));
    call.o = o;
    call.lse = lse;
    lowered.cpu(call, runtime::cpu::best_isa());
    agree(c, f32_tolerance, name);
  }
}

TEST_CASE("gradients of any type, strides and choice", "[cpu_backward]") {
  const tests::Made made = tests::make(mod_named("bias_3d"), 8);
  const Lowered lowered(made.attention);
  for (const DType type : {DType::f64, DType::f16, DType::bf16}) {
    Case c({}, DType::f32, made.captures, 8, type);
    lowered.oracle(c.call(c.wanted));
    lowered.cpu(c.call(c.got), runtime::cpu::best_isa());
    agree(c, type == DType::f64 ? f32_tolerance : type == DType::f16 ? 1e-3 : 4e-3, "gradients of another type");
  }
  // Any subset of the outputs is the same as in a call for all of them.
  for (unsigned which = 0; which < 16; ++which) {
    Case c({}, DType::f32, made.captures, 8);
    Backward want = c.call(c.wanted), call = c.call(c.got);
    for (Backward* b : {&want, &call}) {
      if (which & 1) b->dq = {};
      if (which & 2) b->dk = {};
      if (which & 4) b->dv = {};
      if (which & 8) b->captured.clear();
    }
    lowered.oracle(want);
    lowered.cpu(call, runtime::cpu::best_isa());
    INFO("choice " << which);
    agree(c, f32_tolerance, "a choice");
  }
  // Heads that alternate in memory, and inputs that repeat one element.
  Case c({}, DType::f32, made.captures, 9);
  const auto transposed = [](Owned& t) {
    const auto s = t.tensor.shape;
    t.tensor = Tensor(t.tensor.data, t.tensor.dtype, {s[0], s[1], s[2], s[3]});
    t.tensor.strides = {s[1] * s[2] * s[3], s[3], s[1] * s[3], 1};
  };
  for (Owned* t : {&c.q, &c.k, &c.v, &c.grad_o, &c.got.dq, &c.got.dk, &c.got.dv}) transposed(*t);
  c.grad_o.tensor.strides = {0, 0, 0, 0};
  same_on(made.attention, c, f32_tolerance, "strides", runtime::cpu::best_isa());
  Case columns({}, DType::f32, made.captures, 10);
  for (Owned* t : {&columns.k, &columns.got.dk, &columns.got.dq, &columns.q}) {
    const auto s = t->tensor.shape;
    t->tensor.strides = {s[1] * s[2] * s[3], s[2] * s[3], 1, s[2]};
  }
  same_on(made.attention, columns, f32_tolerance, "columns first", runtime::cpu::best_isa());
}

TEST_CASE("what removed pairs hold reaches no gradient", "[cpu_backward]") {
  Text text;
  std::mt19937 random(11);
  const Owned bias = normal(DType::f32, {60, 600}, random);
  const auto at = [](const Tensor& t, std::int64_t i, float x) { runtime::store(t, i, static_cast<double>(x)); };
  text.capture("bias", bias);
  // Keys 40 to 49, keys from 300 on, and queries 20 to 29 are removed and hold poison, up to the last key.
  const std::string kept = "!(kv >= 40 && kv < 50) && kv < 300 && !(q >= 20 && q < 30)";
  const Attention attention{.score = text.score("s + bias[q, kv] * s"), .mask = text.mask(kept)};
  const Shape shape{.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 60, .kv_len = 600, .d = 20, .dv = 12};
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Isa isa : isas()) {
      Case c(shape, type, {{"bias", bias}}, 12);
      for (std::int64_t kv = 0; kv < 600; ++kv) {
        if (!((kv >= 40 && kv < 50) || kv >= 300)) continue;
        at(c.k, kv * 20 + kv % 20, kv % 2 ? not_a_number : infinite);
        at(c.v, kv * 12 + kv % 12, kv % 3 ? not_a_number : -infinite);
        for (std::int64_t q = 0; q < 60; ++q) at(bias, q * 600 + kv, not_a_number);
      }
      for (std::int64_t q = 20; q < 30; ++q)
        for (std::int64_t h = 0; h < 2; ++h) {
          at(c.q, (h * 60 + q) * 20, q % 2 ? not_a_number : infinite);
          at(c.grad_o, (h * 60 + q) * 12 + 3, q % 2 ? infinite : not_a_number);
          at(c.grad_lse, h * 60 + q, 0);
        }
      const bool pairs = type == DType::bf16 && codegen::has_bf16(isa);
      same_on(attention, c, pairs ? bf16_tolerance : f32_tolerance, "poison", isa);
      for (const double x : tests::elements(c.got.dk)) CHECK(std::isfinite(x));
      for (const double x : tests::elements(c.got.captured.at("bias"))) CHECK(std::isfinite(x));
    }
  }
}

TEST_CASE("what kept pairs hold reaches their gradients alone", "[cpu_backward]") {
  Text text;
  const Attention causal{.mask = text.mask("kv <= q")};
  Case c({.batch = 1, .q_heads = 2, .kv_heads = 2, .q_len = 50, .kv_len = 50, .d = 8, .dv = 8}, DType::f32, {}, 13);
  // A query, a row of grad_o and a value that are not finite: the oracle tells which results they reach.
  runtime::store(c.q, 30 * 8, infinite);
  runtime::store(c.grad_o, (50 + 20) * 8 + 2, not_a_number);
  runtime::store(c.v, 45 * 8 + 1, infinite);
  same_on(causal, c, f32_tolerance, "kept", runtime::cpu::best_isa());
}

TEST_CASE("gradients of steep slopes are as near as scores of f32 allow", "[cpu_backward]") {
  std::size_t next = 0;
  // Eager f32 has errors up to 2e-3. attune had 4e-2 while each direction rounded scores relative to its own origin.
  for (const Isa isa : isas())
    for (unsigned seed = 0; seed < 6; ++seed) {
      if (!tests::runs_case(next++, 7)) continue;
      std::mt19937 random(seed + 900);
      const Owned slopes = normal(DType::f32, {4}, random);
      const Capture<float> slope(slopes.tensor, "slope");
      const Attention steep{.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.q - at.kv); }};
      Case c({.batch = 1, .q_heads = 4, .kv_heads = 4, .q_len = 200, .kv_len = 200, .d = 64, .dv = 64}, DType::f32,
             {{"slope", slopes.tensor}}, seed);
      c.with_lse = false;
      const Lowered lowered(steep);
      lowered.oracle(c.call(c.wanted));
      lowered.cpu(c.call(c.got), isa);
      const std::vector<double> got = tests::elements(c.got.captured.at("slope")),
                                want = tests::elements(c.wanted.captured.at("slope"));
      INFO("seed " << seed << " on " << codegen::name_of(isa));
      for (std::size_t h = 0; h < got.size(); ++h) CHECK(std::abs(got[h] - want[h]) < 1e-2);
    }
}

TEST_CASE("the same bits for any number of threads", "[cpu_backward]") {
  // Several chunks of keys, parts of readers and copies of captured gradients.
  const Shape long_keys{.batch = 1, .q_heads = 4, .kv_heads = 1, .q_len = 150, .kv_len = 2500, .d = 8, .dv = 8};
  const Shape shared{
      .batch = 3, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 1100, .d = 8, .dv = 8, .kv_batch = 1};
  std::size_t next = 0;
  for (const Shape& shape : {long_keys, shared})
    for (const char* name : {"everything", "t5", "bias_4d", "relative_table"}) {
      if (!tests::runs_case(next++, 7)) continue;
      const tests::Made made = tests::make(mod_named(name), 14);
      const Lowered lowered(made.attention);
      const auto bits = [&](int threads) {
        Case c(shape, DType::f32, made.captures, 14);
        lowered.cpu(c.call(c.got), runtime::cpu::best_isa(), threads);
        std::vector<double> all = tests::elements(c.got.dq);
        for (const Owned* t : {&c.got.dk, &c.got.dv})
          for (const double x : tests::elements(*t)) all.push_back(x);
        for (const auto& [of, t] : c.got.captured)
          for (const double x : tests::elements(t)) all.push_back(x);
        return all;
      };
      const std::vector<double> one = bits(1);
      INFO(name);
      for (const int threads : {2, 3, 7, 16}) CHECK(bits(threads) == one);
      Case c(shape, DType::f32, made.captures, 14);
      same_on(made.attention, c, 10 * f32_tolerance, name, runtime::cpu::best_isa(), 4);
    }
}

TEST_CASE("a backward works in the memory it says, and in no more", "[cpu_backward]") {
  const tests::Made made = tests::make(mod_named("everything"), 15);
  const Lowered lowered(made.attention);
  Case c({.batch = 1, .q_heads = 4, .kv_heads = 1, .q_len = 150, .kv_len = 2100, .d = 8, .dv = 8}, DType::f32,
         made.captures, 15);
  const Backward call = c.call(c.got);
  const compiler::Problem problem = compiler::check(lowered.lowered, call, {});
  const runtime::Call checked = runtime::call_of(lowered.lowered, call, problem);
  runtime::Means means{.isa = runtime::cpu::best_isa(), .executor = {.workers = 3}};
  const std::size_t size = runtime::cpu::engine.workspace(checked, means);
  std::vector<std::byte> memory(size + 128, std::byte{0xff});
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t skip = (64 - at % 64) % 64;
  means.workspace = std::span(memory).subspan(skip, size);
  runtime::cpu::engine.run(checked, means);
  lowered.oracle(c.call(c.wanted));
  agree(c, f32_tolerance, "memory of the caller's");
  for (std::size_t i = skip + size; i < memory.size(); ++i) CHECK(memory[i] == std::byte{0xff});
}
