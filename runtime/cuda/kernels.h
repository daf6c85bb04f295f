// runtime/cuda/kernels.h — kernels in memory: each compiled once for its Mod and tile, and loaded once a device
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/choose.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/engine.h"
#include "runtime/cuda/tuned.h"

namespace attune::runtime::cuda {

/// A kernel that a device has.
struct Kernel {
  cu::Kernel handle = nullptr;
  int registers = 0, spilled = 0;

  /// On `stream`, in the current context. `arguments`: pointers to each. early: perhaps before the kernel before has
  /// ended, for which it waits itself.
  void launch(const unsigned (&grid)[3], int threads, int shared_bytes, cu::Stream stream, std::span<void*> arguments,
              bool early = false) const;
};

/// Of a listed Mod: what writes its lists, and what is in them hangs on.
struct CoverKernel {
  Kernel kernel;
  compiler::CoverOf of;
};

/// The forward of a Mod on a device.
struct ForwardKernel {
  Kernel kernel;
  codegen::ForwardChoice choice;
  std::string flaw;                         ///< as Candidate has it
  std::optional<CoverKernel> cover_kernel;  ///< where the launch must be handed lists
  std::vector<std::string> story;           ///< whose choice it is; kernels that were not taken, and why
};

struct ForwardKey {
  int device = 0;
  codegen::ForwardSpec spec;
  ir::Digest mod;
  codegen::Length length = codegen::Length::longer;
  const codegen::Preference* preference = nullptr;  ///< lives as long as the process; null: as the machine was tuned
  auto operator<=>(const ForwardKey&) const = default;
};

TunedKey tuned_key(const ForwardKey& key, const codegen::ForwardKind& kind);

/// Compiled and loaded if it is not there; then nothing may be captured from `stream`.
std::shared_ptr<const ForwardKernel> forward_kernel(const ForwardKey& key, const compiler::LoweredMod& lowered,
                                                    cu::Stream stream);

}  // namespace attune::runtime::cuda
