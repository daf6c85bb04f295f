// codegen/llvm/wide.h — f64 arithmetic for the f32 functions, and polynomials in either
#pragma once

#include <initializer_list>

#include "codegen/llvm/vec.h"

namespace attune::codegen {

Val widen(Val x);    ///< f32 to f64
Val narrow(Val x);   ///< f64 to f32, rounded to nearest even
Val to_wide(Val x);  ///< i32 or i64 to f64
/// f64 to i32, truncating; the value must fit.
Val wide_to_int(Val x);
Val to_u64(Val x);        ///< i32 to i64, the upper half 0
Val bits_of_wide(Val x);  ///< as i64
Val wide_of_bits(Val x);

/// Rounds an f64 below 2^50 in magnitude to the nearest whole number by adding 1.5 * 2^52, and 1023 more, so that the
/// low bits of the sum are the exponent field of 2^value.
struct WideWhole {
  explicit WideWhole(Val x) : sum(x + magic), value(sum - magic) {}
  /// 2^value, for value in [-1022, 1023].
  Val power() const { return wide_of_bits(bits_of_wide(sum) << 52); }
  /// value modulo 2^32.
  Val low() const { return to_i32(bits_of_wide(sum)) - 1023; }
  static constexpr double magic = 6755399441055744.0 + 1023;
  Val sum, value;
};

/// c[0] + x (c[1] + x (c[2] + …)).
Val polynomial(Val x, std::initializer_list<double> c);

}  // namespace attune::codegen
