// codegen/cuda/ptx/tma.cuh — TMA: boxes of tensors, and bytes in a row, between global and shared memory
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

// ---- who issues -----------------------------------------------------------------------------------------------------

/// elect.sync: true in one lane of a whole warp, always the same. The assembler then knows that one thread issues TMA:
/// under any other condition it emits a loop over lanes for each copy.
__device__ inline bool elected() {
  unsigned out;
  asm volatile("{.reg .pred p;\n"
               "elect.sync _|p, 0xffffffff;\n"
               "selp.u32 %0, 1, 0, p;}"
               : "=r"(out));
  return out != 0;
}

// ---- boxes of tensors --------------------------------------------------------------------------------------------

/// Loads a box of [batch, head, position, d]; elements outside the tensor are 0, and count as bytes.
__device__ inline void load_box(unsigned into, const TensorMap& map, unsigned barrier, int d, int position, int head,
                                int batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
               "%6}], [%2];" ::"r"(into),
               "l"(&map), "r"(barrier), "r"(d), "r"(position), "r"(head), "r"(batch)
               : "memory");
}
/// The same for a tensor [batch, key head, position, query head of the key head, d].
__device__ inline void load_box_of_heads(unsigned into, const TensorMap& map, unsigned barrier, HeadsBox at) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
               "%6, %7}], [%2];" ::"r"(into),
               "l"(&map), "r"(barrier), "r"(at.d), "r"(at.head), "r"(at.position), "r"(at.kv_head), "r"(at.batch)
               : "memory");
}
/// Copies a box from shared memory; elements outside the tensor are not written.
__device__ inline void store_box(const TensorMap& map, unsigned from, int d, int position, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(d), "r"(position), "r"(head), "r"(batch)
               : "memory");
}
__device__ inline void store_box_of_heads(const TensorMap& map, unsigned from, HeadsBox at) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(from), "r"(at.d), "r"(at.head), "r"(at.position), "r"(at.kv_head), "r"(at.batch)
               : "memory");
}

// ---- bytes in a row ----------------------------------------------------------------------------------------------

/// cp.async.bulk: `bytes`, a multiple of 16, from global to shared memory; they count for the barrier.
__device__ inline void load_bulk(unsigned into, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(into),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
/// The same from shared to global memory.
__device__ inline void store_bulk(void* to, unsigned from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
/// cp.reduce.async.bulk: adds bytes of f32 to those in global memory, each atomically.
__device__ inline void add_bulk(void* to, unsigned from, unsigned bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

// ---- order -------------------------------------------------------------------------------------------------------

/// cp.async.bulk.commit_group: the stores of this thread since the last one are a group.
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// cp.async.bulk.wait_group.read: waits until the stores of this thread have read their shared memory.
__device__ inline void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// cp.async.bulk.wait_group: waits until the stores of this thread are complete.
__device__ inline void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/// fence.proxy.async, of the block's shared memory: stands between ordinary writes to it and reads of it by TMA
///  or the tensor cores.
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// fence.proxy.async: between ordinary accesses and those of TMA, in all memory.
__device__ inline void copy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace attune
