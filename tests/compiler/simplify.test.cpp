// tests/compiler/simplify.test.cpp — every rule against eval, what it must leave alone, and simplified expressions
#include "compiler/simplify.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "compiler/lower.h"
#include "tests/catch.h"
#include "tests/compiler/language.h"
#include "tests/fuzz/random_expr.h"
#include "tests/sanitizers.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;
using ir::Expr, ir::Op, ir::Precision, ir::Type;

namespace {

/// The letters of the rules in rules.cpp.
constexpr std::string_view int_letters = "ijdklac", float_letters = "xywzuv", bool_letters = "mno",
                           literal_letters = "acuv";

Type type_of(char letter) {
  if (int_letters.find(letter) != std::string_view::npos) return Type::I32;
  return float_letters.find(letter) != std::string_view::npos ? Type::F32 : Type::Bool;
}
/// The letters that match literals and anything else.
constexpr std::string_view open_letters = "ijdxywmno";
bool is_literal_letter(char letter) { return literal_letters.find(letter) != std::string_view::npos; }

std::string all_letters() { return std::string(int_letters) + std::string(float_letters) + std::string(bool_letters); }

/// A side of a rule with an expression for each letter.
Expr filled(std::string_view side, const std::map<char, Expr>& letters) {
  ir::Scope scope{.name = "rule", .expected = {}, .signature = nullptr, .lets = {}};
  for (const auto& [letter, e] : letters) scope.lets.emplace(std::string(1, letter), e);
  return ir::parse(side, scope);
}

/// Letters as slots: parameters, or literals where a rule requires them.
struct Instance {
  std::map<char, Expr> letters;
  std::vector<double> values;  ///< by slot
  ir::Env env;
  Instance(ir::Random& random, Precision precision) {
    for (const char letter : all_letters()) {
      const Type type = type_of(letter);
      double value = ir::random_value(random, type, true);
      // Doubles that are not floats: the oracle's values are seldom rounded.
      if (type == Type::F32 && precision == Precision::f64 && !is_literal_letter(letter) && random.chance(0.3))
        value *= 1 + 0x1p-40;
      const auto slot = static_cast<std::uint32_t>(values.size());
      letters.emplace(letter, is_literal_letter(letter) ? ir::literal(type, value) : ir::param(slot, type));
      values.push_back(value);
    }
    env.params = values;
  }
  // Values that often satisfy the rules' conditions: close together, not negative, in order.
  void calm(ir::Random& random) {
    std::size_t slot = 0;
    for (const char letter : all_letters()) {
      if (type_of(letter) == Type::I32) {
        values[slot] = static_cast<double>(random.below(random.chance(0.5) ? 6 : 60'000)) - random.below(3);
        if (is_literal_letter(letter)) letters.at(letter) = ir::literal(Type::I32, values[slot]);
      }
      ++slot;
    }
  }
};

std::string name_of(const Rule& rule) { return std::string(rule.from) + " -> " + std::string(rule.to); }

/// A longer right side counts only if its literals fold.
bool applies(const Expr& from, const Expr& to) { return simplify(to)->size <= from->size; }

}  // namespace

TEST_CASE("every rule keeps every bit, in both precisions, on 2000 bindings its condition allows",
          "[simplify][rules]") {
  const int wanted = tests::sanitized ? 100 : 2000;  // of values, which a sanitizer does not look at
  for (const Rule& rule : rules()) {
    INFO(name_of(rule) << (rule.when.empty() ? "" : " when ") << rule.when);
    // Every letter is a parameter, so that each side is parsed once; only a longer right side needs its literals.
    std::map<char, Expr> slots;
    for (std::uint32_t slot = 0; const char letter : all_letters())
      slots.emplace(letter, ir::param(slot++, type_of(letter)));
    const Expr from = filled(rule.from, slots), to = filled(rule.to, slots);
    const ir::Program program(std::array{from, to, filled(rule.when.empty() ? "true" : rule.when, slots)});
    ir::Program::Memory memory;
    for (const Precision precision : {Precision::f64, Precision::f32}) {
      ir::Random random(7);
      int bindings = 0;
      for (int tries = 0; tries < 400'000 && bindings < wanted; ++tries) {
        Instance instance(random, precision);
        if (tries % 2) instance.calm(random);
        program.run(instance.env, memory, precision);
        if (program.result(2, memory) == 0) continue;
        if (to->size > from->size && !applies(filled(rule.from, instance.letters), filled(rule.to, instance.letters)))
          continue;
        ++bindings;
        const double before = program.result(0, memory), after = program.result(1, memory);
        if (!identical(before, after))
          FAIL(ir::print(filled(rule.from, instance.letters)) << " is " << before << ", not " << after);
      }
      CHECK(bindings == wanted);
    }
  }
}

namespace {

/// True if this rule was applied to `e`.
bool fires(const Rule& rule, const Expr& e, const ir::Bounds& bounds) {
  std::vector<Rewrite> log;
  simplify(e, bounds, &log);
  return std::any_of(log.begin(), log.end(), [&](const Rewrite& r) { return r.rule == name_of(rule); });
}

/// Letters as parameters within random bounds, or as reads inside a sum, where nothing is known about them.
bool fires_somewhere(const Rule& rule) {
  ir::Random random(11);
  for (int tries = 0; tries < 3000; ++tries) {
    Instance instance(random, Precision::f32);
    instance.calm(random);
    ir::Bounds bounds;
    const bool in_sum = tries % 2;
    const Expr variable = ir::fresh_bound();
    std::uint32_t slot = 0;
    for (const char letter : all_letters()) {
      const double low = instance.values[slot];
      const bool whole = type_of(letter) == Type::I32;
      const bool known = std::isfinite(low) && tries % 3;
      bounds.params.push_back(known ? ir::Interval{low, low + random.below(4), !whole}
                                    : ir::Interval::all(type_of(letter)));
      if (open_letters.find(letter) != std::string_view::npos && random.chance(0.2))
        instance.letters.at(letter) = ir::literal(type_of(letter), low);
      else if (in_sum && !is_literal_letter(letter))
        instance.letters.at(letter) = ir::read(slot, type_of(letter), std::array{variable});
      ++slot;
    }
    bounds.captures = bounds.params;
    // Literals that rules are about: 1 / v is exact for a power of two.
    instance.letters.at('v') = ir::real(random.chance(0.5) ? 4.0f : -0.5f);
    const Expr from = filled(rule.from, instance.letters);
    Expr e = in_sum ? ir::sum(variable, 3, from->type == Type::Bool ? ir::op(Op::I32, from) : from) : from;
    if (fires(rule, e, bounds)) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("every rule is used somewhere", "[simplify][rules]") {
  std::string idle;
  for (const Rule& rule : rules())
    if (!fires_somewhere(rule)) idle += name_of(rule) + "\n";
  CHECK(idle == "");
}

TEST_CASE("no rule is there twice", "[simplify][rules]") {
  std::set<std::string> seen;
  for (const Rule& rule : rules()) {
    INFO(name_of(rule));
    CHECK(seen.insert(std::string(rule.from) + " when " + std::string(rule.when)).second);
  }
}

TEST_CASE("a rule between Floats keeps the derivative by each of them, ties included", "[simplify][rules]") {
  // Letters as captures without dimensions: derive gives one scatter for each read of one.
  const std::string letters = all_letters();
  const auto gradient = [&](const Expr& e, const ir::Env& env) {
    std::vector<double> by(letters.size());
    for (const Scatter& s : derive(e, std::nullopt).captures) by[s.capture] += ir::eval(s.value, env);
    return by;
  };
  int rules_seen = 0;
  for (const Rule& rule : rules()) {
    ir::Random random(13);
    bool seen = false;
    for (int tries = 0; tries < 300; ++tries) {
      std::map<char, Expr> of;
      std::vector<double> values;
      for (const char letter : letters) {
        constexpr std::array ties{-1.0, 0.0, 1.0, 2.0, 0.5};
        const double value = type_of(letter) == Type::Bool  ? random.below(2)
                             : type_of(letter) == Type::I32 ? random.below(4)
                                                            : random.pick(std::span<const double>(ties));
        of.emplace(letter, is_literal_letter(letter)
                               ? ir::literal(type_of(letter), value)
                               : ir::read(static_cast<std::uint32_t>(values.size()), type_of(letter), {}));
        values.push_back(value);
      }
      const ir::ReadCapture read = [&](std::uint32_t slot, std::span<const std::int32_t>) { return values[slot]; };
      ir::Env env;
      env.read = &read;
      const Expr from = filled(rule.from, of), to = filled(rule.to, of);
      if (from->type != Type::F32) break;
      if (!rule.when.empty() && ir::eval(filled(rule.when, of), env) == 0) continue;
      if (to->size > from->size && !applies(from, to)) continue;
      seen = true;
      const auto before = gradient(from, env), after = gradient(to, env);
      for (std::size_t i = 0; i < letters.size(); ++i)
        if (before[i] != after[i] && !(std::isnan(before[i]) && std::isnan(after[i])))
          FAIL(name_of(rule) << ": by " << letters[i] << " " << before[i] << " became " << after[i] << " in "
                             << ir::print(from));
    }
    rules_seen += seen;
  }
  CHECK(rules_seen > 15);
}

TEST_CASE("what people write becomes what they meant", "[simplify]") {
  const ir::Bounds bounds = coordinate_bounds();
  const auto simple = [&](std::string_view from) { return text(simplify(expr(from), bounds)); };
  CHECK(simple("s + 0.0f * 0.0f") == "s + 0.0f");  // s may be -0
  CHECK(simple("s - 0.0f") == "s");
  CHECK(simple("1.0f * s") == "s");
  CHECK(simple("s / 4.0f") == "s * 0.25f");
  CHECK(simple("s / 3.0f") == "s / 3.0f");
  CHECK(simple("q - kv >= 0") == "kv <= q");
  CHECK(simple("0 <= q - kv") == "kv <= q");
  CHECK(simple("!(kv > q)") == "kv <= q");
  CHECK(simple("kv < q || kv == q") == "kv <= q");
  CHECK(simple("kv <= q && true") == "kv <= q");
  CHECK(simple("q >= 0") == "true");
  CHECK(simple("kv < kv_len") == "true");
  CHECK(simple("abs(q)") == "q");
  CHECK(simple("where(kv <= q, s, where(kv <= q, 1.0f, -inf))") == "where(kv <= q, s, -inf)");
  CHECK(simple("where(!keep[q], -inf, s)") == "where(keep[q], s, -inf)");
  CHECK(simple("floordiv(kv, 128) == floordiv(q, 128)") == "kv / 128 == q / 128");
  CHECK(simple("(q + 3) - (kv + 3)") == "q - kv");
  CHECK(simple("i32(f32(q))") == "i32(f32(q))");  // q may be beyond 2^24
  CHECK(simple("i32(f32(q % 1024))") == "q % 1024");
  CHECK(simple("f32(s)") == "s");
  CHECK(simple("sum(i, 0, slope[i])") == "0.0f");
  CHECK(simple("sum(i, 1, doc[i + kv])") == "doc[kv]");
}

TEST_CASE("a comparison that every number passes is with inf, which NaN does not pass", "[simplify]") {
  const auto simple = [](std::string_view from) { return text(simplify(expr(from))); };
  CHECK(simple("abs(s) >= -0.4f") == "abs(s) <= inf");
  CHECK(simple("-0.4f < abs(s)") == "abs(s) <= inf");
  CHECK(simple("exp(s) >= 0.0f") == "exp(s) <= inf");
  CHECK(simple("tanh(s) < 5.0f") == "tanh(s) <= inf");
  CHECK(simple("tanh(s) * 3.0f + 4.0f > 0.5f") == "tanh(s) * 3.0f + 4.0f <= inf");
  CHECK(simple("s * s >= 0.0f") == "s * s <= inf");
  CHECK(simple("s >= -inf") == "s <= inf");
  CHECK(simple("s <= inf") == "s <= inf");
  CHECK(simple("exp(s) > 0.0f") == "exp(s) > 0.0f");  // 0 does not pass
  CHECK(simple("abs(s) >= nan") == "false");
  CHECK(simple("abs(slope[0]) != -1.0f") == "true");  // of NaN too
}

TEST_CASE("of two zeros that are literals, max is 0 and min is -0, in both orders", "[simplify]") {
  CHECK(text(simplify(expr("max(-0.0f, 0.0f)"))) == "0.0f");
  CHECK(text(simplify(expr("max(0.0f, -0.0f)"))) == "0.0f");
  CHECK(text(simplify(expr("min(-0.0f, 0.0f)"))) == "-0.0f");
  CHECK(text(simplify(expr("min(0.0f, -0.0f)"))) == "-0.0f");
}

TEST_CASE("what is not the same for every value stays as it is written", "[simplify]") {
  const auto stays = [](std::string_view from) { return text(simplify(expr(from))) == from; };
  CHECK(stays("s + 0.0f"));
  CHECK(stays("s - s"));
  CHECK(stays("s * 0.0f"));
  CHECK(stays("s == s"));
  CHECK(stays("!(s < cap)"));
  CHECK(stays("min(s, cap)"));
  CHECK(stays("s * 0.1f * 0.2f"));
  CHECK(stays("width < doc[q]"));
  CHECK(stays("doc[q] - doc[kv] < 0"));  // may wrap
  CHECK(stays("(doc[q] + 1) % 8 - doc[kv]"));
  CHECK(stays("sum(i, 1, slope[i])"));  // 0 + -0 is not -0
  CHECK(stays("0.1f + 0.2f"));          // doubles and floats disagree
  // The reciprocal of 2^127 is denormal.
  CHECK(text(simplify(expr("s / 1.7014118346046923e38f"))).find('/') != std::string::npos);
  CHECK(text(simplify(expr("s / -1.7014118346046923e38f"))).find('/') != std::string::npos);
  CHECK(text(simplify(expr("s / 8.507059173023462e37f"))).find('/') == std::string::npos);
}

TEST_CASE("a division by a literal stays one however often its argument is shared", "[simplify]") {
  Expr e = ir::input(ir::Input::S);
  for (int i = 0; i < 40; ++i) e = ir::op(Op::Mul, e, e);  // 2^40 nodes as a tree
  e = ir::op(Op::Div, e, ir::real(3));
  CHECK(ir::same(simplify(e), e));
}

TEST_CASE("a rewrite is logged with the rule, what it was and what it became", "[simplify]") {
  std::vector<Rewrite> log;
  simplify(expr("q - kv >= 0"), coordinate_bounds(), &log);
  REQUIRE(log.size() == 1);
  CHECK(log[0].rule == "i - j >= 0 -> j <= i");
  CHECK(text(log[0].from) == "q - kv >= 0");
  CHECK(text(log[0].to) == "kv <= q");
}

namespace {

Expr chain(int length) {
  Expr e = ir::input(ir::Input::S);
  for (int i = 0; i < length; ++i)
    e = i % 2 ? ir::op(Op::Add, e, ir::real(0.5f + static_cast<float>(i)))
              : ir::op(Op::Tanh, ir::op(Op::Neg, ir::op(Op::Neg, e)));
  return e;
}

}  // namespace

TEST_CASE("a chain of 100 000 nodes is simplified without a deep stack", "[simplify]") {
  // Quadratic time would make this hang; bench_lower measures its time.
  CHECK(simplify(chain(40'000))->depth == 40'001);
}

TEST_CASE("sums that hold each other twice are simplified once each", "[simplify]") {
  // 2^28 bodies if each were opened on its own.
  const Expr outer = ir::fresh_bound();
  Expr e = ir::read(0, Type::F32, std::array{outer});
  for (int i = 0; i < 28; ++i) {
    const Expr a = ir::fresh_bound(), b = ir::fresh_bound();
    e = ir::op(Op::Add, ir::sum(a, 2, ir::op(Op::Mul, ir::op(Op::Mul, e, ir::real(1)), ir::op(Op::F32, a))),
               ir::sum(b, 3, ir::op(Op::Sub, e, ir::op(Op::F32, b))));
  }
  e = ir::sum(outer, 2, e);
  const Expr simple = simplify(e);
  CHECK_FALSE(ir::verify(simple, names()));
  CHECK(ir::count(simple) < ir::count(e));
}
