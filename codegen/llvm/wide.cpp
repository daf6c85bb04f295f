// codegen/llvm/wide.cpp — f64 arithmetic for the f32 functions, and polynomials in either
#include "codegen/llvm/wide.h"

namespace attune::codegen {
namespace {

llvm::Type* as_wide_as(const Val& x, llvm::Type* element) { return Code::vector(element, x.lanes()); }

}  // namespace

Val widen(Val x) { return {x.code(), x.code().ir().CreateFPExt(x.get(), as_wide_as(x, x.code().f64()))}; }
Val narrow(Val x) { return {x.code(), x.code().ir().CreateFPTrunc(x.get(), as_wide_as(x, x.code().f32()))}; }
Val to_wide(Val x) { return {x.code(), x.code().ir().CreateSIToFP(x.get(), as_wide_as(x, x.code().f64()))}; }
Val wide_to_int(Val x) { return {x.code(), x.code().ir().CreateFPToSI(x.get(), as_wide_as(x, x.code().i32()))}; }
Val to_u64(Val x) { return {x.code(), x.code().ir().CreateZExt(x.get(), as_wide_as(x, x.code().i64()))}; }
Val bits_of_wide(Val x) { return {x.code(), x.code().ir().CreateBitCast(x.get(), as_wide_as(x, x.code().i64()))}; }
Val wide_of_bits(Val x) { return {x.code(), x.code().ir().CreateBitCast(x.get(), as_wide_as(x, x.code().f64()))}; }

Val polynomial(Val x, std::initializer_list<double> c) {
  const double* at = c.end() - 1;
  Val sum = like(x, *at);
  while (at != c.begin()) sum = fma(sum, x, like(x, *--at));
  return sum;
}

}  // namespace attune::codegen
