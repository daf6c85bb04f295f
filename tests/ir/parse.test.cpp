// tests/ir/parse.test.cpp — the meaning of texts, and the message for each mistake in one
#include "ir/parse.h"

#include <attune/error.h>

#include <cmath>
#include <limits>

#include "ir/print.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"
#include "tests/sanitizers.h"
#include "tests/small_stack.h"

using namespace attune;
using namespace attune::ir;

namespace {

const Signature signature{{{"slope", Type::F32, 1},
                           {"bias", Type::F32, 2},
                           {"doc", Type::I32, 1},
                           {"img", Type::I32, 1},
                           {"keep", Type::Bool, 1},
                           {"gain", Type::F32, 0}},
                          {{"cap", Type::F32}, {"width", Type::I32}}};

constexpr std::uint32_t coordinates = bit(Input::B) | bit(Input::H) | bit(Input::Q) | bit(Input::KV) |
                                      bit(Input::QLen) | bit(Input::KVLen);

Scope score() { return {"--score", coordinates | bit(Input::S), Type::F32, &signature, {}}; }
Scope mask() { return {"--mask", coordinates, Type::Bool, &signature, {}}; }
Scope prob() { return {"--prob", coordinates | bit(Input::P), Type::F32, &signature, {}}; }
Scope sink() { return {"--sink", bit(Input::B) | bit(Input::H), Type::F32, &signature, {}}; }
Scope any() { return {"expression", coordinates | bit(Input::S), std::nullopt, &signature, {}}; }

// A text parsed and printed: shows brackets, conversions and literals as the parser understood them.
std::string understood(std::string_view text) { return print(parse(text, any()), signature); }

void mistake(const std::string& name, std::string_view text, const Scope& scope) {
  INFO(text.substr(0, 200));
  try {
    const Expr e = parse(text, scope);
    FAIL_CHECK("no Error, but " << print(e, signature).substr(0, 200));
  } catch (const Error& e) {
    CHECK(name.substr(0, name.find('.')) == e.code);
    tests::golden_error(name, e.what());
  }
}

std::string repeated(std::string_view piece, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += piece;
  return out;
}

}  // namespace

TEST_CASE("operators bind as in C++", "[parse]") {
  CHECK(same(parse("q + kv * h", any()), parse("q + (kv * h)", any())));
  CHECK(same(parse("q - kv - h", any()), parse("(q - kv) - h", any())));
  CHECK(same(parse("q / kv % h * b", any()), parse("((q / kv) % h) * b", any())));
  CHECK(same(parse("q << kv + h", any()), parse("q << (kv + h)", any())));
  CHECK(same(parse("q < kv << h", any()), parse("q < (kv << h)", any())));
  CHECK(same(parse("q == kv == (q < h)", any()), parse("(q == kv) == (q < h)", any())));
  CHECK(same(parse("q < kv == h < b", any()), parse("(q < kv) == (h < b)", any())));
  CHECK(same(parse("q & kv ^ h | b", any()), parse("((q & kv) ^ h) | b", any())));
  CHECK(same(parse("q | kv ^ h & b", any()), parse("q | (kv ^ (h & b))", any())));
  CHECK(same(parse("(q & kv) == h", any()), parse("((q & kv) == h)", any())));
  CHECK(same(parse("keep[q] || keep[kv] && keep[h]", any()), parse("keep[q] || (keep[kv] && keep[h])", any())));
  CHECK(same(parse("-q * kv", any()), parse("(-q) * kv", any())));
  CHECK(same(parse("~q & kv", any()), parse("(~q) & kv", any())));
  CHECK(same(parse("!keep[q] == keep[kv]", any()), parse("(!keep[q]) == keep[kv]", any())));
  CHECK(!same(parse("q - (kv - h)", any()), parse("q - kv - h", any())));
}

