// runtime/oracle.h — the definition of attention: forward and backward in double precision, clear and slow
#pragma once

#include "compiler/check.h"
#include "ir/eval.h"
#include "runtime/progress.h"
#include <attune/attention.h>

namespace attune::runtime {

/// The tensors and parameters behind a Mod's slots, read as the language says: indices clamped, types widened.
ir::ReadCapture reader(std::span<const Tensor> captures);
std::vector<double> values(std::span<const std::shared_ptr<const detail::ParamCell>> params);

void oracle_forward(const compiler::Traced& traced, const Forward& call, const compiler::Problem& problem,
                    const Progress& progress = {});
void oracle_backward(const compiler::Traced& traced, const Backward& call, const compiler::Problem& problem,
                     const Progress& progress = {});

}  // namespace attune::runtime
