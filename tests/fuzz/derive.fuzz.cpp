// tests/fuzz/derive.fuzz.cpp — derivatives of random expressions against central differences in double
#include "compiler/lower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "compiler/simplify.h"
#include "ir/print.h"
#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"

namespace attune::compiler {
namespace {

using ir::Expr;

struct Slope {
  double value;
  bool clear;  ///< three step sizes agree, so there is no kink nearby and rounding is small
};

/// d f / d x by central differences. Restores `x`.
template <class F>
Slope slope_of(F f, double& x) {
  const double at = x;
  const auto difference = [&](double h) {
    x = at + h;
    const double above = f();
    x = at - h;
    const double below = f();
    x = at;
    return (above - below) / (2 * h);
  };
  const double coarse = difference(1e-4), middle = difference(4.1e-5), fine = difference(2e-5);
  const double size = std::fabs(f());
  const bool clear = std::isfinite(fine) && std::fabs(coarse - fine) <= 1e-5 * (1 + std::fabs(fine)) &&
                     std::fabs(middle - fine) <= 1e-5 * (1 + std::fabs(fine)) &&
                     size * 1e-11 <= 1e-6 * (1 + std::fabs(fine));
  return {fine, clear};
}

/// What all scatters add to one element of a capture, summed over their loops.
class Gathered {
 public:
  Gathered(const std::vector<Scatter>& scatters, const ir::RandomEnv& env) : scatters_(scatters), env_(env) {}

  double at(std::uint32_t capture, std::size_t element) const {
    double total = 0;
    for (const Scatter& s : scatters_)
      if (s.capture == capture) {
        ir::Env env = env_.env();
        std::array<std::int32_t, ir::max_binders + 1> bound{};
        env.bound = bound;
        over(s, 0, env, bound, element, total);
      }
    return total;
  }

 private:
  using Bound = std::array<std::int32_t, ir::max_binders + 1>;
  // Recurses once for each loop.
  void over(const Scatter& s, std::size_t loop, const ir::Env& env, Bound& bound, std::size_t element,
            double& total) const {
    if (loop < s.loops.size()) {
      for (std::uint32_t i = 0; i < s.loops[loop].count; ++i) {
        bound[s.loops[loop].binder] = static_cast<std::int32_t>(i);
        over(s, loop + 1, env, bound, element, total);
      }
      return;
    }
    const auto& tensor = env_.tensors()[s.capture];
    std::size_t offset = 0;
    for (std::size_t i = 0; i < s.index.size(); ++i) {
      const auto at = static_cast<std::int32_t>(ir::eval(s.index[i], env));
      offset = offset * static_cast<std::size_t>(tensor.extents[i]) +
               static_cast<std::size_t>(std::clamp(at, 0, tensor.extents[i] - 1));
    }
    if (offset == element) total += ir::eval(s.value, env);
  }

  const std::vector<Scatter>& scatters_;
  const ir::RandomEnv& env_;
};

/// Random expressions whose differences approximate their derivatives except near kinks. Half of them have kinks.
ir::Grammar grammar_of(std::uint64_t seed) {
  ir::Grammar g = ir::Grammar::differentiable();
  g.smooth = seed % 2 == 0;
  g.max_nodes = 30;
  g.max_sums = 3;
  g.max_count = 3;
  return g;
}

struct Share {
  std::uint64_t compared = 0, skipped = 0, nonzero = 0;
};

/// Skips large values outside of sums: rounding then hides a difference's step, and floor looks smooth.
bool can_follow(const Expr& root, const ir::Env& env) {
  std::vector<Expr> nodes;
  double most = 1e3;
  for (const Expr& e : ir::in_order(std::span(&root, 1), ir::SumBodies::Skip)) {
    if (e->type == ir::Type::F32) nodes.push_back(e);
    if (e->op == ir::Op::Floor || e->op == ir::Op::Ceil || e->op == ir::Op::Round || e->op == ir::Op::Trunc) most = 30;
  }
  const ir::Program program{std::span<const Expr>(nodes)};
  ir::Program::Memory memory;
  program.run(env, memory);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (std::fabs(program.result(i, memory)) > most) return false;
  return true;
}

/// Compares one derivative or counts it as skipped. Returns what is wrong, if anything.
std::string compare(double derivative, const Slope& slope, Share& share) {
  if (!slope.clear || !std::isfinite(derivative)) {
    ++share.skipped;
    return {};
  }
  ++share.compared;
  share.nonzero += derivative != 0;
  if (std::fabs(derivative - slope.value) <= 1e-4 * (1 + std::fabs(slope.value))) return {};
  std::ostringstream told;
  told << derivative << " against a difference of " << slope.value;
  return told.str();
}

void check(const Share& share) {
  INFO(share.compared << " compared, " << share.skipped << " skipped, " << share.nonzero << " not 0");
  CHECK(share.skipped < share.compared);
  CHECK(share.nonzero > share.compared / 20);
}

}  // namespace

TEST_CASE("the derivative of a random expression by s agrees with differences", "[fuzz][derive]") {
  const std::uint64_t count = ir::fuzz_count();
  Share share;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    const ir::Grammar grammar = grammar_of(seed);
    const Expr e = ir::random_expr(seed, ir::Type::F32, grammar);
    if (!ir::uses(e, ir::Input::S)) continue;
    const Expr by = derive(e, ir::Input::S).by;
    if (const auto broken = ir::verify(by, grammar.signature)) FAIL("seed " << seed << ": " << *broken);
    ir::RandomEnv env(seed, grammar);
    if (!can_follow(e, env.env())) {
      ++share.skipped;
      continue;
    }
    const ir::Program program(e);
    ir::Program::Memory memory;
    const auto value = [&] {
      program.run(env.env(), memory);
      return program.result(0, memory);
    };
    const Slope slope = slope_of(value, env.env().s);
    const std::string wrong = compare(ir::eval(by, env.env()), slope, share);
    if (!wrong.empty())
      FAIL("seed " << seed << ": " << wrong << "\n  " << ir::print(e, grammar.signature) << "\n  "
                   << ir::print(by, grammar.signature));
  }
  check(share);
}

