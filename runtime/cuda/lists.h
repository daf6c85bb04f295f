// runtime/cuda/lists.h — lists of tiles on a device: where they lie, who writes them, and which calls they are for
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/ceil_div.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/memory.h"
#include "runtime/workspace.h"

namespace attune::runtime::cuda {

/// As codegen/cuda/cover.cuh has them.
struct CoverLists {
  int* at = nullptr;
  int m = 0, n = 0;            ///< queries and keys of a tile
  int batches = 1, heads = 1;  ///< 1 where they do not vary with them
  int stride = 0;              ///< ints a row

  CoverLists() = default;
  CoverLists(Workspace& space, const ForwardKernel& kernel, const compiler::Cover& cover, const compiler::Problem& p);
  static std::size_t bytes(const ForwardKernel& kernel, const compiler::Cover& cover, const compiler::Problem& p);
};

/// On the device, of packed sequences.
struct Starts {
  const int *q = nullptr, *kv = nullptr;
};
/// `next`: a counter that becomes 0; may be null.
void write_lists(const Kernel& kernel, const CoverLists& lists, const compiler::Problem& p, const Starts& starts,
                 unsigned* next, std::vector<std::byte>& user, cu::Stream stream);

/// An Error unless these are the lists of the call. `params`: the values of all its parameters.
void require_fit(const detail::DeviceCover& made, const Facts& device, const ForwardKernel& kernel,
                 const compiler::LoweredMod& lowered, const compiler::Problem& p, std::span<const double> params);

}  // namespace attune::runtime::cuda

namespace attune::detail {

namespace cuda = runtime::cuda;

/// What a Cover holds: lists, and all that they hang on.
struct DeviceCover {
  int device = 0;
  ir::Digest mask;               ///< as compiler::CoverOf has it
  std::string text;              ///< the mask, for people
  std::vector<Tensor> captures;  ///< of the mask
  std::vector<double> params;
  std::int64_t q_len = 0, kv_len = 0;
  std::int32_t q_offset = 0;
  cuda::CoverLists lists;

  DeviceCover(const cuda::Facts& device, const cuda::ForwardKernel& kernel, const compiler::LoweredMod& lowered,
              const compiler::Problem& p, std::span<const double> params);
  ~DeviceCover();
  DeviceCover(const DeviceCover&) = delete;
  DeviceCover& operator=(const DeviceCover&) = delete;
  /// Memory for the lists, for as long as this lives.
  std::span<std::byte> take(const cuda::Facts& device, const cuda::Current& current, std::size_t bytes,
                            cuda::cu::Stream stream);

 private:
  cuda::cu::Context context_ = nullptr;
  std::optional<cuda::Pooled> memory_;
};

}  // namespace attune::detail
