// codegen/source/skeleton.h — a kernel's source in two: a skeleton with places for a mod's functions, the same for all
// mods of a tile and its traits, and these functions alone
#pragma once

#include <string>
#include <string_view>

#include "codegen/source/source.h"

namespace attune::codegen {

// In a skeleton, `attune_place_rest %f1, %f2, …;` is where the function rest() goes: its results, then its arguments. A
// mod's PTX has that function as a kernel attune_mod_rest, which begins by `attune_in %f1, 0;` for each argument, and
// ends by `attune_out 0, %f2;` for each result. Its reads of its own parameter become reads of the skeleton's last
// parameter.
inline constexpr std::string_view place_prefix = "attune_place_", mod_prefix = "attune_mod_", place_in = "attune_in",
                                  place_out = "attune_out", inside_suffix = "_inside";

struct SplicedPtx {
  std::string text;
  std::string why_not{};  ///< the reason why there is none
};
/// Registers of a mod are renamed, and its labels and registers are declared in a scope of its own.
SplicedPtx splice(std::string_view skeleton, std::string_view mod);

/// A CUDA source from which NVRTC makes the code that its assembler would make from this PTX. The PTX is one statement
/// of inline assembly, which ends the kernel around it and begins another. Empty if the text cannot be such a
/// statement.
std::string around_ptx(std::string_view ptx);

/// Both are compiled to PTX by themselves, and splice() puts the functions where the skeleton's places are.
struct SplitSource {
  Source skeleton, mod;
};
SplitSource split_source(const GpuParts& parts, const KernelPlan& plan);

/// Why a kernel cannot be spliced, or empty.
std::string why_not_spliced(const GpuParts& parts, const KernelPlan& plan);

}  // namespace attune::codegen
