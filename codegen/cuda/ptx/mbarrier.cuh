// codegen/cuda/ptx/mbarrier.cuh — barriers in shared memory, which threads and copies complete
#pragma once

namespace attune {

/// mbarrier.init: a barrier of 8 bytes. Each phase ends once this many threads have arrived.
__device__ inline void barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// fence.mbarrier_init: called after all inits, before other threads use the barriers.
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// mbarrier.arrive: threads that wait for the phase see what this thread did before.
__device__ inline void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// mbarrier.arrive.expect_tx: arrives, and makes the phase wait for this many bytes of copies as well.
__device__ inline void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// mbarrier.try_wait until the phase of this parity is over. A new barrier counts phase parity 1 as over.
__device__ inline void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile("{.reg .pred p;\n"
               "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@!p bra again;}\n" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

}  // namespace attune
