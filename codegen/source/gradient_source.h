// codegen/source/gradient_source.h — what the source of a backward has besides the forward's: sums of gradients' terms
#pragma once

#include <cstdint>
#include <string>

#include "codegen/source/source.h"

namespace attune::codegen {

/// True if the kernel computes a whole backward and leaves gradients of captured tensors to later kernels.
bool sums_whole(const KernelPlan& plan);

/// The line of `struct User` that holds its GradientTraits; `whole` as above.
std::string gradient_traits(const GradientParts& gradient, bool whole);
/// The functions that add terms to sums, and those that return the places of these sums.
std::string gradient_terms(const GpuParts& parts, const ir::Signature& signature, const KernelPlan& plan);

}  // namespace attune::codegen
