// runtime/engines/cuda/kernels/spliced.h — kernels from a skeleton that is compiled once, and a mod's functions put
// into it
#pragma once

#include <string>
#include <vector>

#include "codegen/source/skeleton.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/platform/nvidia/nvrtc.h"

namespace attune::runtime::cuda {

enum class Splicing : std::uint8_t {
  never,
  if_there,  ///< if the skeleton is there; otherwise it is compiled in the background, for the next mod
  at_once,   ///< the skeleton is compiled first if it must be
};
/// What a kernel is compiled for.
enum class CompiledFor : std::uint8_t {
  bundle,
  call,
  first_tier,  ///< a call, until the kernel that `call` would get takes over: the whole one may be slower to compile
};
/// Of a kernel of this plan: by ATTUNE_SPLICE, or by what was measured if a call needs it. What is compiled ahead of
/// time does not depend on what the cache holds, so that the same inputs give the same bytes.
Splicing splicing_of(const codegen::GpuParts& parts, const codegen::KernelPlan& plan, CompiledFor what);
/// True for a first-tier kernel that a whole kernel will replace.
bool is_first_tier(const Binary& kernel, const codegen::GpuParts& parts, const codegen::KernelPlan& plan);
/// The kernel of a source, spliced if that makes as good a kernel as compiling the source as a whole: `made` tells. The
/// skeleton is an object as kernels are, compiled by one thread at a time. `how` is not never.
Binary compile_spliced(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan,
                       Splicing how = Splicing::at_once);
/// The spliced kernel, from a skeleton that is compiled first if it must be; without a cubin, if there is none: then
/// `made` is the reason.
Binary only_spliced(const codegen::Source& whole, const codegen::GpuParts& parts, const codegen::KernelPlan& plan);
/// True if compile_spliced() takes the spliced kernel and not the whole one.
bool is_taken(const Binary& spliced, const Binary& whole);
/// The skeleton of a kernel that was compiled ahead of time, for a bundle, and what is known about its registers; none,
/// unless such kernels are spliced and the skeleton is there.
struct KeptSkeleton {
  std::string content;  ///< of the request
  CacheEntry entry;
};
std::vector<KeptSkeleton> skeleton_of(const codegen::GpuParts& parts, const codegen::KernelPlan& plan);
/// For a bundle: the skeleton of a kernel, compiled unless it exists. `whole` is the kernel's own source, and `spilled`
/// what it spills when compiled from that, in bytes. If the mod spills no less in the skeleton, returns the note that
/// says so. None if the kernel has no skeleton or NVRTC rejects it.
std::vector<KeptSkeleton> make_skeleton(const codegen::Source& whole, int spilled, const codegen::GpuParts& parts,
                                        const codegen::KernelPlan& plan);
/// The request for a skeleton's PTX. Its key has NVRTC's version.
Asked asked_for_skeleton(const codegen::Source& skeleton);
/// The number of skeletons that this process has compiled.
std::size_t compiled_skeletons();

}  // namespace attune::runtime::cuda
