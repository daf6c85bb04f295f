// tests/fuzz/split.fuzz.cpp — levels and folds of random expressions, put together again, give the same values
#include <sstream>

#include "compiler/fold.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "tests/catch.h"
#include "tests/compiler/language.h"
#include "tests/fuzz/random_expr.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Input, ir::Precision;

ir::Grammar grammar_of(std::uint64_t seed) {
  ir::Grammar g = ir::Grammar::ordinary();
  g.hostile = seed % 3 == 0;
  g.max_nodes = 25;
  return g;
}

std::vector<double> values(std::span<const Expr> fields, const ir::Env& env, Precision precision) {
  std::vector<double> all;
  for (const Expr& e : fields) all.push_back(ir::eval(e, env, precision));
  return all;
}

bool may_use(const Expr& e, std::uint32_t inputs) { return (e->uses & ~inputs) == 0; }

}  // namespace

TEST_CASE("the fields of random expressions and what is left of them give the same bits", "[fuzz][level]") {
  constexpr std::uint32_t lengths = ir::bit(Input::QLen) | ir::bit(Input::KVLen);
  constexpr std::uint32_t per_head = ir::bit(Input::B) | ir::bit(Input::H) | lengths;
  const std::uint64_t count = ir::fuzz_count();
  std::uint64_t hoisted = 0;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    const ir::Grammar grammar = grammar_of(seed);
    std::vector<Expr> roots;
    for (std::uint64_t i = 0; i < 3; ++i)
      roots.push_back(ir::random_expr(seed * 3 + i, static_cast<ir::Type>(i), grammar));
    const Levels levels = level(roots);
    const auto fail = [&](const std::string& what) {
      std::ostringstream told;
      for (const Expr& e : roots) told << "\n  " << ir::print(e, grammar.signature);
      FAIL("seed " << seed << ": " << what << told.str());
    };
    for (const Expr& e : levels.head)
      if (!may_use(e, per_head) || e->free) fail("a field per head varies more");
    for (const Expr& e : levels.row)
      if (!may_use(e, per_head | ir::bit(Input::Q)) || e->free) fail("a field per row varies more");
    for (const Expr& e : levels.col)
      if (!may_use(e, per_head | ir::bit(Input::KV)) || e->free) fail("a field per column varies more");
    hoisted += levels.head.size() + levels.row.size() + levels.col.size();
    const ir::RandomEnv random(seed, grammar);
    for (const Precision precision : {Precision::f64, Precision::f32}) {
      ir::Env env = random.env();
      const auto head = values(levels.head, env, precision);
      env.head = head;
      const auto row = values(levels.row, env, precision), col = values(levels.col, env, precision);
      env.row = row;
      env.col = col;
      for (std::size_t i = 0; i < roots.size(); ++i)
        if (!tests::identical(ir::eval(roots[i], random.env(), precision), ir::eval(levels.element[i], env, precision)))
          fail(ir::print(levels.element[i], grammar.signature) +
               " is what remains per element, and it is not the same");
    }
  }
  CHECK(hoisted > count);
}

namespace {

/// The largest magnitude among the values of all closed nodes; infinity if any is not finite.
double magnitude(std::span<const Expr> roots, const ir::Env& env) {
  std::vector<Expr> nodes;
  for (const Expr& e : ir::in_order(roots))
    if (!e->free && e->type == ir::Type::F32) nodes.push_back(e);
  const ir::Program program{std::span<const Expr>(nodes)};
  ir::Program::Memory memory;
  program.run(env, memory);
  double most = 1;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const double value = std::fabs(program.result(i, memory));
    most = value <= most ? most : std::isfinite(value) ? value : HUGE_VAL;
  }
  return most;
}

