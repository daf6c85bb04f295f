// tests/ir/print.test.cpp — brackets, literals, names of shared and deep expressions, spans
#include "ir/print.h"

#include <bit>
#include <cmath>
#include <limits>

#include "ir/parse.h"
#include "tests/catch.h"

using namespace attune;
using namespace attune::ir;

namespace {

const Signature signature{{{"slope", Type::F32, 1}, {"bias", Type::F32, 2}, {"one", Type::F32, 0}}, {{"c", Type::F32}}};

Expr s() { return input(Input::S); }
Expr q() { return input(Input::Q); }
Expr kv() { return input(Input::KV); }

Expr again(const Expr& e, const Signature& sig = signature) {
  Scope scope;
  scope.signature = &sig;
  return parse(print(e, sig), scope);
}

#define CHECK_ROUND_TRIP(e)    \
  do {                         \
    INFO(print(e, signature)); \
    CHECK(same(again(e), e));  \
  } while (false)

}  // namespace

TEST_CASE("print writes C++ with the brackets it needs and no others", "[print]") {
  const Expr three = integer(3);
  CHECK(print(op(Op::Sub, op(Op::Sub, q(), kv()), three)) == "q - kv - 3");
  CHECK(print(op(Op::Sub, q(), op(Op::Sub, kv(), three))) == "q - (kv - 3)");
  CHECK(print(op(Op::Add, q(), op(Op::Mul, kv(), three))) == "q + kv * 3");
  CHECK(print(op(Op::Mul, op(Op::Add, q(), kv()), three)) == "(q + kv) * 3");
  CHECK(print(op(Op::Neg, op(Op::Add, q(), kv()))) == "-(q + kv)");
  CHECK(print(op(Op::Neg, op(Op::Neg, q()))) == "-(-q)");
  CHECK(print(op(Op::BitNot, op(Op::BitNot, q()))) == "~~q");
  CHECK(print(op(Op::Not, op(Op::Lt, q(), kv()))) == "!(q < kv)");
  CHECK(print(op(Op::Sub, op(Op::Neg, q()), op(Op::Neg, kv()))) == "-q - -kv");
  CHECK(print(op(Op::Where, op(Op::Le, kv(), q()), s(), real(-INFINITY))) == "where(kv <= q, s, -inf)");
  CHECK(print(op(Op::BitAnd, q(), op(Op::Shl, kv(), three))) == "q & kv << 3");
  CHECK(print(op(Op::Clamp, q(), op(Op::Add, kv(), three), three)) == "clamp(q, kv + 3, 3)");
}

TEST_CASE("print names captures and parameters by the signature, and by slot without one", "[print]") {
  const Expr e = op(Op::Mul, read(1, Type::F32, std::array{q(), kv()}), param(0, Type::F32));
  CHECK(print(e, signature) == "bias[q, kv] * c");
  CHECK(print(e) == "capture1[q, kv] * param0");
  CHECK(print(read(2, Type::F32, {}), signature) == "one[]");
  CHECK(print(op(Op::Add, field(Level::Head, 0, Type::F32), field(Level::Col, 2, Type::F32))) == "head0 + col2");
}

TEST_CASE("print_literal writes the shortest text that reads back", "[print]") {
  CHECK(print_literal(Type::F32, 0.5) == "0.5f");
  CHECK(print_literal(Type::F32, 2) == "2.0f");
  CHECK(print_literal(Type::F32, -0.0) == "-0.0f");
  CHECK(print_literal(Type::F32, 1e-8) == "1e-08f");
  CHECK(print_literal(Type::F32, 0.1f) == "0.1f");
  CHECK(print_literal(Type::F32, INFINITY) == "inf");
  CHECK(print_literal(Type::F32, -INFINITY) == "-inf");
  CHECK(print_literal(Type::F32, NAN) == "nan");
  CHECK(print_literal(Type::I32, -3) == "-3");
  CHECK(print_literal(Type::I32, std::numeric_limits<std::int32_t>::min()) == "-2147483648");
  CHECK(print_literal(Type::Bool, 1) == "true");
  CHECK(print_literal(Type::Bool, 0) == "false");
}

