// codegen/facts/peak.h — the part of a score that does not depend on s, and where it is largest
#pragma once

#include "codegen/cuda/contract/traits.cuh"
#include "compiler/mod.h"

namespace attune::codegen {

/// An exponent that is a function of s plus `term`, which varies along a row. Null: it is not.
struct Peaked {
  ir::Expr term;
  Peak peak = Peak::unknown;
};
/// Of the exponent, the first of `levels.element`.
Peaked peaked(const compiler::Levels& levels);

}  // namespace attune::codegen