TEST_CASE("a choice is written in two ways", "[parse]") {
  CHECK(understood("kv <= q ? s : -inf") == "where(kv <= q, s, -inf)");
  CHECK(understood("q < 1 ? 1 : q < 2 ? 2 : 3") == "where(q < 1, 1, where(q < 2, 2, 3))");
  CHECK(understood("q < 1 ? q < 2 ? 1 : 2 : 3") == "where(q < 1, where(q < 2, 1, 2), 3)");
  CHECK(understood("q < 1 || q > 2 ? s + 1.0f : s") == "where(q < 1 || q > 2, s + 1.0f, s)");
  CHECK(understood("(q < 1 ? 1 : 2) + 3") == "where(q < 1, 1, 2) + 3");
}

TEST_CASE("an Int widens among Floats, and a literal widens at once", "[parse]") {
  CHECK(understood("2 * s") == "2.0f * s");
  CHECK(understood("s - -3") == "s - -3.0f");
  CHECK(understood("q * s") == "f32(q) * s");
  CHECK(understood("exp(q)") == "exp(f32(q))");
  CHECK(understood("max(q, s)") == "max(f32(q), s)");
  CHECK(understood("clamp(s, 0, q)") == "clamp(s, 0.0f, f32(q))");
  CHECK(understood("kv < q ? s : 0") == "where(kv < q, s, 0.0f)");
  CHECK(understood("s < 3") == "s < 3.0f");
  CHECK(understood("s == q") == "s == f32(q)");
  CHECK(understood("f32(2) + s") == "f32(2) + s");
  CHECK(understood("custom(s, 1)") == "custom(s, 1.0f)");
  CHECK(print(parse("q", score())) == "f32(q)");
  CHECK(print(parse("7", score())) == "7.0f");
  CHECK(understood("let n = 2; n * s") == "2.0f * s");
}

TEST_CASE("numbers are read in each of their forms", "[parse]") {
  const auto value = [](std::string_view text) { return literal_value(*parse(text, any())); };
  CHECK(parse("2", any())->type == Type::I32);
  CHECK(parse("2.", any())->type == Type::F32);
  CHECK(parse("2e0", any())->type == Type::F32);
  CHECK(value("2.0f") == 2);
  CHECK(value("2.f") == 2);
  CHECK(value(".5") == 0.5);
  CHECK(value("1e-4") == static_cast<double>(1e-4f));
  CHECK(value("1E+2f") == 100);
  CHECK(value("00.5") == 0.5);
  CHECK(value("0xff") == 255);
  CHECK(value("0X7fffffff") == 2147483647);
  CHECK(value("-2147483648") == -2147483648.0);
  CHECK(value("- 3") == -3);
  CHECK(value("+3") == 3);
  CHECK(value("-inf") == -INFINITY);
  CHECK(std::isnan(value("-nan")));
  CHECK(value("1e-60") == 0);
  CHECK(value("1e-400") == 0);
  CHECK(value("1e-45") == static_cast<double>(1e-45f));
  CHECK(value("0." + repeated("0", 400) + "1") == 0);
  CHECK(value("1" + repeated("0", 400) + "e-400") == 1);
  CHECK(value("0e999999999999") == 0);
  CHECK(value("3.4028235e38") == static_cast<double>(std::numeric_limits<float>::max()));
  CHECK(value("16777217.0") == 16777216);
  CHECK(std::signbit(value("-0.0f")));
}

TEST_CASE("a sign before a number is part of it, and before a bracket it negates", "[parse]") {
  CHECK(parse("-3", any())->op == Op::Literal);
  CHECK(parse("-(3)", any())->op == Op::Neg);
  CHECK(parse("- -3", any())->op == Op::Neg);
  CHECK(parse("--3", any())->op == Op::Neg);
  CHECK(parse("-q", any())->op == Op::Neg);
  CHECK(understood("q - -3") == "q - -3");
  CHECK(understood("q--3") == "q - -3");
  CHECK(understood("q -3") == "q - 3");
}

