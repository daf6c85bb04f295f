// tests/codegen/degree.test.cpp — with which power of c a prob mod of c p grows, and what its gradient's delta is
#include "codegen/facts/gpu_parts.h"
#include "codegen/facts/parts.h"
#include "compiler/lower.h"
#include "tests/catch.h"
#include "tests/numerics/corpus.h"

namespace attune::tests {
namespace {

const std::vector<CorpusCapture> captures{{"g", DType::f32, {4}}, {"c", DType::f32, {28}}};

ir::Expr prob_of(const std::string& prob) {
  return compiler::lower(make({.name = "degree", .prob = prob, .captures = captures}, 1).attention).mod.prob;
}
double degree_of(const std::string& prob) { return codegen::degree_in_p(prob_of(prob)); }
double delta_of(const std::string& prob) { return codegen::delta_degree(prob_of(prob)); }

}  // namespace

TEST_CASE("powers of p, times anything that does not depend on p, have a degree", "[degree]") {
  for (const auto& [prob, degree] :
       std::vector<std::pair<std::string, double>>{{"p * 0.5f", 1},
                                                   {"p * where(random(7) < 0.9f, 1.1f, 0.0f)", 1},
                                                   {"where(kv > q, p, p * g[h])", 1},
                                                   {"p * p", 2},
                                                   {"-p * p / c[kv]", 2},
                                                   {"p * p * g[h] + 0.5f * p * p", 2},
                                                   {"where(kv > q, p * p, 0.0f)", 2},
                                                   {"sqrt(p)", 0.5},
                                                   {"sqrt(p * g[h]) * sqrt(p)", 1},
                                                   {"p * sqrt(p) * 0.5f", 1.5}}) {
    INFO(prob);
    CHECK(degree_of(prob) == degree);
    CHECK(delta_of(prob) == degree);
  }
}

TEST_CASE("prob mods that add up different powers, or are none, have no degree", "[degree]") {
  for (const char* prob :
       {"p + 0.1f", "p * p + p", "where(kv > q, p, p * p)", "exp(p)", "random(7)", "g[h]", "1.0f / p",
        "p / (p + c[kv])", "p * p / p", "max(p - c[kv], 0.0f)", "p * exp(p)", "p * f32(p > 0.1f)", "min(p, p * p)"}) {
    INFO(prob);
    CHECK(degree_of(prob) == 0);
    CHECK(delta_of(prob) == 0);
  }
}

TEST_CASE("where p chooses among pieces of one degree, delta has this degree and results have none", "[degree]") {
  for (const auto& [prob, degree] :
       std::vector<std::pair<std::string, double>>{{"where(p > 0.01f, p, 0.0f)", 1},
                                                   {"where(p > 0.01f, 1.0f, g[h]) * p * p", 2},
                                                   {"max(p * p, 2.0f * p * p)", 2},
                                                   {"where(p > c[kv], sqrt(p), 0.5f * sqrt(p))", 0.5}}) {
    INFO(prob);
    CHECK(degree_of(prob) == 0);
    CHECK(delta_of(prob) == degree);
  }
}

TEST_CASE("o of a high degree is too small for delta, and its powers are too large for one walk", "[degree]") {
  CHECK(degree_of("p * p * p / 3.0f") == 3);
  CHECK(delta_of("p * p * p / 3.0f") == 0);
  CHECK(codegen::keeps_zero(prob_of("p * p * p * g[h]")));
  const auto known_to_kernels = [](const std::string& prob) {
    const Made made = make({.name = "degree", .prob = prob, .captures = captures}, 1);
    return codegen::gpu_parts(compiler::lower(made.attention), true).facts.degree;
  };
  CHECK(known_to_kernels("p * p * p * p") == 4);
  CHECK(known_to_kernels("p * p * p * p * p") == 0);
  CHECK(known_to_kernels("p * p + p") == 0);
}

}  // namespace attune::tests
