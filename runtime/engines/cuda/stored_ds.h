// runtime/engines/cuda/stored_ds.h — the gradients of dense biases in a backward whose kernel stores dS
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engines/cuda/kernels/keys.h"

namespace attune::runtime::cuda {

/// Stored dS, and the gradients that are made of it.
struct DenseGradients {
  std::vector<DenseGradient> each;  ///< in the order of the kernel's terms
  bool is_gradient = false;         ///< dS is stored straight into one of them
  std::int64_t tiles = 0;           ///< of keys, in one launch
  Tensor ds{};                      ///< dS of one launch: the gradient itself, or without memory

  bool has(const Captured& one) const;
  /// The kernel's arguments for a launch that begins at this tile of keys.
  StoredDs stored(const codegen::KernelPlan& plan, std::int64_t first_tile) const;
  std::vector<SumOfDs> sums() const;
};

/// How gradients are made of the dS that this kernel stores; `q_tiles`: of all heads and entries.
DenseGradients dense_gradients(const Call& of, std::span<const Captured> captured, const LoadedKernel& kernel,
                               std::int64_t q_tiles, std::int64_t ds_bytes);
}  // namespace attune::runtime::cuda
