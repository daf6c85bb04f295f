// runtime/cuda/kernels.h — kernels in memory: each compiled once for its Mod and tile, and loaded once a device
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/engine.h"

namespace attune::runtime::cuda {

/// A kernel that a device has.
struct Kernel {
  cu::Kernel handle = nullptr;
  int registers = 0, spilled = 0;

  /// On `stream`, in the current context. `arguments`: pointers to each.
  void launch(const unsigned (&grid)[3], int threads, int shared_bytes, cu::Stream stream,
              std::span<void*> arguments) const;
};

/// The forward of a Mod on a device.
struct ForwardKernel {
  Kernel kernel;
  codegen::ForwardChoice choice;
  std::optional<Kernel> cover;     ///< of a listed Mod: what writes the lists
  std::vector<std::string> story;  ///< kernels that were not taken, and why
};

struct ForwardKey {
  int device = 0;
  codegen::ForwardSpec spec;
  ir::Digest mod;
  auto operator<=>(const ForwardKey&) const = default;
};

/// How many kernels this process has compiled so far. Each length of a sequence would be one too many.
std::size_t compiled_kernels();

/// Compiled and loaded if it is not there; then nothing may be captured from `stream`.
std::shared_ptr<const ForwardKernel> forward_kernel(const ForwardKey& key, const Compiled& compiled, cu::Stream stream);

}  // namespace attune::runtime::cuda
