// runtime/cuda/engine.h — the CUDA engine: calls that were checked, computed by compiled kernels on a device
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "compiler/check.h"
#include "compiler/cover.h"

namespace attune::runtime::cuda {

/// A Mod with what calls of it share.
struct Compiled {
  const compiler::Traced& traced;
  const compiler::Cover& cover;
};

/// What a call works with besides its tensors.
struct Means {
  void* stream = nullptr;            ///< a CUstream; null: the default one
  std::span<std::byte> workspace{};  ///< of the device; empty: taken from the stream's pool, and given back to it
};

/// Bytes of the device that the call works in. Its kernels are compiled and loaded afterwards.
std::size_t forward_workspace(const Compiled& compiled, const Forward& call, const compiler::Problem& problem);
/// Puts the call on the stream.
void forward(const Compiled& compiled, const Forward& call, const compiler::Problem& problem, const Means& means);
/// Which kernel takes the call, and why not others.
std::string forward_story(const Compiled& compiled, const Forward& call, const compiler::Problem& problem);

}  // namespace attune::runtime::cuda
