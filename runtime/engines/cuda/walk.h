// runtime/engines/cuda/walk.h — a kernel that walks pairs with its companions, as a call puts them on its stream
#pragma once

#include "codegen/companion.h"
#include "codegen/cuda/contract/args.cuh"
#include "runtime/engines/cuda/kernels.h"
#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/lists.h"

namespace attune::runtime::cuda {

/// What a family of kernels (args_*.cpp) says of one launch and of those around it. Structs live until all is put.
struct Walk {
  const LoadedKernel& kernel;
  codegen::LaunchCall call;
  void* arguments = nullptr;
  unsigned cluster = 1;
  bool early = false;                 ///< starts as the launch before it drains
  bool shares_tiles = true;           ///< blocks share tiles of queries
  bool gives_dq = true;               ///< the gradient of q is asked for
  const CoverLists* lists = nullptr;  ///< to be written before
  // Structs of companions that do not get the kernel's; null: these companions are not launched.
  CoverArgs* cover = nullptr;
  TransposeArgs* transpose = nullptr;
  ClearArgs* clear = nullptr;
  // Words set to 0 right before the kernel, where no companion does.
  unsigned* cleared = nullptr;
  std::size_t cleared_count = 0;
};

/// The companions before it, and the kernel itself.
void put_kernel(Launches& launches, const Walk& walk);
/// The companions that follow, once all kernels of the call are put.
void put_after(Launches& launches, const Walk& walk);

}  // namespace attune::runtime::cuda
