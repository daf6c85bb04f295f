// codegen/llvm/int.cpp — the language's i32 divisions: nothing traps, anything by 0 is 0
#include "codegen/llvm/int.h"

#include <bit>
#include <optional>

#include "codegen/llvm/wide.h"

namespace attune::codegen {
namespace {

std::optional<std::int32_t> constant(const Val& x) {
  const auto* value = llvm::dyn_cast<llvm::ConstantInt>(x.get());
  if (!value) return std::nullopt;
  return static_cast<std::int32_t>(value->getSExtValue());
}

/// k for 2^k.
std::optional<int> power_of_two(const Val& x) {
  const auto value = constant(x);
  if (!value || *value <= 0 || !std::has_single_bit(static_cast<std::uint32_t>(*value))) return std::nullopt;
  return std::countr_zero(static_cast<std::uint32_t>(*value));
}

Val rounds_down(Val remainder, Val y) { return (remainder != 0) & ((remainder ^ y) < 0); }

}  // namespace

Val quotient(Val x, Val y) {
  if (const auto by = constant(y)) {
    if (*by == 0) return like(x, 0.0);
    return *by == -1 ? -x : x / y;
  }
  // No machine divides vectors of Ints, and scalar division would trap, so divide in f64: an i32 quotient that is not
  // whole is further from a whole number than the rounding error of f64.
  const Val exact = wide_to_int(to_wide(x) / to_wide(y));
  return select(y == 0, like(exact, 0.0), select(y == -1, -x, exact));
}

Val remainder(Val x, Val y) {
  const Val rest = x - quotient(x, y) * y;
  if (const auto by = constant(y)) return *by == 0 ? like(x, 0.0) : rest;
  return select(y == 0, like(rest, 0.0), rest);
}

Val floor_quotient(Val x, Val y) {
  if (const auto k = power_of_two(y)) return x >> *k;
  const Val q = quotient(x, y);
  const Val rest = select(y == 0, like(q, 0.0), x - q * y);
  return q - zero_one(rounds_down(rest, y));
}

Val floor_remainder(Val x, Val y) {
  if (power_of_two(y)) return x & (y - 1);
  const Val rest = remainder(x, y);
  return select(rounds_down(rest, y), rest + y, rest);
}

}  // namespace attune::codegen