TEST_CASE("a sum binds its variable in its body", "[parse]") {
  CHECK(understood("sum(n, 16, slope[n] * s)") == "sum(i, 16, slope[i] * s)");
  CHECK(understood("sum(n, 2, sum(m, 3, bias[n, m]))") == "sum(j, 2, sum(i, 3, bias[j, i]))");
  CHECK(understood("sum(n, 2, n) + sum(n, 3, n)") == "sum(i, 2, i) + sum(i, 3, i)");
  CHECK(understood("sum(n, 0, n)") == "sum(i, 0, i)");
  CHECK(understood("sum(n, 0x400, n)") == "sum(i, 1024, i)");
  CHECK(understood("let d = 4; sum(n, d, n * d)") == "sum(i, 4, i * 4)");
  CHECK(understood("sum(n, 4, let x = slope[n]; x * x)") == "sum(i, 4, slope[i] * slope[i])");
  CHECK(same(parse("sum(n, 4, n)", any()), parse("sum(m, 4, m)", any())));
}

TEST_CASE("thirty-one sums within each other that use each other's variables take no time", "[parse][deep]") {
  std::string text, uses = "0";
  for (int i = 0; i < 31; ++i) {
    text += "sum(v" + std::to_string(i) + ", 2, ";
    uses += " + v" + std::to_string(i);
  }
  const Expr e = parse(text + uses + repeated(")", 31), any());
  CHECK(e->free == 0);
  CHECK(same(parse(print(e), any()), e));
}

TEST_CASE("a let names what comes before it", "[parse]") {
  CHECK(understood("let x = s * s; x + x") == "s * s + s * s");
  CHECK(understood("let x = q; let y = x + 1; y * x") == "(q + 1) * q");
  CHECK(understood("let x = 3; s") == "s");
}

TEST_CASE("names of the scope stand for expressions, before the language's own", "[parse]") {
  Scope scope = any();
  scope.lets = {{"x", input(Input::S)}, {"p", boolean(true)}};
  CHECK(print(parse("p ? x : x + 1", scope)) == "where(true, s, s + 1.0f)");
}

TEST_CASE("white space does not matter", "[parse]") {
  CHECK(understood(" \t\r\n s\n +\n1 \n") == "s + 1.0f");
  CHECK(same(parse("s+slope[h]*f32(kv-q)", any()), parse("s + slope [ h ] * f32 ( kv - q )", any())));
}

TEST_CASE("every node knows where it was written", "[parse]") {
  const std::string text = "s + (slope[h] * 2) * -q";
  const Expr e = parse(text, any());
  const auto piece = [](const Expr& n) {
    return n->written.text->body.substr(n->written.begin, n->written.end - n->written.begin);
  };
  CHECK(e->written.text->name == "expression");
  CHECK(piece(e) == text);
  CHECK(piece(e->args[1]) == "(slope[h] * 2) * -q");
  CHECK(piece(e->args[1]->args[0]) == "slope[h] * 2");
  CHECK(piece(e->args[1]->args[0]->args[0]) == "slope[h]");
  CHECK(piece(e->args[1]->args[0]->args[1]) == "2");
  CHECK(e->args[1]->args[1]->op == Op::F32);
  CHECK(piece(e->args[1]->args[1]) == "-q");
  for (const Expr& n : in_order(parse("sum(n, 4, keep[n] ? cap : gain[]) + tanh(s)", any())))
    if (n->op != Op::Bound) CHECK(piece(n).size() > 0);
}

TEST_CASE("what nests as deep as allowed is read, on an ordinary stack", "[parse][deep]") {
  const std::size_t deep = max_nesting;
  const auto nest = [](std::string_view open, std::string_view inner, std::string_view close, std::size_t times) {
    return repeated(open, times) + std::string(inner) + repeated(close, times);
  };
  CHECK(parse(nest("(", "s", ")", deep), any())->op == Op::Input);
  CHECK(parse(nest("(s - ", "s", ")", deep), any())->depth == deep + 1);
  CHECK(parse(nest("-(", "s", ")", deep / 2), any())->depth == deep / 2 + 1);
  CHECK(parse(nest("slope[i32(", "s", ")]", deep / 2), any())->reads);
  CHECK(parse(nest("where(true, ", "s", ", 1)", deep), any())->depth == deep + 1);
  CHECK(parse(repeated("q < 1 ? 1 : ", deep) + "q", any())->op == Op::Where);
}

