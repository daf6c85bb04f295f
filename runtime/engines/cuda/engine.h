// runtime/engines/cuda/engine.h — the CUDA engine: calls that were checked, computed by compiled kernels on a device
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/tuned.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
class Purpose;
}  // namespace attune::runtime

namespace attune::runtime::cuda {

/// What a call works with besides its tensors.
struct Means {
  void* stream = nullptr;                           ///< a CUstream; null: the default one
  std::span<std::byte> workspace{};                 ///< of the device; empty: borrowed from the stream's pool
  const codegen::Preference* preference = nullptr;  ///< null: as this machine was tuned
  const detail::DeviceCover* cover = nullptr;       ///< null: the call lists its own tiles, where it needs lists
  Used* used = nullptr;
  std::optional<bool> exact{};                  ///< as Attention::exact
  const Purpose* purpose = nullptr;             ///< what the call's kernels are for
  const Purpose* purpose_of_forward = nullptr;  ///< the same of the forward that a backward computes first
  /// The call that this one is a part of: its lengths choose the kernel, so that each row gets the same bits. Null: it
  /// is no part.
  const compiler::Problem* whole = nullptr;
  int blocks = 0;  ///< at most so many of a kernel whose blocks stay; 0: one for each multiprocessor
};

/// Device bytes that the call works in. Compiles and loads its kernels.
std::size_t forward_workspace(const compiler::LoweredMod& lowered, const Forward& call,
                              const compiler::Problem& problem, const Means& means);
/// Puts the call on the stream.
void forward(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
             const Means& means);
/// The same of a backward.
std::size_t backward_workspace(const compiler::LoweredMod& lowered, const Backward& call,
                               const compiler::Problem& problem, const Means& means);
void backward(const compiler::LoweredMod& lowered, const Backward& call, const compiler::Problem& problem,
              const Means& means);
/// The forward that a backward without o and lse computes first; null: to ask what it needs.
Forward first_forward(const Backward& call, const compiler::Problem& problem, void* o = nullptr, void* lse = nullptr,
                      void* max = nullptr);
/// Writes the tile lists of such calls on the stream, into the workspace if there is one. Null where none are needed.
std::shared_ptr<const detail::DeviceCover> cover(const compiler::LoweredMod& lowered, const Forward& call,
                                                 const compiler::Problem& problem, const Means& means);
/// Device bytes that those lists take.
std::size_t cover_bytes(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
                        const Means& means);
/// Puts the copies of new rows on the stream.
void append(const Append& call, const compiler::Problem& problem, void* stream);
/// Which kernel takes the call, and why not others.
struct KernelStory {
  codegen::Variant variant;
  std::string kernel;              ///< in words, with what it needs
  std::vector<std::string> notes;  ///< where the choice came from, and why other kernels were not taken
  int registers = 0, spilled = 0, shared_bytes = 0;
  std::string flaw;  ///< what is wrong with the compiled kernel (it spills, a warning); or empty
};
KernelStory forward_story(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
                          const Means& means = {});
/// Of each kernel of a backward that walks pairs, in the order of their launches.
std::vector<KernelStory> backward_stories(const compiler::LoweredMod& lowered, const Backward& call,
                                          const compiler::Problem& problem, const Means& means = {});
/// What a kernel is chosen by, for the call.
struct KernelWants {
  codegen::KernelSpec spec;
  codegen::ModFacts facts;
  codegen::CallKind kind;
  TunedKey key;
};
/// The kernel that the call gets; compiles and loads it.
codegen::Variant forward_variant(const compiler::LoweredMod& lowered, const Forward& call,
                                 const compiler::Problem& problem, const Means& means);
KernelWants forward_wants(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
                          std::optional<bool> exact);
/// What the kernels of a backward are compiled for.
struct BackwardWants {
  codegen::KernelSpec spec;  ///< `out`: of o
  codegen::Length length;
};
BackwardWants backward_wants(const Backward& call, const compiler::LoweredMod& lowered,
                             const compiler::Problem& problem, std::optional<bool> exact);

/// The driver's name for it.
std::string device_name(int device);
/// Seconds of each launch on the default stream, by the device's clock; launches until `seconds` have passed.
std::vector<double> times(int device, double seconds, const std::function<void()>& launch);
/// The same of graphs of so many launches each, on the stream that `launch` gets: the mean of each replay. The first
/// launch on that stream is not captured.
std::vector<double> times_of_graphs(int device, double seconds, int launches,
                                    const std::function<void(void* stream)>& launch);

}  // namespace attune::runtime::cuda
