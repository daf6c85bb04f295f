// runtime/cpu/results.h — from a row's sums to what the caller gets: normalised outputs, lse and maxima
#pragma once

#include <limits>

#include "runtime/cpu/operands.h"

namespace attune::runtime::cpu {

/// A row of the softmax, done.
struct Finished {
  double factor;       ///< of the row's sum of values
  double lse, max;     ///< as the caller wants them
  double lse_of_core;  ///< without the row term: what attend_known subtracts

  /// Its sum of values is of no pair: of none, or of pairs that the row term removed.
  bool empty() const { return lse_of_core == -std::numeric_limits<double>::infinity(); }
};

/// m and l are of core; `term` is what was left out of it (see compiler::Fold); the sink is a logit of the whole score.
Finished finish(double m, double l, double sink, double term);

/// The sink's logit at a frame's batch entry and head; -inf where there is none.
double sink_at(const compiler::BoundMod& bound, const codegen::Frame& frame);

/// Rows [first, first + count) of o, each times its factor, and of lse and max where these are wanted.
class Results {
 public:
  Results(const Forward& call, const compiler::Problem& problem, Isa isa);

  struct Rows {
    std::int64_t h, first, count;
    const float* o;
    std::int64_t o_row;
    const float* factor;
  };
  void store(const Sequence& seq, const Rows& rows, std::span<const Finished> finished) const;

 private:
  const Forward& call_;
  const compiler::Problem& problem_;
  TensorRows o_;
};

}  // namespace attune::runtime::cpu
