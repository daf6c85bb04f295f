// runtime/engines/cover/summary.h — summaries of captured tensors that a cover reads, computed once per content on the
// host
#pragma once

#include <memory>

#include "compiler/cover.h"
#include "ir/eval.h"

namespace attune::runtime {

/// Reads for a cover's expressions: captures in the first slots, their summaries after them. Least and Greatest are
/// exact for any box of elements, from blocks at several scales along the last two dimensions: O(log^2) of the box's
/// size. A tensor of plain i32 is not copied: its data must outlive this object.
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
