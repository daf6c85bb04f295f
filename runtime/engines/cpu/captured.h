// runtime/engines/cpu/captured.h — sums of captured tensors' gradients, with copies for concurrent tasks
#pragma once

#include "runtime/engines/cpu/backward_plan.h"
#include "runtime/engines/cpu/kernels.h"
#include "runtime/engines/cpu/operands.h"
#include "runtime/engines/oracle/oracle.h"

namespace attune::runtime::cpu {

/// The captures whose gradients a call requests. A tensor without elements has no gradient.
codegen::Wanted wanted(const Call& call);

/// Tasks of one chain run one after another and add to the same copies. Tasks of different chains may run concurrently;
/// they add to different copies or to different elements. The number of copies depends only on shapes, and copies are
/// added in a fixed order, so the sums are the same for any number of threads.
class CapturedSums {
 public:
  CapturedSums(const Call& call, const KernelsFor& what, const codegen::BackwardParts& parts, const BackwardPlan& plan);

  void lay_out(Workspace& memory);
  /// The tasks of each chain, by their numbers in the plan.
  const std::vector<std::vector<std::size_t>>& chains() const { return chains_; }
  /// The copies that the tasks of a chain add to, by slot.
  std::vector<float*> gradients(std::size_t chain) const;

  void clear(const Executor& executor);
  /// Stores the sums, with the sinks' gradients added.
  void store(const std::vector<CapturedSum>& sinks, const Executor& executor) const;

 private:
  using Axes = BackwardPlan::Axes;
  struct Gradient {
    const Backward::Captured* asked;
    std::int64_t size;                                ///< elements
    std::array<bool, BackwardPlan::axes> separate{};  ///< true: tasks that differ here add to different elements
    std::int64_t copies = 1;
    float* sums = nullptr;
    TensorRows rows;
  };

  std::array<bool, BackwardPlan::axes> separate_axes(const Gradient& gradient, const codegen::BackwardParts& parts,
                                                     const compiler::Problem& problem) const;
  void fit(const Axes& sizes);
  std::int64_t copies(const Gradient& gradient) const;
  /// Numbers places in the order of the axes, without the axes along which tasks add to different elements.
  std::int64_t number(const Axes& place, const std::array<bool, BackwardPlan::axes>& separate) const;
  void store(const Gradient& gradient, std::int64_t first, std::int64_t last, const std::vector<double>* sink) const;

  const compiler::Args& args_;
  std::vector<Gradient> gradients_;
  Axes lanes_{};  ///< number of concurrent places along each axis
  std::vector<std::vector<std::size_t>> chains_;
  std::vector<Axes> chain_lanes_;
};

}  // namespace attune::runtime::cpu
