// codegen/llvm/math.h — the language's f32 functions on vectors and scalars, without calls; its i32 divisions; f64
// arithmetic for both
#pragma once

#include <initializer_list>

#include "codegen/isa.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {

// ---- f64 arithmetic for the f32 functions, and polynomials in either ------------------------------------------------

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

// ---- divisions of i32: nothing traps, anything by 0 is 0 ------------------------------------------------------------

/// Truncates; INT_MIN by -1 wraps.
Val quotient(Val x, Val y);
Val remainder(Val x, Val y);
/// These round down.
Val floor_quotient(Val x, Val y);
Val floor_remainder(Val x, Val y);

// ---- functions of f32 -----------------------------------------------------------------------------------------------

// Defined for every f32, with the special values of C's functions. The comment on each is its error in ulp of the
// result: the largest of 33 million samples of the whole domain on each of portable, avx2 and avx512, rounded up.
// tests/codegen/ulp.h repeats these numbers, and tests enforce them.

Val exp2(Isa isa, Val x);        ///< 1.1
Val exp(Isa isa, Val x);         ///< 1.2
Val log2(Val x);                 ///< 0.51
Val log(Val x);                  ///< 0.51
Val pow(Isa isa, Val x, Val y);  ///< 0.51
Val sin(Val x);                  ///< 0.51
Val cos(Val x);                  ///< 0.51
Val tan(Val x);                  ///< 0.51
Val tanh(Val x);                 ///< 2.5
Val sigmoid(Isa isa, Val x);     ///< 2.4
Val erf(Isa isa, Val x);         ///< 1.7
Val sqrt(Val x);                 ///< 0.5
Val rsqrt(Val x);                ///< 1.5: 1 / sqrt(x), each rounded

/// The precision that exp2_softmax's result needs.
enum class Degree : std::uint8_t {
  f32,   ///< 1.9 ulp; without FMA 2.2
  bf16,  ///< relative error 1.1e-4, a thirtieth of what rounding to bf16 adds
};
/// exp2 of x <= 0, in few instructions. 0 for -inf, 1 for 0, NaN for NaN; without avx512, 0 below -126.5.
Val exp2_softmax(Isa isa, Val x, Degree degree);

// Exact.
Val absolute(Val x);  ///< Int: wraps
Val copy_sign(Val size, Val sign);
Val floor(Isa isa, Val x);
Val ceil(Isa isa, Val x);
Val trunc(Isa isa, Val x);
Val round(Isa isa, Val x);  ///< halves away from zero
/// f32 to i32: truncates and saturates; NaN gives 0.
Val to_int_saturating(Val x);

}  // namespace attune::codegen
