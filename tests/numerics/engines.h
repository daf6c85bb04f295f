// tests/numerics/engines.h — every engine of this build that this machine can run, and the mods it is given
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/check.h"
#include "compiler/cover.h"

namespace attune::tests {

/// A mod as it was written, which is what results must be true to, and lowered, which is what engines get.
struct Subject {
  compiler::Traced written, lowered;
  compiler::Cover cover;
  bool removes = false;  ///< can any pair be removed?
  std::optional<double> scale{};
  std::optional<bool> exact{};  ///< of kernels of a GPU

  explicit Subject(const Attention& attention);
  explicit Subject(compiler::Traced traced);
};

struct Engine {
  std::string name;
  std::function<void(const Subject&, const Forward&, const compiler::Problem&)> forward;
  std::function<void(const Subject&, const Backward&, const compiler::Problem&)> backward;  ///< may be none
  std::int64_t widest = 512;  ///< heads of more are refused, see tests/codegen/choose.test.cpp
};

/// One for each instruction set of this CPU, and CUDA where there is a device. ATTUNE_TEST_ENGINE=cuda: those whose
/// names begin so.
const std::vector<Engine>& engines();

}  // namespace attune::tests