TEST_CASE("literals read back bit for bit, alone, negated and between operators", "[print]") {
  std::vector<Expr> literals{boolean(true),
                             integer(0),
                             integer(-1),
                             integer(std::numeric_limits<std::int32_t>::max()),
                             integer(std::numeric_limits<std::int32_t>::min()),
                             real(NAN),
                             real(INFINITY),
                             real(-INFINITY),
                             real(0.0f),
                             real(-0.0f),
                             real(std::numeric_limits<float>::max()),
                             real(std::numeric_limits<float>::min()),
                             real(std::numeric_limits<float>::denorm_min()),
                             real(-std::numeric_limits<float>::denorm_min()),
                             real(16777217.0f)};
  std::uint32_t bits = 1;
  for (int i = 0; i < 2000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    literals.push_back(real(std::bit_cast<float>(bits)));
  }
  for (const Expr& e : literals) {
    CHECK_ROUND_TRIP(e);
    if (e->type == Type::Bool) continue;
    CHECK_ROUND_TRIP(op(Op::Neg, e));
    CHECK_ROUND_TRIP(op(Op::Neg, op(Op::Neg, e)));
    CHECK_ROUND_TRIP(op(Op::Sub, e, e));
    CHECK_ROUND_TRIP(op(Op::F32, e));
  }
}

TEST_CASE("every pair of operators, in both positions, reads back as it was", "[print]") {
  // Some operand for each type, and every infix and prefix operator over every other where the types allow.
  const auto leaf = [](Type t, int n) -> Expr {
    if (t == Type::F32) return n ? s() : real(-2);
    if (t == Type::I32) return n ? q() : integer(-2);
    return n ? op(Op::Eq, q(), kv()) : boolean(true);
  };
  std::vector<Expr> level{leaf(Type::Bool, 0), leaf(Type::I32, 0), leaf(Type::F32, 0),
                          leaf(Type::Bool, 1), leaf(Type::I32, 1), leaf(Type::F32, 1)};
  const auto grow = [&](const std::vector<Expr>& inner) {
    std::vector<Expr> out;
    for (std::size_t o = 0; o < op_rows.size(); ++o) {
      const OpRow& r = op_rows[o];
      if (r.args == 0 || r.gives == Gives::Own || r.spelling == "sum") continue;
      for (const Expr& e : inner) {
        if (!takes(r.takes, e->type)) continue;
        const Op op_ = static_cast<Op>(o);
        if (r.args == 1) out.push_back(op(op_, e));
        if (r.args == 2) out.push_back(op(op_, e, leaf(e->type, 1)));
        if (r.args == 2) out.push_back(op(op_, leaf(e->type, 0), e));
        if (op_ == Op::Where) out.push_back(op(op_, leaf(Type::Bool, 1), e, leaf(e->type, 0)));
        if (op_ == Op::Clamp) out.push_back(op(op_, leaf(e->type, 0), e, leaf(e->type, 1)));
      }
    }
    return out;
  };
  const std::vector<Expr> two = grow(grow(level));
  CHECK(two.size() > 5000);
  for (const Expr& e : two)
    if (!same(again(e), e)) FAIL(print(e, signature));
}

TEST_CASE("the variables of sums are i, j, k, i4 …, but for what captures and parameters are called", "[print]") {
  const auto nested = [](int depth) {
    std::vector<Expr> v;
    for (int i = 0; i < depth; ++i) v.push_back(fresh_bound());
    Expr body = v[0];
    for (int i = 1; i < depth; ++i) body = op(Op::Add, body, v[static_cast<std::size_t>(i)]);
    for (int i = depth; i-- > 0;) body = sum(v[static_cast<std::size_t>(i)], 2, body);
    return body;
  };
  CHECK(print(nested(4)) == "sum(i4, 2, sum(k, 2, sum(j, 2, sum(i, 2, i4 + k + j + i))))");
  const Signature taken{{{"i", Type::F32, 0}, {"k", Type::F32, 0}}, {{"i4", Type::F32}}};
  CHECK(print(nested(3), taken) == "sum(i6, 2, sum(i5, 2, sum(j, 2, i6 + i5 + j)))");
  CHECK_ROUND_TRIP(nested(4));
  CHECK_ROUND_TRIP(nested(static_cast<int>(max_binders)));
  CHECK(same(again(nested(3), taken), nested(3)));
}

