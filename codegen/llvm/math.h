// codegen/llvm/math.h — the language's f32 functions on vectors and scalars, without calls
#pragma once

#include "codegen/isa.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {

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
