// codegen/cuda/emulated/ptx/named_barrier.cuh — the sixteen barriers of a block, for some of its threads
#pragma once

namespace attune {

inline void named_sync(int id, int threads, Site at = Site::here()) {
  attune_machine->meet(id, threads, true, false, at);
}
inline void named_arrive(int id, int threads, Site at = Site::here()) {
  attune_machine->meet(id, threads, false, false, at);
}

}  // namespace attune
