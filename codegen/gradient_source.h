// codegen/gradient_source.h — what the source of a backward has besides the forward's: sums of gradients' terms
#pragma once

#include <cstdint>
#include <string>

#include "codegen/source.h"

namespace attune::codegen {

/// What a kernel leaves of captured tensors' gradients to another: sums along diagonals, dS, or nothing.
enum class Leaves : std::uint8_t { nothing, diagonals, ds };
Leaves leaves_of(const GpuParts& parts, const KernelPlan& plan);

/// The line of `struct User` that holds its GradientTraits.
std::string gradient_traits(const GradientParts& gradient, Leaves leaves);
/// The functions that add terms to sums, and those that return the places of these sums.
std::string gradient_terms(const GpuParts& parts, const ir::Signature& signature, Leaves leaves);

}  // namespace attune::codegen
