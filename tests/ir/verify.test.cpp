// tests/ir/verify.test.cpp — each rule broken once
#include "ir/node.h"

#include <limits>

#include "tests/catch.h"

namespace attune::ir {
namespace {

const Expr s = input(Input::S), q = input(Input::Q), kv = input(Input::KV);
const Signature signature{{{"slope", Type::F32, 1}}, {{"width", Type::I32}}};

std::string broken(const Expr& e) { return verify(e, signature).value_or("nothing"); }
Expr raw(Op op, Type type, std::uint32_t bits, std::initializer_list<Expr> args = {}) {
  return make(op, type, bits, std::span(args.begin(), args.size()));
}

}  // namespace

TEST_CASE("an expression that keeps the rules passes", "[verify]") {
  const Expr i = fresh_bound();
  const Expr reads = op(Op::Mul, read(0, Type::F32, std::array{q}), op(Op::F32, param(0, Type::I32)));
  CHECK(broken(op(Op::Add, s, op(Op::Add, reads, sum(i, 4, op(Op::F32, i))))) == "nothing");
  CHECK(broken(real(std::numeric_limits<float>::quiet_NaN())) == "nothing");
}

TEST_CASE("no expression at all is refused", "[verify]") { CHECK(broken(nullptr) == "there is no expression"); }

TEST_CASE("a malformed leaf is refused", "[verify]") {
  CHECK(broken(raw(Op::Literal, Type::Bool, 2)) == "Literal: a Bool literal holds more than a bit");
  CHECK(broken(raw(Op::Literal, Type::F32, 0xffc00000u)) == "Literal: a NaN literal is not the quiet NaN");
  CHECK(broken(raw(Op::Input, Type::I32, input_count)) == "Input: an input does not exist or has another type");
  CHECK(broken(raw(Op::Input, Type::F32, 4)) == "Input: an input does not exist or has another type");
  CHECK(broken(param(1, Type::I32)) == "Param: a parameter does not exist or has another type");
  CHECK(broken(param(0, Type::F32)) == "Param: a parameter does not exist or has another type");
}

TEST_CASE("a read that does not fit its capture is refused", "[verify]") {
  const std::string what = "Read: a read names no capture, or has another type or rank";
  CHECK(broken(read(1, Type::F32, std::array{q})) == what);
  CHECK(broken(read(0, Type::I32, std::array{q})) == what);
  CHECK(broken(read(0, Type::F32, std::array{q, kv})) == what);
  CHECK(broken(read(0, Type::F32, std::array{s})) == "Read: an argument has a type the operation does not take");
}

TEST_CASE("wrong arguments are refused", "[verify]") {
  CHECK(broken(raw(Op::Add, Type::I32, 0, {q})) == "Add: wrong number of arguments");
  CHECK(broken(raw(Op::BitAnd, Type::I32, 0, {s, s})) == "BitAnd: an argument has a type the operation does not take");
  CHECK(broken(raw(Op::Where, Type::I32, 0, {q, q, q})) == "Where: an argument has a type the operation does not take");
  CHECK(broken(raw(Op::Add, Type::F32, 0, {q, s})) == "Add: the arguments have different types");
}

TEST_CASE("a wrong type is refused", "[verify]") {
  CHECK(broken(raw(Op::Add, Type::F32, 0, {q, kv})) == "Add: the type is not its argument's");
  CHECK(broken(raw(Op::Lt, Type::I32, 0, {q, kv})) == "Lt: the type is not Bool");
  CHECK(broken(raw(Op::BitNot, Type::F32, 0, {q})) == "BitNot: the type is not Int");
  CHECK(broken(raw(Op::Exp, Type::I32, 0, {s})) == "Exp: the type is not Float");
}

TEST_CASE("a variable outside of its sum is refused", "[verify]") {
  CHECK(broken(bound(1)) == "a bound variable is used outside of its sum");
  CHECK(broken(fresh_bound()) == "Bound: a bound variable is not a canonical Int");
  CHECK(broken(sum(fresh_bound(), 3, fresh_bound())) == "Bound: a bound variable is not a canonical Int");
  CHECK(broken(raw(Op::Bound, Type::F32, 1)) == "Bound: a bound variable is not a canonical Int");
}

TEST_CASE("a sum that is too long or named otherwise is refused", "[verify]") {
  const std::string what = "Sum: a sum is too long or its binder is not canonical";
  CHECK(broken(raw(Op::Sum, Type::I32, 1u << 16 | (max_sum_count + 1), {q})) == what);
  CHECK(broken(raw(Op::Sum, Type::I32, 2u << 16 | 3, {q})) == what);
}

TEST_CASE("a mistake deep inside is found", "[verify]") {
  Expr e = param(7, Type::I32);
  for (int i = 0; i < 10'000; ++i) e = op(Op::Neg, e);
  CHECK(broken(e) == "Param: a parameter does not exist or has another type");
}

}  // namespace attune::ir
