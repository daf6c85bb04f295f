// codegen/cuda/emulated/ptx/mbarrier.cuh — barriers in shared memory, which threads and copies complete
#pragma once

namespace attune {

inline void barrier_init(unsigned barrier, unsigned arrivals, Site at = Site::here()) {
  attune_machine->barrier_init(barrier, arrivals, at);
}
inline void barrier_init_done() {}
inline void barrier_arrive(unsigned barrier, Site at = Site::here()) { attune_machine->barrier_arrive(barrier, 0, at); }
inline void barrier_expect(unsigned barrier, unsigned bytes, Site at = Site::here()) {
  attune_machine->barrier_arrive(barrier, bytes, at);
}
inline void barrier_wait(unsigned barrier, unsigned parity, Site at = Site::here()) {
  attune_machine->barrier_wait(barrier, parity, at);
}

}  // namespace attune