TEST_CASE("what nests deeper than a thread's stack has room for is refused, not a crash", "[parse][deep]") {
  if (tests::sanitized) return;  // sanitizers need more than such a stack for anything
  const std::size_t KiB = 1024;
  const auto read_on = [](std::size_t stack, std::size_t deep) {
    const std::string text = repeated("max(1, (", deep) + "s" + repeated("))", deep);
    Error met{"nothing", "", {}, "", ""};
    tests::on_stack_of(stack, [&] { met = tests::refusal([&] { parse(text, any()); }); });
    // Where the stack ends is the compiler's to decide.
    const Error anywhere(met.code, met.problem, {}, met.why, met.fix);
    if (met.code == "too-deep") tests::golden_error("too-deep.stack", anywhere.what());
    return met.code;
  };
  for (const std::size_t stack : {64 * KiB, 128 * KiB, 512 * KiB}) {
    CHECK(read_on(stack, 4) == "nothing");
    const std::string code = read_on(stack, max_nesting / 2);
    CHECK((code == "too-deep" || code == "nothing"));
  }
  CHECK(read_on(64 * KiB, max_nesting / 2) == "too-deep");
  CHECK(read_on(8192 * KiB, max_nesting / 2) == "nothing");
}

TEST_CASE("chains are as long as the text may be", "[parse][deep]") {
  const Expr e = parse("s" + repeated(" + s", 60'000), any());
  CHECK(e->depth == 60'001);
}

TEST_CASE("names are told from what is not one", "[parse]") {
  CHECK(is_name("a"));
  CHECK(is_name("_a9"));
  CHECK_FALSE(is_name(""));
  CHECK_FALSE(is_name("9a"));
  CHECK_FALSE(is_name("a-b"));
  CHECK_FALSE(is_name("\xc3\xa9"));
  for (const char* name : {"s", "kv", "q_len", "let", "inf", "nan", "true", "tanh", "sum", "f32", "where", "origin"})
    CHECK(is_reserved(name));
  for (const char* name : {"slope", "x1", "and", "i", "S"}) CHECK_FALSE(is_reserved(name));
}

TEST_CASE("the nearest name is the one a typo meant", "[parse]") {
  const std::vector<std::string> names{"slope", "bias", "document", "q", "kv", "a"};
  CHECK(nearest("slpoe", names) == "slope");
  CHECK(nearest("Slope", names) == "slope");
  CHECK(nearest("slop", names) == "slope");
  CHECK(nearest("docment", names) == "document");
  CHECK(nearest("bais", std::vector<std::string>{"bas", "bias"}) == "bias");
  CHECK(nearest("KV", names) == "kv");
  CHECK(nearest("kvv", names) == "kv");
  CHECK(nearest("x", names) == std::nullopt);
  CHECK(nearest("nothing", names) == std::nullopt);
  CHECK(nearest("", names) == std::nullopt);
  CHECK(nearest(std::string(100'000, 'a'), names) == std::nullopt);
}

TEST_CASE("mistakes in names", "[parse][errors]") {
  mistake("unknown-name.typo", "s + slpoe[h]", score());
  mistake("unknown-name.list", "s + zebra", score());
  mistake("unknown-name.word", "pi * s", score());
  mistake("unknown-name.idx", "kv_idx <= q", mask());
  mistake("unknown-name.not", "not kv <= q", mask());
  mistake("unknown-function.not", "not (kv <= q)", mask());
  mistake("unknown-name.if", "if kv <= q then s", score());
  mistake("unknown-name.case", "KV <= q", mask());
  mistake("unknown-name.own-definition", "let x = x + 1; x", any());
  mistake("unknown-name.outside-sum", "sum(i, 4, slope[i]) + f32(i)", score());
  mistake("unknown-name.let-outside-sum", "sum(i, 4, let x = slope[i]; x * x) + x", score());
  mistake("unknown-function.typo", "tahn(s)", score());
  mistake("unknown-function.word", "fabs(s)", score());
  mistake("unknown-function.list", "besselj(s)", score());
  mistake("unknown-function.variable", "s(q)", score());
  mistake("unknown-function.parameter", "cap (s + 1)", score());
  mistake("missing-arguments", "tanh + s", score());
  mistake("missing-arguments.named-mod", "alibi", score());
  mistake("missing-index", "s + slope", score());
  mistake("missing-index.called", "s + slope(h)", score());
  mistake("not-allowed-here.score-in-mask", "s > 0", mask());
  mistake("not-allowed-here.prob-in-score", "p", score());
  mistake("not-allowed-here.score-in-prob", "s * 2", prob());
  mistake("not-allowed-here.query-in-sink", "slope[h] * q", sink());
  mistake("not-allowed-here.nothing", "q", {"--count", 0, Type::I32, nullptr, {}});
  mistake("not-indexable.variable", "q[kv]", any());
  mistake("not-indexable.parameter", "cap[h]", any());
  mistake("not-indexable.let", "let x = q; x[0]", any());
  mistake("not-indexable.expression", "(s + 1)[0]", any());
}

TEST_CASE("a named mod stands for its line", "[parse]") {
  CHECK(understood("causal()") == "kv <= q");
  CHECK(understood("causal(width) && window(8)") == "kv <= q + width && (kv <= q && q - kv < 8)");
  CHECK(understood("alibi(slope)") == "s + slope[h] * f32(kv - q)");
  CHECK(understood("softcap(20)") == "20.0f * tanh(s / 20.0f)");
  CHECK(understood("softcap(cap + slope[h])") == "(cap + slope[h]) * tanh(s / (cap + slope[h]))");
  CHECK(understood("document(doc) || global_tokens(keep)") == "doc[q] == doc[kv] || (keep[q] || keep[kv])");
  CHECK(understood("prefix(doc)") == "kv < doc[b] || kv <= q");
  CHECK(understood("prefix(doc[h])") == "kv < doc[h] || kv <= q");
  CHECK(understood("s + 1.0f + relative_position()") == understood("s + 1.0f + (s + f32(q - kv))"));
  CHECK(print(parse("dropout(0.9, 7)", prob()), signature) ==
        print(parse("let n = max(round(0.9 * 65536.0), 1.0); kept(7, i32(n)) ? p / (n / 65536.0) : 0.0", prob()),
              signature));
  // The names are no words of the language.
  CHECK(understood("let window = 3; q - kv < window && sliding_window(window)") ==
        understood("q - kv < 3 && window(3)"));
  const Signature taken{{{"causal", Type::F32, 1}}, {}};
  CHECK(parse("s + causal[h]", {"--score", coordinates | bit(Input::S), Type::F32, &taken, {}}) != nullptr);
}

TEST_CASE("a | b between scores is a, then b", "[parse]") {
  CHECK(understood("alibi(slope) | softcap(30)") == understood("30.0f * tanh((s + slope[h] * f32(kv - q)) / 30.0f)"));
  CHECK(understood("s + 1.0f | 2.0f * s | s - s * s") ==
        understood("2.0f * (s + 1.0f) - 2.0f * (s + 1.0f) * (2.0f * (s + 1.0f))"));
  CHECK(understood("q | s") == "f32(q)");
  CHECK(understood("q | kv") == "q | kv");
  CHECK(print(parse("p * 2.0f | dropout(0.5, 1)", prob()), signature) ==
        print(parse("let n = max(round(0.5 * 65536.0), 1.0); kept(1, i32(n)) ? p * 2.0 / (n / 65536.0) : 0.0", prob()),
              signature));
  mistake("wrong-type.bit-or-of-a-float", "s | 3", score());
}

TEST_CASE("mistakes in named mods", "[parse][errors]") {
  mistake("wrong-arguments.softcap", "softcap()", score());
  mistake("wrong-arguments.alibi", "s + alibi(doc)", score());
  mistake("wrong-arguments.window", "window(2.5)", mask());
  mistake("wrong-arguments.dense", "dense(keep)", mask());
  mistake("bad-argument.keep", "dropout(2.0, 1)", prob());
  mistake("bad-argument.keep-nothing", "p * 3.0f | dropout(0, 1)", prob());
  mistake("bad-argument.keep-less", "dropout(-0.5, 1)", prob());
  mistake("bad-argument.keep-sum", "dropout(1 + 1, 1)", prob());
  mistake("not-allowed-here.named", "softcap(20)", mask());
  mistake("unknown-function.named", "casual()", mask());
  mistake("unclosed.named", "window(3", mask());
}

TEST_CASE("mistakes in types", "[parse][errors]") {
  mistake("wrong-type.mask-is-a-number", "doc[q]", mask());
  mistake("wrong-type.mask-is-a-score", "q * 2.0", mask());
  mistake("wrong-type.score-is-a-condition", "kv <= q", score());
  mistake("wrong-type.count-is-a-float", "2.5", {"--count", 0, Type::I32, nullptr, {}});
  mistake("wrong-type.and-of-ints", "doc[q] && doc[kv]", mask());
  mistake("wrong-type.or-of-a-sum", "doc[q] + 1 || kv <= q", mask());
  mistake("wrong-type.not-of-an-int", "!doc[kv]", mask());
  mistake("wrong-type.bit-and-of-conditions", "(kv <= q) & (doc[q] == doc[kv])", mask());
  mistake("wrong-type.bit-and-of-mixed", "kv & (q < 3)", mask());
  mistake("wrong-type.bit-and-of-a-float", "s & 3", score());
  mistake("wrong-type.bits-before-equality", "(q ^ kv) & 1 == 0", mask());
  mistake("wrong-type.equality-before-bits", "1 == q & 1", mask());
  mistake("wrong-type.bit-xor-of-conditions", "keep[q] ^ keep[kv]", mask());
  mistake("wrong-type.power", "s ^ 2", score());
  mistake("wrong-type.remainder", "s % 2", score());
  mistake("wrong-type.shift", "s << q + 1", score());
  mistake("wrong-type.floordiv", "floordiv(s, 2)", score());
  mistake("wrong-type.negated-condition", "-keep[q]", any());
  mistake("wrong-type.inverted-condition", "~keep[q]", any());
  mistake("wrong-type.plus-condition", "+keep[q]", any());
  mistake("wrong-type.condition-times-score", "keep[kv] * s", score());
  mistake("wrong-type.condition-in-tanh", "tanh(q < kv)", score());
  mistake("wrong-type.condition-compared-with-one", "keep[q] == 1", mask());
  mistake("wrong-type.condition-compared-with-zero", "1.0f < s == 0", any());
  mistake("wrong-type.condition-compared-with-an-int", "keep[q] == doc[q]", mask());
  mistake("wrong-type.ordered-conditions", "keep[q] < keep[kv]", mask());
  mistake("wrong-type.choice-by-an-int", "doc[q] ? s : 0.0f", score());
  mistake("wrong-type.choice-of-mixed", "where(kv <= q, s, keep[q])", score());
  mistake("wrong-type.index-is-a-float", "slope[s]", score());
  mistake("wrong-type.index-is-a-condition", "slope[q < kv]", score());
  mistake("wrong-type.random-seed", "random(0.5)", prob());
  mistake("wrong-type.kept-share", "kept(7, 0.9) ? p : 0.0", prob());
  mistake("wrong-count.kept", "kept(7) ? p : 0.0", prob());
  mistake("wrong-type.sum-of-conditions", "sum(i, 4, keep[i])", score());
  mistake("chained-comparison", "0 <= kv <= q", mask());
  mistake("chained-comparison.equal", "doc[q] == doc[kv] == img[q]", mask());
}

TEST_CASE("mistakes in counts and ranks", "[parse][errors]") {
  mistake("wrong-rank.too-many", "s + slope[h, q]", score());
  mistake("wrong-rank.too-few", "s + bias[q]", score());
  mistake("wrong-rank.none", "s + slope[]", score());
  mistake("wrong-rank.scalar", "s + gain[0]", score());
  mistake("wrong-rank.two-brackets", "s + slope[q][kv]", score());
  mistake("wrong-count.tanh", "tanh(s, 2)", score());
  mistake("wrong-count.nothing", "tanh()", score());
  mistake("wrong-count.max-of-three", "max(s, 0, 1)", score());
  mistake("wrong-count.where", "where(kv <= q, s)", score());
  mistake("wrong-count.sum", "sum(i, 16)", score());
  mistake("wrong-count.sum-of-four", "sum(i, 0, 16, slope[i])", score());
  mistake("bad-sum.variable", "sum(3, 16, s)", score());
  mistake("bad-sum.parameter", "sum(i, width, slope[i])", score());
  mistake("bad-sum.float", "sum(i, 16.0, slope[i])", score());
  mistake("bad-sum.negative", "sum(i, -1, slope[i])", score());
  mistake("bad-sum.too-many", "sum(i, 1025, slope[i])", score());
}

TEST_CASE("mistakes in numbers", "[parse][errors]") {
  mistake("bad-number.suffix", "2f * s", score());
  mistake("bad-number.unsigned", "q & 3u", any());
  mistake("bad-number.double", "2.0L * s", score());
  mistake("bad-number.product", "2s", score());
  mistake("bad-number.octal", "q / 012", any());
  mistake("bad-number.int-range", "q + 2147483648", any());
  mistake("bad-number.int-huge", "99999999999999999999", any());
  mistake("bad-number.hex-range", "q & 0xffffffff", any());
  mistake("bad-number.hex-empty", "0x", any());
  mistake("bad-number.hex-float", "0x1.8p3", any());
  mistake("bad-number.binary", "0b101", any());
  mistake("bad-number.float-range", "1e39", any());
  mistake("bad-number.float-huge", "1e400", any());
  mistake("bad-number.exponent", "1e + s", score());
  mistake("bad-number.points", "1.2.3", any());
  mistake("bad-number.separator", "q < 1_000", any());
  mistake("bad-number.quote", "q < 1'000", any());
}

TEST_CASE("mistakes in characters and operators", "[parse][errors]") {
  mistake("bad-character.symbol", "kv ≤ q", mask());
  mistake("bad-character.minus", "s − 1", score());
  mistake("bad-character.letter", "s + größe", score());
  mistake("bad-character.space", "s\xc2\xa0+ 1", score());
  mistake("bad-character.at", "s @ s", score());
  mistake("bad-character.member", "at.q >= at.kv", mask());
  mistake("bad-character.module", "torch.tanh(s)", score());
  mistake("bad-character.point", "s + .", score());
  mistake("bad-character.quote", "'s'", score());
  mistake("bad-character.brace", "{s}", score());
  mistake("bad-character.control", std::string_view("s \0 1", 5), score());
  mistake("bad-character.escape", "s \x1b[31m", score());
  mistake("bad-character.not-utf8", "s + \xff", score());
  mistake("unknown-operator.assign", "q = kv", mask());
  mistake("unknown-operator.power", "s ** 2", score());
  mistake("unknown-operator.floor", "q // 2", any());
  mistake("unknown-operator.comment", "s /* the score */", score());
  mistake("unknown-operator.and", "kv <= q and q < 3", mask());
  mistake("unknown-operator.or", "kv <= q or q < 3", mask());
  mistake("unknown-operator.mod", "q mod 2 == 0", mask());
  mistake("unknown-operator.if", "s if kv <= q else 0", score());
  mistake("unknown-operator.not-equal", "q <> kv", mask());
  mistake("unknown-operator.less-or-equal", "q =< kv", mask());
  mistake("unknown-operator.greater-or-equal", "q => kv", mask());
  mistake("unknown-operator.three", "q === kv", mask());
}

TEST_CASE("mistakes in structure", "[parse][errors]") {
  mistake("empty-text", "", score());
  mistake("empty-text.blank", "  \n ", score());
  mistake("unclosed.bracket", "(s + 1", score());
  mistake("unclosed.call", "s + tanh(s", score());
  mistake("unclosed.index", "s + slope[h", score());
  mistake("unclosed.mixed", "s + slope[h)", score());
  mistake("unclosed.choice", "kv <= q ? s", score());
  mistake("unopened", "s + 1)", score());
  mistake("missing-operand.end", "s +", score());
  mistake("missing-operand.begin", "* s", score());
  mistake("missing-operand.middle", "s + * 2", score());
  mistake("missing-operand.bracket", "s + ()", score());
  mistake("missing-operand.comma", "max(s, )", score());
  mistake("missing-operand.choice", "kv <= q ? : s", score());
  mistake("missing-operator.product", "2 s", score());
  mistake("missing-operator.brackets", "(s + 1)(s + 2)", score());
  mistake("missing-operator.call", "max(s 0)", score());
  mistake("trailing-text.semicolon", "s + 1;", score());
  mistake("trailing-text.comma", "s, 1", score());
  mistake("trailing-text.bracketed-comma", "(s, 1)", score());
  mistake("trailing-text.colon", "s : 1", score());
  mistake("bad-let.end", "let x = s * s", score());
  mistake("bad-let.semicolon", "let x = s * s x + 1", score());
  mistake("bad-let.name", "let 3 = s; s", score());
  mistake("bad-let.equals", "let x s; x", score());
  mistake("bad-let.within", "s + let x = 3; x", score());
  mistake("missing-operand.after-lets", "let x = s;", score());
  mistake("reserved-name.variable", "let q = 3; q", any());
  mistake("reserved-name.function", "let exp = 3; exp", any());
  mistake("reserved-name.sum", "sum(h, 4, slope[h])", score());
  mistake("name-taken.let", "let x = 3; let x = 4; x", any());
  mistake("name-taken.capture", "let slope = 3; slope", any());
  mistake("name-taken.parameter", "sum(cap, 4, slope[cap])", any());
  mistake("name-taken.sum", "sum(i, 4, sum(i, 4, bias[i, i]))", any());
  mistake("name-taken.own-value", "let x = sum(x, 4, slope[x]); x", any());
}

TEST_CASE("mistakes of size", "[parse][errors]") {
  const std::size_t deep = static_cast<std::size_t>(max_nesting) + 1;
  mistake("too-deep.brackets", repeated("(", deep) + "s" + repeated(")", deep), score());
  mistake("too-deep.signs", repeated("-", 200'000) + "s", score());
  mistake("too-deep.choices", repeated("q < 1 ? 1 : ", deep) + "s", score());
  std::string sums;
  for (int i = 0; i < 32; ++i) sums += "sum(v" + std::to_string(i) + ", 1, ";
  mistake("too-deep.sums", sums + "1" + repeated(")", 32), score());
  mistake("too-large.text", std::string(max_text, ' ') + "s", score());
  mistake("too-large.nodes", "s" + repeated("+s", max_nodes / 2), score());
}

TEST_CASE("a mistake in the second line of a text says so", "[parse][errors]") {
  mistake("wrong-type.second-line", "let distance = q - kv;\ndistance % 2 == 0 &&\n  doc[q]", mask());
  mistake("unknown-name.long-text", repeated("slope[h] + ", 30) + "slop[h]" + repeated(" + slope[h]", 30), score());
}
