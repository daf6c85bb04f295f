// codegen/cuda/ptx/memory.cuh — accesses to shared and global memory: of threads and warps, which the compiler must
// neither split nor reorder, and of TMA
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

// ---- shared memory, by its own 32-bit addresses ---------------------------------------------------------------------

// Addresses are multiples of the access size: 2, 4, 8 or 16 bytes.

/// The shared-memory address of a generic pointer.
__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// ---- st.shared ------------------------------------------------------------------------------------------------------

__device__ inline void shared_put(unsigned at, unsigned short x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(x) : "memory");
}
__device__ inline void shared_put(unsigned at, unsigned x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void shared_put(unsigned at, int x) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void shared_put(unsigned at, unsigned x, unsigned y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
__device__ inline void shared_put(unsigned at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ inline void shared_put(unsigned at, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ inline void shared_put(unsigned at, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

// ---- ld.shared ------------------------------------------------------------------------------------------------------

__device__ inline unsigned short shared_get_half(unsigned at) {
  unsigned short out;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(out) : "r"(at) : "memory");
  return out;
}
__device__ inline int shared_get(unsigned at) {
  int out;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(out) : "r"(at) : "memory");
  return out;
}
/// The compiler may move it past accesses to other memory, but not past other statements of this folder.
__device__ inline float2 shared_get2(unsigned at) {
  float2 out;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(out.x), "=f"(out.y) : "r"(at));
  return out;
}
__device__ inline float4 shared_get4(unsigned at) {
  float4 out;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "r"(at)
               : "memory");
  return out;
}
__device__ inline uint4 shared_get_words(unsigned at) {
  uint4 out;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(at)
               : "memory");
  return out;
}

// ---- flags: words that some threads read while others write them, and that may be seen late -------------------------

__device__ inline void shared_put_flag(unsigned at, int x) { shared_put(at, x); }
__device__ inline int shared_get_flag(unsigned at) { return shared_get(at); }

// ---- global memory --------------------------------------------------------------------------------------------------

/// st.global.v4.b32: 16 bytes, at a multiple of 16. A plain assignment became four stores.
__device__ inline void global_put(void* at, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
/// ld.global.nc.v4.b32: 16 bytes that no thread writes and no other thread needs, at a multiple of 16; or zeros.
__device__ inline uint4 global_get_if(bool exists, const void* at) {
  uint4 out;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w)
      : "l"(at), "r"(static_cast<unsigned>(exists)));
  return out;
}
/// st.global.b16
__device__ inline void global_put(void* at, unsigned short x) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(at), "h"(x) : "memory");
}

/// discard.global.L2: nothing reads these 128 bytes, at a multiple of 128, before they are written again, so the L2
/// cache need not write them to memory.
__device__ inline void global_discard(void* at) { asm volatile("discard.global.L2 [%0], 128;" ::"l"(at) : "memory"); }

/// ld.acquire.gpu: after it, this thread sees what other blocks wrote before they released `at`.
__device__ inline unsigned global_acquire(const unsigned* at) {
  unsigned out;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(out) : "l"(at) : "memory");
  return out;
}
/// st.release.gpu: threads that acquire it see what this thread wrote before.
__device__ inline void global_release(unsigned* at, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

// ---- asynchronous copies of a thread into shared memory, since sm_80 ------------------------------------------------

/// cp.async: copies Bytes (4, 8 or 16, aligned to these) to shared memory; bytes beyond `count` are 0.
template <int Bytes>
__device__ inline void copy_async(unsigned to, const void* from, int count) {
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes), "r"(count)
                 : "memory");
}
/// cp.async.commit_group: this thread's copies since the last group become a group.
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// cp.async.wait_group: waits for all but this thread's last Pending groups.
template <int Pending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- blocks of 8 rows by 16 bytes between shared memory and a warp's registers, as operands of products have them ---

// Thread 8 i + r says where row r of block i lies; word i of thread 4 r + c is 32-bit word c of row r of block i.
// Transposed, in units of 16 bits: units 2 c and 2 c + 1 of column r.

/// ldmatrix.x4, into four words.
__device__ inline void load_blocks(unsigned* x, unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
/// ldmatrix.x4.trans
__device__ inline void load_blocks_transposed(unsigned (&x)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
/// ldmatrix.x2.trans: two blocks, whose row addresses come from threads 0 to 15.
__device__ inline void load_two_blocks_transposed(unsigned (&x)[2], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(x[0]), "=r"(x[1])
               : "r"(at)
               : "memory");
}

/// stmatrix.x4, since sm_90: the inverse of load_blocks.
__device__ inline void store_blocks(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}
/// stmatrix.x4.trans
__device__ inline void store_blocks_transposed(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// ---- TMA: boxes of tensors, and bytes in a row, between global and shared memory ------------------------------------

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

// ---- boxes of tensors -----------------------------------------------------------------------------------------------

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

// ---- bytes in a row -------------------------------------------------------------------------------------------------

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

// ---- order ----------------------------------------------------------------------------------------------------------

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
