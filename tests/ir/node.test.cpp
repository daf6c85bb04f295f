// tests/ir/node.test.cpp — digests, sums, walks and rebuilding
#include "ir/node.h"

#include <bit>
#include <unordered_set>

#include "ir/eval.h"
#include "tests/catch.h"
#include <attune/error.h>

namespace attune::ir {
namespace {

const Expr s = input(Input::S), q = input(Input::Q), kv = input(Input::KV);

Expr plus(const Expr& a, const Expr& b) { return op(Op::Add, a, b); }
Expr times(const Expr& a, const Expr& b) { return op(Op::Mul, a, b); }

}  // namespace

TEST_CASE("equal content has an equal digest, wherever it was written", "[node]") {
  CHECK(same(plus(q, kv), op(Op::Add, input(Input::Q), input(Input::KV), Written{__FILE__, 7, 0, 0, nullptr})));
  CHECK_FALSE(same(plus(q, kv), plus(kv, q)));
  CHECK_FALSE(same(integer(0), zero(Type::F32)));
  CHECK_FALSE(same(integer(1), boolean(true)));
  CHECK_FALSE(same(real(0.0f), real(-0.0f)));
  CHECK_FALSE(same(param(0, Type::I32), param(0, Type::F32)));
  CHECK_FALSE(same(param(0, Type::I32), param(1, Type::I32)));
  CHECK_FALSE(same(read(0, Type::F32, std::array{q}), read(0, Type::F32, std::array{kv})));
}

TEST_CASE("every NaN literal is the same", "[node]") {
  CHECK(same(real(std::bit_cast<float>(0xffc00001u)), real(std::bit_cast<float>(0x7fc00000u))));
}

TEST_CASE("a digest is the same in every process", "[node]") {
  // A change of these renames every cached kernel and golden: bump the cache's schema with it.
  CHECK(plus(q, integer(1))->digest.hex() == "36a1c550dd81bf498f847ca76d6fb7e5");
}

TEST_CASE("an operation made of the wrong types is a Bug", "[node]") {
  CHECK_THROWS_AS(op(Op::Add, q, s), Bug);
  CHECK_THROWS_AS(op(Op::Not, q), Bug);
  CHECK_THROWS_AS(op(Op::Where, q, q, q), Bug);
  CHECK_THROWS_AS(op(Op::Add, q), Bug);
  CHECK_THROWS_AS(op(Op::Input, q), Bug);
}

TEST_CASE("a node knows what is below it", "[node]") {
  const Expr e = plus(times(q, q), read(0, Type::I32, std::array{kv}));
  CHECK(e->uses == (bit(Input::Q) | bit(Input::KV)));
  CHECK(e->depth == 3);
  CHECK(e->size == 6);
  CHECK(e->reads);
  CHECK_FALSE(e->random);
  CHECK(count(e) == 5);
  const Expr random = op(Op::Random, q);
  CHECK(random->random);
  CHECK(random->uses == (bit(Input::B) | bit(Input::H) | bit(Input::Q) | bit(Input::KV)));
}

TEST_CASE("a sum is the same whatever its variable is called", "[node]") {
  const auto of_squares = [] {
    const Expr i = fresh_bound();
    return sum(i, 9, times(i, plus(i, q)));
  };
  CHECK(same(of_squares(), of_squares()));
  CHECK(of_squares()->free == 0);
  CHECK(of_squares()->binder == 1);
  const Expr i = fresh_bound();
  CHECK_FALSE(same(of_squares(), sum(i, 8, times(i, plus(i, q)))));
}

TEST_CASE("nested sums are named from the inside out", "[node]") {
  const auto nested = [](bool outer_first) {
    const Expr first = fresh_bound(), second = fresh_bound();
    const Expr& i = outer_first ? first : second;
    const Expr& j = outer_first ? second : first;
    return sum(i, 3, plus(i, sum(j, 4, times(i, j))));
  };
  CHECK(same(nested(true), nested(false)));
  CHECK(sum_binder(*nested(true)) == 2);
  CHECK(nested(true)->free == 0);
}

TEST_CASE("a sum beyond its limits is a Bug", "[node]") {
  CHECK_THROWS_AS(sum(fresh_bound(), max_sum_count + 1, q), Bug);
  Expr e = q;
  for (std::uint32_t i = 0; i < max_binders; ++i) e = sum(fresh_bound(), 1, e);
  CHECK_THROWS_AS(sum(fresh_bound(), 1, e), Bug);
}

TEST_CASE("a chain of a million nodes is made, walked and freed without a deep stack", "[node]") {
  Expr e = s;
  for (int i = 0; i < 1'000'000; ++i) e = op(Op::Neg, e);
  CHECK(e->depth == 1'000'001);
  CHECK(count(e) == 1'000'001);
  const std::weak_ptr<const Node> leaf = e->args[0];
  e.reset();
  CHECK(leaf.expired());
}

TEST_CASE("an expression whose tree is astronomically large is still small", "[node]") {
  Expr e = q;
  for (int i = 0; i < 200; ++i) e = plus(e, e);
  CHECK(count(e) == 201);
  CHECK(e->size == 0xffffffffu);
}

TEST_CASE("arguments come before their users", "[node]") {
  const Expr e = plus(times(q, kv), times(kv, q));
  std::unordered_set<Digest, DigestHash> seen;
  for (const Expr& n : in_order(e)) {
    for (const Expr& a : n->arguments()) CHECK(seen.contains(a->digest));
    CHECK(seen.insert(n->digest).second);
  }
  CHECK(seen.size() == 5);
}

TEST_CASE("rebuilding without a change gives the same object", "[node]") {
  const Expr i = fresh_bound();
  const Expr e = plus(q, sum(i, 3, times(i, kv)));
  CHECK(rebuild(e, [](const Expr&, std::span<const Expr>) -> Expr { return nullptr; }) == e);
}

TEST_CASE("substitution replaces content and keeps where the rest was written", "[node]") {
  const Expr e = op(Op::Mul, plus(q, kv), q, Written{__FILE__, 42, 0, 0, nullptr});
  const Expr got = substitute(e, {{q->digest, integer(2)}});
  CHECK(same(got, times(plus(integer(2), kv), integer(2))));
  CHECK(got->written.line == 42);
}

TEST_CASE("a sum put inside a sum is named anew", "[node]") {
  const Expr i = fresh_bound(), j = fresh_bound();
  const Expr inner = sum(j, 3, times(j, q));
  const Expr got = substitute(sum(i, 4, times(i, kv)), {{kv->digest, inner}});
  CHECK(same(got, sum(i, 4, times(i, inner))));
  CHECK(sum_binder(*got) == 2);
}

TEST_CASE("naming an inner sum anew never captures the variable around it", "[node]") {
  const Expr i = fresh_bound(), j = fresh_bound(), k = fresh_bound();
  const Expr put = sum(k, 2, plus(k, q));
  // The inner sum's new name is the outer sum's old one.
  const auto nested = [&](const Expr& x) { return sum(i, 4, sum(j, 3, plus(times(i, integer(10)), times(j, x)))); };
  const Expr got = substitute(nested(kv), {{kv->digest, put}});
  CHECK(same(got, nested(put)));
  Env env;
  env.q = 7;
  CHECK(eval(got, env) == eval(nested(put), env));
}

TEST_CASE("taking a sum out of nested sums names what is left as if it had never been there", "[node]") {
  const Expr i = fresh_bound(), j = fresh_bound(), k = fresh_bound();
  const Expr put = sum(k, 2, plus(k, q));
  const auto nested = [&](const Expr& x) { return sum(i, 4, plus(i, sum(j, 3, plus(times(i, j), x)))); };
  CHECK(same(substitute(nested(put), {{put->digest, kv}}), nested(kv)));
}

TEST_CASE("a literal's value comes back", "[node]") {
  CHECK(literal_value(*integer(-5)) == -5);
  CHECK(literal_value(*boolean(true)) == 1);
  CHECK(literal_value(*real(0.1f)) == static_cast<double>(0.1f));
  CHECK(is_literal(literal(Type::I32, 3), 3));
  CHECK_FALSE(is_literal(q));
  CHECK(field_level(*field(Level::Col, 5, Type::I32)) == Level::Col);
  CHECK(field_index(*field(Level::Col, 5, Type::I32)) == 5);
}

}  // namespace attune::ir
