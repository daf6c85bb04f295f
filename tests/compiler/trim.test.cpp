// tests/compiler/trim.test.cpp — a trimmed Int keeps its value within the limits, and redundant clamps go
#include "compiler/simplify.h"

#include <algorithm>
#include <array>

#include "ir/eval.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "tests/catch.h"

using namespace attune;

namespace {

constexpr double most = 0x1p30;

/// q and kv are positions, W is any Int.
ir::Bounds bounds() {
  ir::Bounds made;
  for (const ir::Input which : {ir::Input::Q, ir::Input::KV}) made[which] = {0, most - 1, false};
  return made;
}

const ir::Signature& names() {
  static const ir::Signature made = [] {
    ir::Signature s;
    s.params.push_back({"W", ir::Type::I32});
    return s;
  }();
  return made;
}

ir::Expr expr(const std::string& text) { return ir::parse(text, {.signature = &names()}); }

std::string trimmed(const std::string& text, double low = 0, double high = most) {
  ir::Ranger range(bounds());
  return ir::print(compiler::trim(expr(text), low, high, range), names());
}

std::string strict(const std::string& text) {
  ir::Ranger range(bounds());
  return ir::print(compiler::strict(expr(text), range), names());
}

double value(const ir::Expr& e, std::int32_t q, std::int32_t kv, double w) {
  ir::Env env;
  env.q = q;
  env.kv = kv;
  env.params = {&w, 1};
  const ir::Program program(e);
  ir::Program::Memory memory;
  program.run(env, memory);
  return program.result(0, memory);
}

constexpr std::array positions{0, 1, 2, 3, 22, 23, 24, 25, 1000, (1 << 30) - 26, (1 << 30) - 2, (1 << 30) - 1};
constexpr std::array params{-0x1p31, -0x1p30 - 1, -5.0,       -1.0,   0.0,        1.0,
                            4.0,     5.0,         0x1p30 - 1, 0x1p30, 0x1p30 + 1, 0x1p31 - 1};

}  // namespace

TEST_CASE("a clamp within wider limits than those around it goes", "[trim]") {
  CHECK(trimmed("clamp(q - 23, -1, 1073741824)") == "q - 23");
  CHECK(trimmed("clamp(q - 23, -1, 1073741824) + 1") == "q - 22");
  CHECK(trimmed("max(0, clamp(q - 23, -1, 1073741824))") == "max(0, q - 23)");
  CHECK(trimmed("min(kv, clamp(W, -1, 1073741824))") == "min(kv, W)");
  CHECK(trimmed("clamp(W, -1, 1073741825) * 2") == "clamp(W, -1, 1073741825) * 2");
}

TEST_CASE("a clamp that matters stays", "[trim]") {
  CHECK(trimmed("clamp(q - 23, 5, 1073741824)") == "clamp(q - 23, 5, 1073741824)");
  CHECK(trimmed("clamp(q, 0, 99) + 1") == "clamp(q, 0, 99) + 1");
  // W + 1 may wrap where the clamped value cannot.
  CHECK(trimmed("clamp(W, -5, 1073741825) + 1") == "clamp(W, -5, 1073741825) + 1");
}

TEST_CASE("sums with literals are gathered, and the side of a max that never wins goes", "[trim]") {
  CHECK(trimmed("q - 1 + 1") == "q");
  CHECK(trimmed("q + -1") == "q - 1");
  CHECK(trimmed("-11 + q") == "q - 11");
  CHECK(trimmed("max(0, q + 1)") == "q + 1");
  CHECK(trimmed("min(q, 2147483647)") == "q");
  CHECK(trimmed("W - 1 + 1") == "W - 1 + 1");
}

TEST_CASE("a comparison with one less is a strict one, unless that wraps", "[trim]") {
  CHECK(strict("q <= kv - 1") == "q < kv");
  CHECK(strict("q - 1 >= kv") == "q > kv");
  CHECK(strict("q <= W - 1") == "q <= W - 1");
  CHECK(strict("q <= clamp(W, -1, 1073741824) - 1") == "q < W");
  CHECK(strict("q < clamp(W, 0, 1000)") == "q < clamp(W, 0, 1000)");
}

TEST_CASE("what is trimmed has the same value within the limits", "[trim]") {
  for (const char* text :
       {"clamp(q - 23, -1, 1073741824) + 1", "max(0, clamp(W, -1, 1073741824))",
        "min(kv, clamp(W, -7, 1073741825) + 5)", "clamp(clamp(W, -1, 1073741824) - 3, 0, 1073741824)",
        "where(q < 24, clamp(W, -9, 1073741826), q - 1 + 1)", "clamp(q / 8 - 1, -1, 134217728) * 8 + 7",
        "clamp(W, -1073741823, 1073741824) - 1 + 1", "max(clamp(W, 2, 5), q - 2)", "W + 1", "q - 1073741823 + 5"}) {
    ir::Ranger range(bounds());
    const ir::Expr before = expr(text);
    for (const auto& [low, high] : {std::pair{0.0, most}, {-1.0, most - 1}, {3.0, 1000.0}}) {
      const ir::Expr after = compiler::trim(before, low, high, range);
      INFO(text << " within " << low << " .. " << high << " became " << ir::print(after, names()));
      for (const int q : positions)
        for (const int kv : positions)
          for (const double w : params)
            if (std::clamp(value(before, q, kv, w), low, high) != std::clamp(value(after, q, kv, w), low, high))
              FAIL("q " << q << ", kv " << kv << ", W " << w);
    }
  }
}

TEST_CASE("what is made strict is true for the same values", "[trim]") {
  for (const char* text :
       {"q <= kv - 1", "q - 1 >= kv", "q <= clamp(W, -1, 1073741824) - 1", "clamp(W, -1, 1073741824) <= q",
        "q > clamp(W, -1, 1073741823)", "q >= clamp(W, 0, 1073741824)", "W <= W - 1",
        "q - 23 < clamp(W, -24, 1073741800) && !(kv - 1 >= clamp(W, -2, 1073741823))"}) {
    ir::Ranger range(bounds());
    const ir::Expr before = expr(text), after = compiler::strict(before, range);
    INFO(text << " became " << ir::print(after, names()));
    for (const int q : positions)
      for (const int kv : positions)
        for (const double w : params)
          if (value(before, q, kv, w) != value(after, q, kv, w)) FAIL("q " << q << ", kv " << kv << ", W " << w);
  }
}
