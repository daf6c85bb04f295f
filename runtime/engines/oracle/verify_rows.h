// runtime/engines/oracle/verify_rows.h — ATTUNE_VERIFY: the rows to check, the error that rounding may cause, the error
// report
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engines/layout.h"
#include "runtime/engines/oracle/verify.h"

namespace attune::runtime {

/// True if the call was computed with a GPU's hardware functions, which are accurate to 11 bits.
bool is_fast(const Call& call, const Verified& which);

/// Some rows of dq, dk and dv.
void verify_gradients(const Call& call, const Verified& which);
/// Verifies all elements of the gradients of captured tensors, if the call has few enough pairs.
void verify_captured(const Call& call, const Verified& which);

/// A row of a result.
struct RowAt {
  std::int64_t b, h, i;
};

/// `lengths`: of each batch entry or packed sequence. Sorted by head, so that its keys are read once.
std::vector<RowAt> sampled(std::span<const std::int64_t> lengths, std::int64_t heads, const Verified& which);

/// Half a unit in the last place, relative. For f32, the precision of products of three parts, and of exp2.
double unit(DType type);
/// The relative error of exp2. The error is the same for all pairs, so it does not average out. For 16-bit products,
/// engines use few terms of exp2: see codegen/llvm/math.h.
double unit_of_exp(DType type);

double rounded(double x, DType type);
/// Rounds to 10 bits of fraction, halves away from zero, as a GPU does with f32 operands of a single TF32 product.
double tf32(double x);
double norm(std::span<const double> of);

/// s of a pair in f32, and the error that another order of its sum may cause.
struct Product {
  double s = 0, reach = 0;
};
Product product(std::span<const double> q, std::span<const double> k, double scale);

/// The number of standard deviations that count as luck, for a single row.
constexpr double lucky = 4;

/// The values that a row is checked against.
struct Judged {
  std::string name;
  const Tensor& tensor;
  MatrixLayout at;
  std::int64_t i;
  std::span<const double> wanted;  ///< the oracle's
  std::span<const double> plain;   ///< plain dense attention's, with the inputs' type and sums in f32
  std::span<const double> luck;    ///< per element, one standard deviation of independent roundings
  double more = 0;                 ///< for all elements: the error that all pairs share
};

struct Wrong {
  std::string where;
  double got, wanted, distance, allowed;
};
/// None if the row is close enough, or cannot be checked.
std::optional<Wrong> wrong(const Judged& row);

/// `place`: the row, as in "b=0 h=1 q=2".
[[noreturn]] void refuse(const Call& call, const std::string& place, const Verified& which, const Wrong& wrong);

}  // namespace attune::runtime
