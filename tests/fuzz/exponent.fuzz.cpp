// tests/fuzz/exponent.fuzz.cpp — the exponent of a random score is log2(e) times the score at a scaled s
#include "codegen/facts/gpu_parts.h"

#include <numbers>

#include "ir/print.h"
#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"

namespace attune::tests {

using ir::Expr, ir::Input;

TEST_CASE("gathering factors changes a random exponent by no more than their rounding", "[fuzz][exponent]") {
  const std::uint64_t count = ir::fuzz_count();
  std::uint64_t compared = 0;
  for (const std::uint64_t seed : seeds_in_turn(count)) {
    ir::Grammar grammar = seed % 2 ? ir::Grammar::differentiable() : ir::Grammar::ordinary();
    grammar.inputs &= ~ir::bit(Input::P);
    grammar.hostile = false;
    const Expr score = ir::random_expr(seed, ir::Type::F32, grammar);
    const ir::RandomEnv random(seed, grammar);
    ir::Env env = random.env();
    std::vector<double> params(env.params.begin(), env.params.end());
    const auto slot = static_cast<std::uint32_t>(params.size());
    params.push_back(0.75);
    env.params = params;
    const Expr s = ir::input(Input::S), scaled = ir::op(ir::Op::Mul, s, ir::param(slot, ir::Type::F32));
    const Expr plain = ir::substitute(score, {{s->digest, scaled}});
    const Expr gathered = codegen::exponent(score, ir::param(slot, ir::Type::F32));

    // Steep or large steps magnify the rounding of factors, so such cases are skipped.
    double most = 1, steepest = 0;
    for (const Expr& root : {plain, gathered})
      for (const Expr& e : ir::in_order(root))
        if (!e->free && e->type == ir::Type::F32) most = std::max(most, std::fabs(ir::eval(e, env)));
    const double wanted = std::numbers::log2e * ir::eval(plain, env), got = ir::eval(gathered, env);
    for (const double by : {-1e-6, 1e-6}) {
      ir::Env beside = env;
      beside.s += by * (1 + std::fabs(env.s));
      steepest = std::max(steepest, std::fabs(ir::eval(plain, beside) - ir::eval(plain, env)));
    }
    if (!(most < 1e4) || !(steepest < 1e-3)) continue;
    ++compared;
    INFO("seed " << seed << "\n  " << ir::print(score, grammar.signature) << "\n  " << ir::print(gathered));
    const bool nans = std::isnan(got) && std::isnan(wanted);
    if (!nans && !(std::fabs(got - wanted) <= 1e-5 * most + 4 * steepest)) CHECK(got == wanted);
  }
  CHECK(compared > count / 3);
}

}  // namespace attune::tests
