// codegen/cuda/ptx/tma.cuh — the copy engine and the barriers in shared memory that it completes on
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/ptx/early.cuh"

namespace attune {

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// ---- barriers ----------------------------------------------------------------------------------------------------

__device__ inline void barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Called after all inits, before other threads use the barriers.
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and makes the phase wait for this many bytes of copies as well.
__device__ inline void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits until the phase of this parity is over. For a new barrier, the phase of parity 1 counts as over.
__device__ inline void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile("{.reg .pred p;\n"
               "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@!p bra again;}\n" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

/// One of the hardware's sixteen barriers, for `threads` of a block.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- copies ------------------------------------------------------------------------------------------------------

/// A box of [batch, head, position, d] into shared memory; elements outside of the tensor are 0, and count as bytes.
__device__ inline void load_box(unsigned into, const TensorMap& map, unsigned barrier, int d, int position, int head,
                                int batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
               "%6}], [%2];" ::"r"(into),
               "l"(&map), "r"(barrier), "r"(d), "r"(position), "r"(head), "r"(batch)
               : "memory");
}
/// The same for a tensor [batch, key head, position, query head of the key head, d].
__device__ inline void load_box_of_heads(unsigned into, const TensorMap& map, unsigned barrier, int d, int head,
                                         int position, int kv_head, int batch) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
               "%6, %7}], [%2];" ::"r"(into),
               "l"(&map), "r"(barrier), "r"(d), "r"(head), "r"(position), "r"(kv_head), "r"(batch)
               : "memory");
}
/// Copies a box from shared memory; elements outside of the tensor are not written.
__device__ inline void store_box(const TensorMap& map, unsigned from, int d, int position, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(d), "r"(position), "r"(head), "r"(batch)
               : "memory");
}
__device__ inline void store_box_of_heads(const TensorMap& map, unsigned from, int d, int head, int position,
                                          int kv_head, int batch) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(from), "r"(d), "r"(head), "r"(position), "r"(kv_head), "r"(batch)
               : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until the stores have read their shared memory.
__device__ inline void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/// Stands between ordinary writes to shared memory and reads of it by the copy engine or the tensor cores.
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int N>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace attune
