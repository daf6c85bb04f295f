// tests/fuzz/print.fuzz.cpp — random expressions read back as they were printed, with spans for every node
#include "ir/print.h"

#include <attune/error.h>

#include "ir/parse.h"
#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"

namespace attune::ir {
namespace {

// Small expressions meet every pair of operators; large ones need lets.
Grammar grammar_of(std::uint64_t seed) {
  Grammar g = Grammar::ordinary();
  g.max_nodes = seed % 4 == 0 ? 400 : seed % 4 == 1 ? 100 : 20;
  g.max_sums = seed % 7 == 0 ? 5 : 2;
  return g;
}

std::string broken_by(const Expr& e, const Signature& signature) {
  const Printed printed = print_spans(e, signature);
  Scope scope;
  scope.signature = &signature;
  scope.expected = e->type;
  try {
    for (const std::string& text : {printed.text, print_derivative(e, signature)})
      if (!same(parse(text, scope), e)) return "reads back as another expression: " + text;
  } catch (const Error& error) {
    return error.what();
  }
  for (const Expr& node : in_order(e)) {
    const auto span = printed.spans.find(node->digest);
    if (span == printed.spans.end()) return "has a node without a span: " + printed.text;
    const auto [begin, end] = span->second;
    if (begin >= end || end > printed.text.size()) return "has an empty span: " + printed.text;
    if (node->arity > 0 || node->free) continue;
    // A leaf's span covers its whole text, so that text parses as the leaf.
    if (!same(parse(printed.text.substr(begin, end - begin), {.signature = &signature}), node))
      return "has a span that is another leaf: " + printed.text;
  }
  return {};
}

}  // namespace

TEST_CASE("a random expression reads back as it was printed", "[fuzz][print]") {
  const std::uint64_t count = fuzz_count();
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    const Grammar grammar = grammar_of(seed);
    const Expr e = random_expr(seed, static_cast<Type>(seed % 3), grammar);
    const std::string broken = broken_by(e, grammar.signature);
    if (!broken.empty()) FAIL("seed " << seed << " " << broken);
  }
}

TEST_CASE("a random expression stacked upon itself reads back as it was printed", "[fuzz][print]") {
  const std::uint64_t count = fuzz_count() / 20;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    Grammar grammar = grammar_of(seed);
    grammar.max_nodes = 30;
    Random random(seed);
    std::vector<Expr> made;
    for (std::uint64_t i = 0; i < 4; ++i) made.push_back(random_expr(seed * 4 + i, Type::F32, grammar));
    for (int i = 0; i < 300; ++i) {
      const Expr& a = made[made.size() - 1 - random.below(4)];
      const Expr& b = made[made.size() - 1 - random.below(4)];
      const std::array infix{Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Max};
      if (random.chance(0.1))
        made.push_back(op(Op::Where, op(Op::Lt, a, b), b, a));
      else if (random.chance(0.1))
        made.push_back(op(Op::Neg, a));
      else if (random.chance(0.02) && a->binder + 1 < max_binders)
        made.push_back(sum(fresh_bound(), 2, a));
      else
        made.push_back(op(infix[random.below(infix.size())], a, b));
    }
    const std::string broken = broken_by(made.back(), grammar.signature);
    if (!broken.empty()) FAIL("seed " << seed << " " << broken);
  }
}

}  // namespace attune::ir