TEST_CASE("what the scatters of a random expression add up to agrees with differences", "[fuzz][derive]") {
  const std::uint64_t count = ir::fuzz_count();
  Share share;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    ir::Grammar grammar = grammar_of(seed + 1'000'000'000);
    grammar.inputs &= ~ir::bit(ir::Input::S);  // so that captures are met more often
    const Expr e = ir::random_expr(seed, ir::Type::F32, grammar);
    if (!e->reads) continue;
    const Derivative derivative = derive(e, ir::Input::S);
    ir::RandomEnv env(seed, grammar);
    if (!can_follow(e, env.env())) {
      ++share.skipped;
      continue;
    }
    const Gathered gathered(derivative.captures, env);
    const ir::Program program(e);
    ir::Program::Memory memory;
    const auto value = [&] {
      program.run(env.env(), memory);
      return program.result(0, memory);
    };
    for (std::uint32_t capture = 0; capture < env.tensors().size(); ++capture) {
      auto& tensor = env.tensors()[capture];
      if (tensor.type != ir::Type::F32) continue;
      for (std::size_t element = 0; element < tensor.values.size() && element < 6; ++element) {
        const Slope slope = slope_of(value, tensor.values[element]);
        const std::string wrong = compare(gathered.at(capture, element), slope, share);
        if (!wrong.empty())
          FAIL("seed " << seed << ": " << grammar.signature.captures[capture].name << ", element " << element << ": "
                       << wrong << "\n  " << ir::print(e, grammar.signature));
      }
    }
  }
  check(share);
}

TEST_CASE("a derivative does not depend on whether the expression was simplified before", "[fuzz][derive]") {
  const std::uint64_t count = ir::fuzz_count();
  std::uint64_t changed = 0;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    ir::Grammar grammar = grammar_of(seed * 2 + 1);  // with kinks, and ties at whole numbers
    grammar.max_nodes = 15;
    const Expr e = ir::random_expr(seed, ir::Type::F32, grammar);
    const Expr simple = simplify(e);
    if (!ir::uses(e, ir::Input::S) || ir::same(e, simple)) continue;
    ++changed;
    ir::RandomEnv env(seed, grammar);
    for (const double s : {env.env().s, 0.0, 1.0, -1.0, 0.5}) {
      env.env().s = s;
      const double before = ir::eval(derive(e, ir::Input::S).by, env.env());
      const double after = ir::eval(derive(simple, ir::Input::S).by, env.env());
      // With an infinite factor, the order of multiplications decides between 0 * inf and 0.
      if (!std::isfinite(before) || !std::isfinite(after)) continue;
      if (std::fabs(before - after) > 1e-9 * (1 + std::fabs(before)))
        FAIL("seed " << seed << ", s = " << s << ": " << before << " became " << after << "\n  "
                     << ir::print(e, grammar.signature) << "\n  " << ir::print(simple, grammar.signature));
    }
  }
  CHECK(changed > count / 20);
}

}  // namespace attune::compiler
