// runtime/engines/cpu/results.h — from a row's sums to the caller's results: normalised outputs, lse and maxima
#pragma once

#include "runtime/engines/cpu/operands.h"
#include "runtime/engines/merge.h"

namespace attune::runtime::cpu {

/// A finished row of the softmax.
struct Finished {
  double factor;       ///< scales the row's sum of values
  double lse, max;     ///< the values that the caller gets
  double lse_of_core;  ///< without the row term: what attend_known subtracts

  /// No pair is in the sum of values: none was kept, or the row term removed them all.
  bool empty() const { return lse_of_core == -infinity; }
};

/// m and l belong to the core score; `term` is the row term that the core score leaves out (see compiler::Fold); the
/// sink is a logit of the whole score.
Finished finish(double m, double l, double sink, double term);

/// The sink's logit at a frame's batch entry and head; -inf if there is no sink, and in a forward with o_before, which
/// already includes the sink.
double sink_at(const Call& call, const codegen::Frame& frame);

/// Stores rows [first, first + count) of o, each times its factor, and of lse and max if requested; merges them with
/// o_before and lse_before.
class Results {
 public:
  Results(const Call& call, const KernelsFor& what);

  struct Rows {
    std::int64_t h, first, count;
    const float* o;
    std::int64_t o_row;
    const float* factor;
  };
  void store(const Sequence& seq, const Rows& rows, std::span<const Finished> finished) const;

 private:
  // Merges rows of memory.
  void merge(const Sequence& seq, const Rows& rows, std::span<const Finished> finished) const;
  void store_all(const Sequence& seq, const Rows& rows, std::span<const Finished> finished) const;

  const Forward& call_;
  const compiler::Problem& problem_;
  TensorRows o_;
};

}  // namespace attune::runtime::cpu
