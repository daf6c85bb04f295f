// tests/compiler/language.h — expressions as text over a few fixed captures and parameters, and values for them
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/eval.h"
#include "ir/parse.h"
#include "ir/print.h"

namespace attune::tests {

/// Captures slope[i], table[i], bias[i, j] (Float), doc[i] (Int), keep[i] (Bool), gain[] (Float); parameters cap,
/// width.
inline const ir::Signature& names() {
  using ir::Type;
  static const ir::Signature signature{{{"slope", Type::F32, 1},
                                        {"table", Type::F32, 1},
                                        {"bias", Type::F32, 2},
                                        {"doc", Type::I32, 1},
                                        {"keep", Type::Bool, 1},
                                        {"gain", Type::F32, 0}},
                                       {{"cap", Type::F32}, {"width", Type::I32}}};
  return signature;
}

inline ir::Expr expr(std::string_view text) {
  return ir::parse(text, {.name = "test", .expected = {}, .signature = &names(), .lets = {}});
}

inline std::string text(const ir::Expr& e) { return ir::print(e, names()); }

/// The same value, bit for bit; all NaNs are equal.
inline bool identical(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

/// A place to evaluate expressions of `names` at: every captured element is a different number.
struct Setting {
  std::vector<double> params{2.5, 3};
  ir::ReadCapture read = [](std::uint32_t slot, std::span<const std::int32_t> index) -> double {
    double at = slot + 1;
    for (const std::int32_t i : index) at = 1.7 * at + i;
    if (names().captures[slot].type == ir::Type::F32) return static_cast<float>(std::sin(at));
    return names().captures[slot].type == ir::Type::I32 ? std::floor(4 * std::sin(at)) : std::sin(at) > 0;
  };
  ir::Env env;
  Setting() {
    env.s = 0.75, env.p = 0.25, env.b = 1, env.h = 3, env.q = 12, env.kv = 5, env.q_len = 24, env.kv_len = 28;
    env.params = params;
    env.read = &read;
  }
  Setting(const Setting&) = delete;
  double operator()(const ir::Expr& e, ir::Precision precision = ir::Precision::f64) const {
    return ir::eval(e, env, precision);
  }
};

}  // namespace attune::tests
