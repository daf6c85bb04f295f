// runtime/engines/cuda/spliced.h — kernels from a skeleton that is compiled once, and a mod's functions put into it
#pragma once

#include "codegen/skeleton.h"
#include "runtime/engines/cuda/nvrtc.h"
#include "runtime/machine/cache/objects.h"

namespace attune::runtime::cuda {

/// Whether a kernel of this plan is to be spliced: by ATTUNE_SPLICE, or by what was measured.
bool wants_spliced(const codegen::KernelPlan& plan);
/// The kernel of a source, spliced if that makes as good a kernel as compiling the source as a whole: `made` tells. The
/// skeleton is an object as kernels are, compiled by one thread at a time.
Binary compile_spliced(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan);
/// The request for a skeleton's PTX.
Asked asked_for_skeleton(const codegen::Source& skeleton);
/// The number of skeletons that this process has compiled.
std::size_t compiled_skeletons();

}  // namespace attune::runtime::cuda