/// Sums and differences of positions and other Ints.
Expr positions(ir::Random& random, std::uint64_t seed, const ir::Grammar& grammar) {
  ir::Grammar small = grammar;
  small.max_nodes = 4;
  const auto part = [&]() -> Expr {
    if (random.chance(0.4)) return ir::input(Input::KV);
    if (random.chance(0.6)) return ir::input(Input::Q);
    return ir::random_expr(seed + random.below(100), ir::Type::I32, small);
  };
  Expr all = part();
  for (std::uint32_t i = 1 + random.below(4); i-- > 0;) {
    const ir::Op op = random.chance(0.5) ? ir::Op::Add : ir::Op::Sub;
    all = random.chance(0.7) ? ir::op(op, all, part()) : ir::op(op, part(), all);
  }
  return all;
}

}  // namespace

TEST_CASE("row and core of a random score add up to it, for any origin", "[fuzz][fold]") {
  const std::uint64_t count = ir::fuzz_count();
  std::uint64_t rows = 0, affine = 0, origins = 0, compared = 0;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    ir::Grammar grammar = grammar_of(seed);
    grammar.inputs &= ~ir::bit(Input::P);
    // Most scores are chains of sums. s comes first, so that it is used.
    Expr score = ir::input(Input::S);
    ir::Random random(seed);
    for (std::uint32_t i = random.below(4); i-- > 0;) {
      const Expr term = ir::random_expr(seed * 7 + i, ir::Type::F32, grammar);
      const Expr whole = ir::op(ir::Op::F32, random.chance(0.5)
                                                 ? positions(random, seed, grammar)
                                                 : ir::random_expr(seed * 11 + i, ir::Type::I32, grammar));
      const ir::Op op = random.pick(
          std::span<const ir::Op>(std::array{ir::Op::Add, ir::Op::Sub, ir::Op::Mul, ir::Op::Div}));
      score = random.chance(0.5)   ? ir::op(op, score, term)
              : random.chance(0.5) ? ir::op(ir::Op::Add, score, ir::op(ir::Op::Mul, term, whole))
                                   : ir::op(ir::Op::Sub, whole, score);
    }
    const Fold folded = fold(score, coordinate_bounds());
    ir::RandomEnv env(seed, grammar);
    const auto fail = [&](const std::string& what) {
      FAIL("seed " << seed << ": " << what << "\n  score " << ir::print(score, grammar.signature) << "\n  core  "
                   << ir::print(folded.core, grammar.signature) << "\n  row   "
                   << ir::print(folded.row, grammar.signature));
    };
    if (folded.row->uses & (ir::bit(Input::S) | ir::bit(Input::KV))) fail("the row varies along the row");
    if (folded.affine && ((folded.scale->uses | folded.bias->uses) & ir::bit(Input::S))) fail("scale or bias uses s");
    ir::Env& at = env.env();
    for (std::int32_t* x : {&at.b, &at.h, &at.q, &at.kv, &at.q_len, &at.kv_len, &at.origin}) *x &= (1 << 30) - 1;
    at.origin = static_cast<std::int32_t>(random.below(random.chance(0.5) ? 1u << 30 : 300));
    rows += !ir::is_literal(folded.row);
    affine += folded.affine;
    origins += ir::uses(folded.core, Input::Origin);
    const double whole = ir::eval(score, at), core = ir::eval(folded.core, at), row = ir::eval(folded.row, at);
    if (!folded.range.contains(core)) fail("core is " + std::to_string(core) + ", out of its range");
    std::vector<Expr> all{score, folded.core, folded.row};
    if (folded.affine) all.insert(all.end(), {folded.scale, folded.bias});
    const double most = magnitude(all, at);
    if (!std::isfinite(most)) continue;
    ++compared;
    const auto near = [&](double a, double b) { return std::fabs(a - b) <= 1e-12 * most; };
    if (!near(whole, core + row)) fail(std::to_string(whole) + " became " + std::to_string(core + row));
    if (folded.affine && !near(core, ir::eval(folded.scale, at) * at.s + ir::eval(folded.bias, at)))
      fail("scale * s + bias is not core");
  }
  INFO(compared << " compared, " << rows << " with a row, " << affine << " affine, " << origins << " with an origin");
  CHECK(compared > count / 2);
  CHECK(rows > count / 20);
  CHECK(affine > count / 5);
  CHECK(origins > count / 50);
}

}  // namespace attune::compiler
