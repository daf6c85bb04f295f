// runtime/cuda/engine.h — the CUDA engine: calls that were checked, computed by compiled kernels on a device
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "compiler/check.h"
#include "compiler/cover.h"
#include "runtime/cuda/tuned.h"
#include "runtime/watch.h"

namespace attune::runtime::cuda {

/// A Mod with what calls of it share.
struct Compiled {
  const compiler::Traced& traced;
  ir::Digest digest;  ///< of the Mod
  const compiler::Cover& cover;
};

/// What a call works with besides its tensors.
struct Means {
  void* stream = nullptr;            ///< a CUstream; null: the default one
  std::span<std::byte> workspace{};  ///< of the device; empty: taken from the stream's pool, and given back to it
  const codegen::Preference* preference = nullptr;  ///< null: what this machine was found to prefer
  Used* used = nullptr;
};

/// Bytes of the device that the call works in. Its kernels are compiled and loaded afterwards.
std::size_t forward_workspace(const Compiled& compiled, const Forward& call, const compiler::Problem& problem);
/// Puts the call on the stream.
void forward(const Compiled& compiled, const Forward& call, const compiler::Problem& problem, const Means& means);
/// Which kernel takes the call, and why not others.
struct ForwardStory {
  codegen::Variant variant;
  std::string kernel;              ///< in words, with what it needs
  std::vector<std::string> notes;  ///< whose choice it is, and why not others
  int registers = 0, spilled = 0, shared_bytes = 0;
  std::string flaw;  ///< what NVRTC made of it is worse than it should be; or empty
};
ForwardStory forward_story(const Compiled& compiled, const Forward& call, const compiler::Problem& problem,
                           const codegen::Preference* preference = nullptr);
/// What a kernel is chosen by, for the call.
struct ForwardWants {
  codegen::ForwardSpec spec;
  codegen::ForwardFacts facts;
  codegen::ForwardKind kind;
  TunedKey key;
};
ForwardWants forward_wants(const Compiled& compiled, const Forward& call, const compiler::Problem& problem);

/// As the driver calls it.
std::string device_name(int device);
/// Seconds that each of many launches takes on the default stream, by the device's clock; for at least so long in all.
std::vector<double> times(int device, double seconds, const std::function<void()>& launch);

}  // namespace attune::runtime::cuda
