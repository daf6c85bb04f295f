// tests/fuzz/node.fuzz.cpp — substitution means what it says, also through nested sums
#include "ir/node.h"

#include <cmath>

#include "ir/print.h"
#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"

namespace attune::ir {

TEST_CASE("an expression put in place of an input is that input's value", "[fuzz][node]") {
  Grammar grammar = Grammar::ordinary();
  grammar.random = false;  // it reads the Env's coordinates, whatever replaces them in the expression
  const std::uint64_t count = fuzz_count();
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    grammar.max_nodes = seed % 2 ? 25 : 80;
    const Expr e = random_expr(seed, static_cast<Type>(seed % 3), grammar);
    const Expr number = random_expr(~seed, Type::I32, grammar), real = random_expr(seed << 32, Type::F32, grammar);
    const Expr got = substitute(e, {{input(Input::Q)->digest, number}, {input(Input::S)->digest, real}});
    const std::string told = "seed " + std::to_string(seed) + ": " + print(e, grammar.signature) +
                             "\n  with q = " + print(number, grammar.signature) +
                             "\n  and s = " + print(real, grammar.signature) + "\n  gives " +
                             print(got, grammar.signature);
    if (const auto broken = verify(got, grammar.signature)) FAIL(*broken << "\n" << told);
    RandomEnv env(seed, grammar);
    const double value = eval(got, env.env());
    const auto q = static_cast<std::int32_t>(eval(number, env.env()));
    const double s = eval(real, env.env());
    env.env().q = q;
    env.env().s = s;
    const double wanted = eval(e, env.env());
    if (value != wanted && !(std::isnan(value) && std::isnan(wanted)))
      FAIL(value << " is not " << wanted << "\n" << told);
  }
}

}  // namespace attune::ir
