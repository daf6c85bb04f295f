// codegen/gradient_source.h — what the source of a backward has besides the forward's: sums of gradients' terms
#pragma once

#include <string>

#include "codegen/source.h"

namespace attune::codegen {

/// The line of `struct User` that holds its GradientTraits. diagonals: as leaves_diagonals().
std::string gradient_traits(const GradientParts& gradient, bool diagonals);
/// The functions that add terms to sums, and those that return the places of these sums.
std::string gradient_terms(const GpuParts& parts, const ir::Signature& signature, bool diagonals);

}  // namespace attune::codegen
