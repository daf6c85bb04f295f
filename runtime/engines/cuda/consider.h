// runtime/engines/cuda/consider.h — the kernels that can take a call, compiled in turn until one is as it was meant to
// be
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "codegen/companion.h"
#include "runtime/engines/cuda/nvrtc.h"
#include "runtime/machine/cache/objects.h"

namespace attune::runtime::cuda {

/// sm_90a
std::string target_name(int arch);

/// What a kernel is, besides its source, as watchers hear of it.
struct KernelOf {
  const compiler::Mod* mod;  ///< null: none; it holds no user's expressions, and no call's
  std::string kernel;        ///< and its tile
  int arch = 0;
  int shared_bytes = 0;
  const Purpose* purpose = nullptr;  ///< the call that needs it; may be null
};

/// What NVRTC is asked for a source.
Asked asked(const codegen::Source& source);
/// A binary as caches keep it.
CacheEntry entry_of(const Binary& binary, const codegen::Source& source);

/// What NVRTC makes of a source, once in a process; an Error if it has to compile and there is no NVRTC.
std::shared_ptr<const Binary> binary_of(const codegen::Source& source, const KernelOf& of);

/// A source as ATTUNE_LINEINFO has it, and what its dump is named by.
struct KernelSource {
  codegen::Source source;
  std::string dump;  ///< the source and its options as they are without lines; empty unless dumps are on
};
KernelSource kernel_source_of(const codegen::GpuParts& parts, const codegen::KernelPlan& plan);
/// The source of a companion. ATTUNE_LINEINFO concerns those alone that list tiles.
codegen::Source companion_source_of(const codegen::Companion& companion, const codegen::GpuParts& parts,
                                    const codegen::KernelPlan& plan);
codegen::Source cover_source_of(const compiler::LoweredMod& lowered, bool offsets64, int arch, CoverForm what);

/// How many kernels this process has compiled so far. No call may compile one for each length of its sequences.
std::size_t compiled_kernels();

struct Candidate {
  codegen::KernelChoice choice;
  std::optional<KernelSource> written{};  ///< none: it came after the chosen one
  /// Null: it came after the chosen one, or is nowhere while compiling is off. Without a cubin: a bundle says what
  /// became of it, and it was not taken.
  std::shared_ptr<const Binary> binary{};
  std::string flaw{};  ///< what NVRTC made of it is worse than it should be; or empty
};
struct Considered {
  std::vector<Candidate> candidates;
  std::size_t chosen = 0;          ///< the first that will do, but for a fast one that spills little; it has its cubin
  std::vector<std::string> story;  ///< kernels that are no candidates, and why
};
/// `preference` may be null. `all`: those behind the chosen one are compiled too, to be shown. With compiling off, it
/// chooses among those that are there; an Error if none is. `purpose`: the call that needs the kernel; may be null.
Considered consider(const codegen::GpuParts& parts, const codegen::CallKind& kind, const codegen::KernelSpec& spec,
                    const codegen::Preference* preference, bool all = false,
                    codegen::Kernels among = codegen::kernels(), const Purpose* purpose = nullptr);

}  // namespace attune::runtime::cuda
