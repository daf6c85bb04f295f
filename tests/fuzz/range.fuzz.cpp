// tests/fuzz/range.fuzz.cpp — every value that eval gives is in its range, in both precisions and under conditions
#include "ir/range.h"

#include <sstream>
#include <vector>

#include "ir/print.h"
#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"

namespace attune::ir {
namespace {

constexpr std::array precisions{Precision::f64, Precision::f32};

Grammar grammar_of(std::uint64_t seed) {
  Grammar g = Grammar::ordinary();
  g.hostile = seed % 3 != 0;
  g.max_nodes = seed % 5 == 0 ? 120 : 25;
  return g;
}

/// The closed sub-expressions: those that have a value.
std::vector<Expr> closed(const std::vector<Expr>& nodes) {
  std::vector<Expr> all;
  for (const Expr& e : nodes)
    if (!e->free) all.push_back(e);
  return all;
}

/// Reports the first of `nodes` whose value is not in its range, with the seed; empty if all are.
std::string first_outside(const std::vector<Expr>& nodes, const Env& env, Precision precision, const Bounds& bounds,
                          const Signature& signature, std::uint64_t seed) {
  const Program program{std::span(nodes)};
  Program::Memory memory;
  program.run(env, memory, precision);
  Ranger range(bounds);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const double value = program.result(i, memory);
    const Interval held = range(nodes[i]);
    if (held.contains(value)) continue;
    std::ostringstream told;
    told.precision(17);
    told << "seed " << seed << (precision == Precision::f32 ? ", f32: " : ", f64: ") << print(nodes[i], signature)
         << "\nis " << value << ", not in [" << held.lo << ", " << held.hi << "]" << (held.nan ? " or nan" : "");
    for (const Expr& a : nodes[i]->arguments()) {
      if (a->free) continue;
      const Interval r = range(a);
      told << "\n  " << print(a, signature) << " is " << eval(a, env, precision) << " in [" << r.lo << ", " << r.hi
           << "]";
    }
    return told.str();
  }
  return {};
}

}  // namespace

TEST_CASE("the range of a random expression holds its value", "[fuzz][range]") {
  const std::uint64_t count = fuzz_count();
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    const Grammar grammar = grammar_of(seed);
    const Expr e = random_expr(seed, static_cast<Type>(seed % 3), grammar);
    if (const auto broken = verify(e, grammar.signature)) FAIL("seed " << seed << ": " << *broken);
    const std::vector<Expr> nodes = closed(in_order(e));
    for (std::uint64_t i = 0; i < 2; ++i) {
      const RandomEnv env(seed * 2 + i, grammar);
      const Bounds bounds = env.bounds(seed * 2 + i);
      for (const Precision precision : precisions) {
        const std::string outside = first_outside(nodes, env.env(), precision, bounds, grammar.signature, seed);
        if (!outside.empty()) FAIL(outside);
      }
    }
  }
}

TEST_CASE("what a condition tells holds wherever the condition does", "[fuzz][range]") {
  const std::uint64_t count = fuzz_count();
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    const Grammar grammar = grammar_of(seed);
    Random random(seed);
    const Expr condition = random_expr(seed, Type::Bool, grammar);
    // Expressions made of the condition: its parts, their differences, and choices between them by the condition.
    std::vector<Expr> nodes = closed(in_order(condition));
    const std::size_t parts = nodes.size();
    for (int i = 0; i < 8; ++i) {
      const Expr a = nodes[random.below(static_cast<std::uint32_t>(parts))];
      const Expr b = nodes[random.below(static_cast<std::uint32_t>(parts))];
      if (a->type != b->type) continue;
      nodes.push_back(op(Op::Where, condition, a, b));
      nodes.push_back(op(a->type == Type::Bool ? Op::Eq : Op::Sub, a, b));
      if (a->type != Type::Bool) nodes.push_back(op(Op::Le, a, b));
    }
    for (std::uint64_t i = 0; i < 2; ++i) {
      const RandomEnv env(seed * 2 + i, grammar);
      for (const Precision precision : precisions) {
        const bool truth = eval(condition, env.env(), precision) != 0;
        const Bounds bounds = assume(condition, truth, env.bounds(seed * 2 + i));
        const std::string outside = first_outside(nodes, env.env(), precision, bounds, grammar.signature, seed);
        if (!outside.empty())
          FAIL("when " << print(condition, grammar.signature) << " is " << truth << "\n" << outside);
      }
    }
  }
}

}  // namespace attune::ir
