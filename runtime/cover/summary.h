// runtime/cover/summary.h — what a cover wants to know of captured tensors, worked out once per content on the host
#pragma once

#include <memory>

#include "compiler/cover.h"
#include "ir/eval.h"

namespace attune::runtime {

/// Reads of a cover's expressions: the captures themselves in the first slots, their summaries behind them.
/// Least and Greatest answer for a box of elements, exactly, from blocks at several scales along the last two
/// dimensions: O(log^2) of its size. A tensor of plain i32 is not copied: its data must outlive this.
class Summaries {
 public:
  Summaries(std::span<const Tensor> captures, std::span<const compiler::Summary> wanted);
  ~Summaries();
  Summaries(Summaries&&) noexcept;

  const ir::ReadCapture& read() const { return read_; }

 private:
  struct Data;
  std::vector<std::shared_ptr<const Data>> data_;  ///< by capture; null where no summary is wanted
  ir::ReadCapture read_;
};

}  // namespace attune::runtime
