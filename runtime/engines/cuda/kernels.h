// runtime/engines/cuda/kernels.h — kernels in memory: each compiled once for its Mod and tile, and loaded once a device
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "codegen/companion.h"
#include "codegen/parts.h"
#include "codegen/source.h"
#include "runtime/engines/cuda/driver.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/libraries.h"
#include "runtime/engines/cuda/tuned.h"
#include "runtime/machine/cache/single.h"

namespace attune::runtime::cuda {

/// A kernel that a device has loaded.
struct Kernel {
  cu::Kernel handle = nullptr;
  int registers = 0, spilled = 0;
  cu::Library library = nullptr;  ///< that it lies in
  std::size_t bytes = 0;          ///< of the library's image
};

/// A companion of a kernel, for its launches.
struct LoadedCompanion {
  const codegen::Companion* what;
  Kernel kernel;
};

/// A kernel of a Mod on a device, and what else its launches need.
struct LoadedKernel {
  Kernel kernel;
  codegen::KernelChoice choice;
  std::vector<LoadedCompanion> companions;  ///< in the order of their launches
  bool skips = false;                       ///< as Traits has it
  std::string flaw;                         ///< as Candidate has it
  compiler::CoverOf cover_of{};             ///< what its lists depend on, where the launch must be handed some
  bool delta_of_o = true;          ///< of a backward: as GradientTraits of codegen/cuda/contract/gradient.cuh has it
  std::vector<std::string> story;  ///< whose choice it is; kernels that were not taken, and why
  std::unique_ptr<Libraries> libraries{};  ///< null: it stays loaded

  /// Said before its launches are put on the stream.
  void used_on(cu::Stream stream) const {
    if (libraries) libraries->used_on(stream);
  }

  bool has(const codegen::Companion& one) const {
    return std::ranges::find(companions, &one, &LoadedCompanion::what) != companions.end();
  }
  /// What writes its lists of tiles; null: it needs none.
  const LoadedCompanion* lists() const {
    const auto found = std::ranges::find(companions, codegen::Companion::Args::lists,
                                         [](const LoadedCompanion& one) { return one.what->args; });
    return found == companions.end() ? nullptr : &*found;
  }
  bool writes_lists() const { return lists() != nullptr; }
};

KernelStory story_of(const LoadedKernel& kernel);

struct KernelKey {
  int device = 0;
  codegen::Way way = codegen::Way::forward;
  codegen::KernelSpec spec;
  ir::Digest mod;
  codegen::Length length = codegen::Length::longer;
  std::optional<codegen::Preference> preference{};  ///< none: as the machine was tuned
  codegen::Wanted wanted{};  ///< of a backward: captured tensors whose gradients are asked for, by slot
  auto operator<=>(const KernelKey&) const = default;
};

TunedKey tuned_key(const KernelKey& key, const codegen::CallKind& kind);

/// Has this process the kernel?
bool is_loaded(const KernelKey& key);
/// Compiles and loads the kernel unless this process has it; then `stream` must not be captured. Its plan has no kernel
/// where none of those of key.way takes the call: a whole backward's. The first kernels of a process stay loaded, so
/// that most processes need not know which streams theirs run on; of further ones, ATTUNE_LOADED says how many stay.
Held<LoadedKernel> loaded_kernel(const KernelKey& key, const compiler::LoweredMod& lowered, cu::Stream stream,
                                 const Purpose* purpose);

/// The same for kernels that hold no user's expressions; `mod`: of the call, for those that watch. rows.cuh:
Held<Kernel> loaded_rows(int device, const codegen::RowsSpec& spec, const compiler::Mod& mod, cu::Stream stream,
                         const Purpose* purpose);
/// sums.cuh:
Held<Kernel> loaded_sums(int device, int arch, const compiler::Mod& mod, cu::Stream stream, const Purpose* purpose);
/// append.cuh:
Held<Kernel> loaded_append(int device, int arch, cu::Stream stream);
/// A source of one fixed kernel: copy_rows.cuh, add_parts.cuh or merge_parts.cuh.
Held<Kernel> loaded_plain(int device, const codegen::Source& source, int arch, cu::Stream stream);

}  // namespace attune::runtime::cuda
