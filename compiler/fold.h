// compiler/fold.h — what the softmax makes free: cancelling terms, affine scores, bounded scores
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

Fold fold(const ir::Expr& score, const ir::Bounds& bounds = {});

}  // namespace attune::compiler
