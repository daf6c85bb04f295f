// runtime/engines/cuda/lists.h — lists of tiles on a device: their sizes, the launch that writes them, the calls they
// fit
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/contract/args.cuh"
#include "compiler/bind.h"
#include "runtime/engines/cuda/kernels/kernels.h"
#include "runtime/engines/cuda/launches.h"
#include "runtime/platform/memory.h"

namespace attune::runtime::cuda {

/// Lists of tiles or a table of visits, in the format that codegen/cuda/companions/cover.cuh writes.
struct CoverLists {
  int* at = nullptr;
  CoverForm what = CoverForm::of_queries;
  int m = 0, n = 0;            ///< queries and keys of a tile
  int batches = 1, heads = 1;  ///< 1 if the lists do not vary with them
  int stride = 0;              ///< ints per row
  std::int64_t rows = 0;       ///< of one head: tiles of queries, or of keys
  std::int64_t blocks = 0;     ///< blocks that write the lists of one head

  CoverLists() = default;
  CoverLists(const codegen::KernelPlan& plan, const compiler::Cover& cover, const compiler::Problem& p,
             CoverForm what = CoverForm::of_queries);
  std::int64_t ints() const { return stride * rows * heads * batches; }
  /// Tells a kernel where the lists are.
  void put(Entries& into) const {
    into.tiles = at;
    into.tile_stride = stride;
    into.tile_batches = batches;
    into.tile_heads = heads;
  }
};

/// Adds the kernel's companion that writes lists. `next`: a counter that it sets to 0; `visited`: adds the visits to
/// it.
void put_cover(Launches& launches, const LoadedKernel& kernel, const CoverLists& lists, const Entries& of,
               unsigned* next, unsigned* visited = nullptr);

/// Throws Error unless these are the lists of the call.
void require_fit(const detail::DeviceCover& made, const Facts& device, const LoadedKernel& kernel,
                 const compiler::LoweredMod& lowered, const compiler::Args& args, const compiler::Problem& p);

}  // namespace attune::runtime::cuda

namespace attune::detail {

namespace cuda = runtime::cuda;

/// The contents of a Cover: lists, and everything that they depend on.
struct DeviceCover {
  int device = 0;
  ir::Digest mask;               ///< as in compiler::CoverOf
  std::string text;              ///< the mask, for people
  std::vector<Tensor> captures;  ///< of the mask
  std::vector<double> params;
  std::int64_t q_len = 0, kv_len = 0;
  std::int32_t q_offset = 0;
  cuda::CoverLists lists;

  DeviceCover(const cuda::Facts& device, const cuda::LoadedKernel& kernel, const compiler::LoweredMod& lowered,
              const compiler::Args& args, const compiler::Problem& p);
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
