// compiler/fold.h — terms of a score that cancel in the softmax, affine scores, bounded scores
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

Fold fold(const ir::Expr& score, const ir::Bounds& bounds = {});

}  // namespace attune::compiler
