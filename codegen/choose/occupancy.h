// codegen/choose/occupancy.h — how many blocks of a kernel fit on a multiprocessor, and what limits them
#pragma once

#include <span>
#include <string>

namespace attune::codegen {

/// A multiprocessor's limits, from CUDA's table of technical specifications per compute capability.
struct Multiprocessor {
  int arch;  ///< compute capability times ten
  int warps, blocks;
  int shared_bytes;  ///< for all its blocks together
};
/// The limits of every architecture that kernels are made for by name, ascending. A device may have a newer one.
std::span<const Multiprocessor> multiprocessors();
/// The limits for `arch`, or for the newest known older one.
const Multiprocessor& multiprocessor(int arch);

struct Occupancy {
  int blocks = 0, warps = 0;  ///< resident at once
  int most_warps = 0;
  std::string limited_by;  ///< registers, shared memory, warps, blocks: every one that allows no more
};
/// `registers` per thread; `shared_bytes` per block.
Occupancy occupancy(int arch, int threads, int registers, int shared_bytes);

}  // namespace attune::codegen
