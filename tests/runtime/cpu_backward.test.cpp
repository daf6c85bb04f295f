// tests/runtime/cpu_backward.test.cpp — the CPU engine's gradients against the oracle's
#include <attune/attune.h>

#include <cmath>
#include <limits>
#include <random>

#include "compiler/lower.h"
#include "runtime/cpu/engine.h"
#include "runtime/cpu/host.h"
#include "runtime/oracle.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/numerics/corpus.h"

using namespace attune;
using runtime::cpu::Isa;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN(),
                infinite = std::numeric_limits<float>::infinity();

/// A tensor with memory of its own.
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

/// Inputs of a call, and where two engines leave their gradients.
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

/// An attention as engines get it.
struct Lowered {
  compiler::Traced traced;
  compiler::Cover cover;
  std::optional<double> scale;
  bool removes;

  explicit Lowered(const Attention& a) : traced(compiler::lower(a)), scale(a.scale) {
    cover = compiler::cover(traced.mod.mask, traced.mod.signature(), traced.mod.score);
    removes = !ir::is_literal(cover.mask, 1);
  }
  void oracle(const Backward& call) const {
    runtime::oracle_backward(traced, call, compiler::check(traced, call, scale));
  }
  void cpu(const Backward& call, Isa isa, int threads = 1) const {
    runtime::cpu::backward({traced, removes ? &cover : nullptr}, call, compiler::check(traced, call, scale),
                           {.isa = isa, .executor = {.workers = threads}});
  }
};

[[maybe_unused]] std::vector<Isa> isas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx})
    if (runtime::cpu::supports(isa)) out.push_back(isa);
  return out;
}

/// Relative, in the Frobenius norm; infinite where one has a NaN and the other has not.
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

TEST_CASE("the corpus has the oracle's gradients", "[cpu_backward]") {
  unsigned seed = 0;
  for (const tests::CorpusMod& mod : tests::corpus()) {
    if (const char* only = std::getenv("ONLY")) if (mod.name != only) continue;
    const tests::Made made = tests::make(mod, ++seed);
    const Lowered lowered(made.attention);
    const Case c({}, DType::f32, made.captures, seed);
    lowered.oracle(c.call(c.wanted));
    lowered.cpu(c.call(c.got), runtime::cpu::best_isa());
    agree(c, 2e-5, mod.name);
  }
}