TEST_CASE("a chain of ten thousand terms prints as a chain, and reads back", "[print][deep]") {
  Expr chain = s();
  for (int i = 1; i < 10'000; ++i) chain = op(Op::Add, chain, s());
  const std::string text = print(chain);
  CHECK(text.size() == 10'000 + 9'999 * 3);
  CHECK(text.find('(') == std::string::npos);
  CHECK_ROUND_TRIP(chain);
}

TEST_CASE("deep nesting of every shape prints in lets that the parser can follow", "[print][deep]") {
  Expr right = s(), calls = s(), signs = q(), reads = q(), wheres = s(), left = q();
  for (int i = 1; i < 10'000; ++i) {
    right = op(Op::Sub, s(), right);
    calls = op(Op::Tanh, calls);
    signs = op(i % 2 ? Op::Neg : Op::BitNot, signs);
    reads = op(Op::I32, read(0, Type::F32, std::array{reads}));
    wheres = op(Op::Where, op(Op::Lt, wheres, s()), wheres, s());
    left = op(Op::Mul, op(Op::Add, left, kv()), q());
  }
  for (const Expr& e : {right, calls, signs, reads, wheres, left}) {
    const std::string text = print(e, signature);
    CHECK(text.starts_with("let x1 = "));
    CHECK(text.size() < 600'000);
    CHECK(same(again(e), e));
  }
}

TEST_CASE("an expression that shares prints in the size of what is shared", "[print][deep]") {
  Expr e = op(Op::Mul, s(), s());
  for (int i = 0; i < 100; ++i) e = op(Op::Add, e, e);
  const std::string text = print(e);
  CHECK(text.size() < 3'000);
  CHECK_ROUND_TRIP(e);
}

TEST_CASE("a small expression repeats itself rather than name its parts", "[print]") {
  const Expr square = op(Op::Mul, op(Op::Add, s(), s()), op(Op::Add, s(), s()));
  CHECK(print(op(Op::Add, square, square)) == "(s + s) * (s + s) + (s + s) * (s + s)");
}

TEST_CASE("a derivative names what it repeats, however short it is", "[print]") {
  const Expr part = op(Op::Tanh, op(Op::Div, op(Op::Add, s(), op(Op::F32, op(Op::Sub, kv(), q()))), real(20.0f)));
  const Expr e = op(Op::Sub, real(1.0f), op(Op::Mul, part, part));
  CHECK(print(e) == "1.0f - tanh((s + f32(kv - q)) / 20.0f) * tanh((s + f32(kv - q)) / 20.0f)");
  CHECK(print_derivative(e) == "let x1 = tanh((s + f32(kv - q)) / 20.0f); 1.0f - x1 * x1");
  CHECK(parse(print_derivative(e), Scope{})->digest == e->digest);
  const Expr small = op(Op::Tanh, s());
  CHECK(print_derivative(op(Op::Mul, small, small)) == "tanh(s) * tanh(s)");
}

TEST_CASE("what a sum's variable is part of is named within the sum, and the rest outside of it", "[print]") {
  const Expr i = fresh_bound();
  const auto grow = [](Expr e) {
    for (int n = 0; n < 5; ++n) e = op(Op::Add, e, e);
    return e;
  };
  const Expr outer = grow(s()), element = grow(read(0, Type::F32, std::array{i}));
  const Expr e = op(Op::Mul, sum(i, 4, op(Op::Mul, op(Op::Mul, element, element), op(Op::Mul, outer, outer))), outer);
  const std::string text = print(e, signature);
  INFO(text);
  const std::size_t within = text.find("sum(i, 4, let ");
  REQUIRE(within != std::string::npos);
  CHECK(text.find("s + s") < within);
  CHECK(text.find("s + s", within) == std::string::npos);
  CHECK(text.find("slope[i]") > within);
  CHECK_ROUND_TRIP(e);
}

TEST_CASE("the same content in two sums is named in each", "[print]") {
  const auto element = [](const Expr& i) {
    Expr e = read(0, Type::F32, std::array{i});
    for (int n = 0; n < 6; ++n) e = op(Op::Add, e, e);
    return e;
  };
  const Expr i = fresh_bound(), j = fresh_bound();
  const Expr e = op(Op::Add, sum(i, 4, op(Op::Tanh, element(i))), sum(j, 8, element(j)));
  CHECK_ROUND_TRIP(e);
  CHECK(print(e, signature).size() < 600);
}

TEST_CASE("names that print makes up are no capture's and no parameter's", "[print]") {
  const Signature taken{{{"x1", Type::F32, 0}}, {{"x2", Type::F32}}};
  Expr e = op(Op::Add, read(0, Type::F32, {}), param(0, Type::F32));
  for (int n = 0; n < 20; ++n) e = op(Op::Add, e, e);
  CHECK(print(e, taken).starts_with("let x3 = "));
  CHECK(same(again(e, taken), e));
}

TEST_CASE("spans tell where each node first stands", "[print]") {
  const Expr difference = op(Op::Sub, kv(), q()), index = input(Input::H);
  const Expr slope = read(0, Type::F32, std::array{index});
  const Expr product = op(Op::Mul, slope, op(Op::F32, difference));
  const Expr e = op(Op::Add, s(), product);
  const Printed printed = print_spans(e, signature);
  const auto piece = [&](const Expr& node) {
    const auto [begin, end] = printed.spans.at(node->digest);
    return printed.text.substr(begin, end - begin);
  };
  CHECK(piece(e) == "s + slope[h] * f32(kv - q)");
  CHECK(piece(product) == "slope[h] * f32(kv - q)");
  CHECK(piece(slope) == "slope[h]");
  CHECK(piece(difference) == "kv - q");
  CHECK(printed.spans.at(index->digest).begin == 10);
}

TEST_CASE("spans cover every node, named or not", "[print]") {
  Expr e = s();
  for (int n = 0; n < 300; ++n) e = op(Op::Sub, s(), op(Op::Mul, e, e));
  const Printed printed = print_spans(e, signature);
  for (const Expr& node : in_order(e)) {
    REQUIRE(printed.spans.contains(node->digest));
    const auto [begin, end] = printed.spans.at(node->digest);
    CHECK(begin < end);
    CHECK(end <= printed.text.size());
  }
}

TEST_CASE("a print of an open expression names its free variables", "[print]") {
  CHECK(print(op(Op::Add, bound(2), q())) == "j + q");
  CHECK(print(op(Op::Add, fresh_bound(), q())) == "unbound + q");
}

TEST_CASE("literals alone are Ints in device code, not ints", "[print]") {
  const auto device = [](std::string_view text) { return print_for_device(parse(text, {}), {}, {}).value; };
  CHECK(device("f32(16777217)") == "f32(Int(16777217))");
  CHECK(device("f32(-2147483647)") == "f32(Int(-2147483647))");
  CHECK(device("f32(-2147483648)") == "f32(Int(-2147483648))");
  CHECK(device("f32(true)") == "f32(true)");
  CHECK(device("abs(1.5f)") == "abs(1.5f)");
  CHECK(device("2147483647 + 1") == "Int(2147483647) + 1");
  CHECK(device("1 / 0 < 2") == "Int(1) / 0 < 2");
  CHECK(device("min(3, 4)") == "min(Int(3), 4)");
  CHECK(device("clamp(16777217, 1, kv)") == "clamp(16777217, 1, kv)");
  CHECK(device("kv + 3") == "kv + 3");
  CHECK(device("-(3)") == "-Int(3)");
  CHECK(device("sum(i, 3, 7)") == "sum<3>([&](Int i) { return Int(7); })");
}

TEST_CASE("&& and || of few instructions are calls in device code, which evaluate both sides", "[print]") {
  const auto device = [](const Expr& e) { return print_for_device(e, {}, {}).value; };
  const auto text = [&](std::string_view of) { return device(parse(of, {})); };
  CHECK(text("kv <= q && q < 5") == "both(kv <= q, q < 5)");
  CHECK(text("(kv <= q || q < 5) && !(b == 1 || h == 2)") == "both(either(kv <= q, q < 5), !either(b == 1, h == 2))");
  CHECK(text("(kv < 1 && q < 1) == (b < 1)") == "both(kv < 1, q < 1) == b < 1");
  const Expr kv = input(Input::KV), reads = op(Op::Eq, read(0, Type::I32, std::array{kv}), integer(1));
  CHECK(device(op(Op::And, op(Op::Le, kv, integer(2)), reads)) == "kv <= 2 && capture0(kv) == 1");
  CHECK(text("kv <= q || random(1) < 0.5f") == "kv <= q || random(1, b, h, q, kv) < 0.5f");
  CHECK(text("kv <= q || kept(1, q)") == "kv <= q || kept(1, q, b, h, q, kv)");
}
