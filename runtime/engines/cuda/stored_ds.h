// runtime/engines/cuda/stored_ds.h — the gradient of a dense bias in a backward whose kernel stores dS
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/engines/cuda/kernels/keys.h"

namespace attune::runtime::cuda {

struct DenseGradient {
  const Captured* of = nullptr;
  std::uint32_t slot = 0;                          ///< of `of`: the one that the score reads
  Tensor as_pairs;                                 ///< the gradient as [batch, head, query, key]
  std::array<std::int64_t, 4> groups{1, 1, 1, 1};  ///< how many of each share an element
  bool is_ds = false;                              ///< dS is stored straight into it
  std::int64_t tiles = 0;                          ///< of keys, in one launch
  bool cleared = false;                            ///< pairs of tiles that no item visits are 0
  Tensor ds{};                                     ///< dS of one launch: the gradient itself, or without memory
};

/// How the gradient is made of the dS that this kernel stores; `kv_tiles`: of a head. None if it cannot be.
std::optional<DenseGradient> dense_gradient(const Call& of, std::span<const Captured> captured,
                                            const LoadedKernel& kernel, std::int64_t kv_tiles, std::int64_t ds_bytes);
/// The kernel's argument for a launch that begins at this tile of keys.
StoredDs stored_ds(const DenseGradient& of, const codegen::KernelPlan& plan, std::int64_t first_tile);

}  // namespace attune::runtime::cuda
