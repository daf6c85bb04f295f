// codegen/occupancy.h — how many blocks of a kernel a multiprocessor of a GPU holds, and what sets the number
#pragma once

#include <string>

namespace attune::codegen {

/// What a multiprocessor has: CUDA's table of technical specifications per compute capability.
struct Multiprocessor {
  int arch;  ///< compute capability times ten
  int warps, blocks;
  int shared_bytes;  ///< of all its blocks
};
/// That of the newest known one that is not newer.
const Multiprocessor& multiprocessor(int arch);

struct Occupancy {
  int blocks = 0, warps = 0;  ///< at a time
  int most_warps = 0;
  std::string limited_by;  ///< registers, shared memory, warps, blocks; all that allow no more
};
/// `registers` of a thread; `shared_bytes` of a block.
Occupancy occupancy(int arch, int threads, int registers, int shared_bytes);

}  // namespace attune::codegen
