// runtime/cuda/engine.h — the CUDA engine: calls that were checked, computed by compiled kernels on a device
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
#include "runtime/cuda/tuned.h"
#include "runtime/watch/watch.h"

namespace attune::runtime::cuda {

/// What a call works with besides its tensors.
struct Means {
  void* stream = nullptr;            ///< a CUstream; null: the default one
  std::span<std::byte> workspace{};  ///< of the device; empty: taken from the stream's pool, and given back to it
  const codegen::Preference* preference = nullptr;  ///< null: what this machine was found to prefer
  const detail::DeviceCover* cover = nullptr;       ///< null: the call lists its own tiles, where it needs lists
  Used* used = nullptr;
  std::optional<bool> exact{};  ///< as Attention::exact
  int blocks = 0;               ///< at most so many of a kernel whose blocks stay; 0: one for each multiprocessor
};

/// Bytes of the device that the call works in, with these lists or its own. Its kernels are compiled and loaded
/// afterwards.
std::size_t forward_workspace(const compiler::LoweredMod& lowered, const Forward& call,
                              const compiler::Problem& problem, const Means& means);
/// Puts the call on the stream.
void forward(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
             const Means& means);
/// Puts the lists of such calls on the stream: into the workspace if there is one. Null where none are needed.
std::shared_ptr<const detail::DeviceCover> cover(const compiler::LoweredMod& lowered, const Forward& call,
                                                 const compiler::Problem& problem, const Means& means);
/// Bytes of the device that they lie in.
std::size_t cover_bytes(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
                        const Means& means);
/// Which kernel takes the call, and why not others.
struct ForwardStory {
  codegen::Variant variant;
  std::string kernel;              ///< in words, with what it needs
  std::vector<std::string> notes;  ///< whose choice it is, and why not others
  int registers = 0, spilled = 0, shared_bytes = 0;
  std::string flaw;  ///< what NVRTC made of it is worse than it should be; or empty
};
ForwardStory forward_story(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
                           const Means& means = {});
/// What a kernel is chosen by, for the call.
struct ForwardWants {
  codegen::ForwardSpec spec;
  codegen::ForwardFacts facts;
  codegen::ForwardKind kind;
  TunedKey key;
};
ForwardWants forward_wants(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
                           std::optional<bool> exact);

/// As the driver calls it.
std::string device_name(int device);
/// Seconds that each of many launches takes on the default stream, by the device's clock; for at least so long in all.
std::vector<double> times(int device, double seconds, const std::function<void()>& launch);

}  // namespace attune::runtime::cuda
