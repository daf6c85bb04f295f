// codegen/source/skeleton.h — a kernel's source in two: a skeleton with places for a mod's functions, the same for all
// mods of a tile and its traits, and these functions alone
#pragma once

#include <string>

#include "codegen/source/source.h"

namespace attune::codegen {

/// Both are compiled to PTX by themselves, and splice() puts the functions where the skeleton's places are.
struct SplitSource {
  Source skeleton, mod;
};
SplitSource split_source(const GpuParts& parts, const KernelPlan& plan);

/// Why a kernel cannot be spliced, or empty.
std::string why_not_spliced(const GpuParts& parts, const KernelPlan& plan);

}  // namespace attune::codegen
