// tests/fuzz/simplify.fuzz.cpp — simplify keeps every bit of random expressions, never grows them, and is idempotent
#include "compiler/simplify.h"

#include <sstream>

#include "ir/print.h"
#include "tests/catch.h"
#include "tests/compiler/language.h"
#include "tests/fuzz/random_expr.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Precision;

ir::Grammar grammar_of(std::uint64_t seed) {
  ir::Grammar g = ir::Grammar::ordinary();
  g.hostile = seed % 3 != 0;
  g.max_nodes = seed % 7 == 0 ? 80 : 18;
  return g;
}

/// The first rewrite that changed a value, for the message.
std::string culprit(const std::vector<Rewrite>& log, const ir::Env& env, const ir::Signature& names) {
  for (const Rewrite& r : log) {
    if (r.from->free || r.to->free) continue;
    for (const Precision precision : {Precision::f64, Precision::f32}) {
      const double from = ir::eval(r.from, env, precision), to = ir::eval(r.to, env, precision);
      if (tests::identical(from, to)) continue;
      std::ostringstream told;
      told << r.rule << ": " << ir::print(r.from, names) << " is " << from << ", " << ir::print(r.to, names) << " is "
           << to;
      return told.str();
    }
  }
  return "no single rewrite of a closed expression";
}

}  // namespace

TEST_CASE("a simplified random expression has the same value, bit for bit", "[fuzz][simplify]") {
  const std::uint64_t count = ir::fuzz_count();
  std::uint64_t shrunk = 0;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    const ir::Grammar grammar = grammar_of(seed);
    const Expr e = ir::random_expr(seed, static_cast<ir::Type>(seed % 3), grammar);
    const ir::RandomEnv env(seed, grammar);
    const ir::Bounds bounds = env.bounds(seed);
    const Expr simple = simplify(e, bounds);
    const auto fail = [&](const std::string& what) {
      std::vector<Rewrite> log;
      simplify(e, bounds, &log);
      FAIL("seed " << seed << ": " << what << "\n  " << ir::print(e, grammar.signature) << "\n  "
                   << ir::print(simple, grammar.signature) << "\n  " << culprit(log, env.env(), grammar.signature));
    };
    if (const auto broken = ir::verify(simple, grammar.signature)) fail(*broken);
    if (simple->type != e->type) fail("another type");
    if (simple->size > e->size) fail("larger");
    const Expr again = simplify(simple, bounds);
    if (!ir::same(again, simple)) fail("not done: " + ir::print(again, grammar.signature));
    for (const Precision precision : {Precision::f64, Precision::f32}) {
      const double before = ir::eval(e, env.env(), precision), after = ir::eval(simple, env.env(), precision);
      if (!tests::identical(before, after))
        fail(std::to_string(before) + " became " + std::to_string(after) +
             (precision == Precision::f32 ? " in f32" : ""));
    }
    shrunk += simple->size < e->size;
  }
  CHECK(shrunk > count / 4);  // a simplifier that does nothing would pass all of the above
}

}  // namespace attune::compiler
