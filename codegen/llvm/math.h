// codegen/llvm/math.h — the language's f32 functions on vectors and scalars, without calls
#pragma once

#include "codegen/isa.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {

// Defined for every f32, with the special values of C's functions. Errors are the largest measured over dense samples
// of the whole domain on every instruction set, in ulp of the result (tests/codegen/math.test.cpp holds them to it).

Val exp2(Isa isa, Val x);
Val exp(Isa isa, Val x);
Val log2(Val x);
Val log(Val x);
Val pow(Val x, Val y);
Val sin(Val x);
Val cos(Val x);
Val tan(Val x);
Val tanh(Val x);
Val sigmoid(Isa isa, Val x);
Val erf(Isa isa, Val x);
Val sqrt(Val x);
Val rsqrt(Val x);  ///< 1 / sqrt(x), each rounded

/// What the result of exp2_softmax is good for.
enum class Degree : std::uint8_t {
  f32,   ///< 2 ulp
  bf16,  ///< relative error 1.1e-4: a sixteenth of bf16's own rounding
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
