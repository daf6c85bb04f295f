// runtime/oracle/verify_rows.h — ATTUNE_VERIFY: which rows, how far rounding may lead, and what is said of one that is
// further off
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/layout.h"
#include "runtime/oracle/verify.h"

namespace attune::runtime {

/// A row of a result.
struct RowAt {
  std::int64_t b, h, i;
};

/// `lengths`: of each batch entry or packed sequence. By head, so that its keys are read once.
std::vector<RowAt> sampled(std::span<const std::int64_t> lengths, std::int64_t heads, const Verified& which);

/// Half a unit in the last place, relative. Of f32 what products of three parts keep, and exp2.
double unit(DType type);
/// Of exp2, relative: alike for all pairs, so that it does not average out. Where products are of 16 bits, engines take
/// few of its terms, see codegen/llvm/math.h.
double unit_of_exp(DType type);

double rounded(double x, DType type);
/// With 10 bits of fraction, halves away from zero: as a GPU takes f32 into one product of TF32.
double tf32(double x);
double norm(std::span<const double> of);

/// s of a pair in f32, and how far another order of its sum may be from it.
struct Product {
  double s = 0, reach = 0;
};
Product product(std::span<const double> q, std::span<const double> k, double scale);

/// Standard deviations that are put down to luck: with one row instead of all of them there is some.
constexpr double lucky = 4;

/// What a row is judged by.
struct Judged {
  std::string name;
  const Tensor& tensor;
  MatrixLayout at;
  std::int64_t i;
  std::span<const double> wanted;  ///< the oracle's
  std::span<const double> plain;   ///< plain dense attention's, at the inputs' type with sums of f32
  std::span<const double> luck;    ///< by element, one standard deviation of independent roundings
  double more = 0;                 ///< of all elements, what is alike for all pairs
};

struct Wrong {
  std::string where;
  double got, wanted, distance, allowed;
};
/// Nothing: it is as near as it has to be, or nothing is known of it.
std::optional<Wrong> wrong(const Judged& row);

/// `place`: of the row, as in "b=0 h=1 q=2".
[[noreturn]] void refuse(const compiler::Problem& problem, const compiler::BoundMod& bound, const std::string& place,
                         const Verified& which, const Wrong& wrong);

}  // namespace attune::runtime
