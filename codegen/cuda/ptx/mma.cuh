// codegen/cuda/ptx/mma.cuh — products of warps and copies into shared memory as every card since sm_80 has them
#pragma once

#include "codegen/cuda/contract/types.cuh"

namespace attune {

// ---- copies ------------------------------------------------------------------------------------------------------

/// cp.async: Bytes (4, 8 or 16, so aligned) arrive in shared memory by themselves; those beyond `count` are 0.
template <int Bytes>
__device__ inline void copy_async(unsigned to, const void* from, int count) {
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes), "r"(count)
                 : "memory");
}
/// cp.async.commit_group: what this thread copies since the last one is a group.
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// cp.async.wait_group: all but this thread's last Pending groups have arrived.
template <int Pending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// st.shared
template <class T>
__device__ inline void store_shared(unsigned at, T x) {
  if constexpr (sizeof(T) == 2)
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(x) : "memory");
  else
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void store_shared(unsigned at, unsigned x, unsigned y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
/// ld.shared
__device__ inline unsigned load_shared(unsigned at) {
  unsigned x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}

/// exit: this thread is done.
[[noreturn]] __device__ inline void leave() {
  asm volatile("exit;");
  __builtin_unreachable();
}

// ---- operands ----------------------------------------------------------------------------------------------------

/// ldmatrix: four blocks of 8 rows by 16 bytes. Thread 8 i + r says where row r of block i lies; x[i] of thread
/// 4 r + c is 32-bit word c of row r.
__device__ inline void load_blocks(unsigned (&x)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
/// The same with 16-bit elements transposed: x[i] of thread 4 r + c is elements 2 c and 2 c + 1 of column r.
__device__ inline void load_blocks_transposed(unsigned (&x)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}

/// Two such blocks, whose rows threads 0 to 15 give.
__device__ inline void load_two_blocks_transposed(unsigned (&x)[2], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(x[0]), "=r"(x[1])
               : "r"(at)
               : "memory");
}

// ---- products ----------------------------------------------------------------------------------------------------

/// mma: c (16 x 8) += a (16 rows by 32 bytes) b (32 bytes by 8 columns), in f32; of f32, 10 bits of the fraction count.
template <class Element>
__device__ inline void product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
template <>
__device__ inline void product<bf16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void product<f16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void product<float>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// cvt.rna: an f32 with 10 bits of fraction.
__device__ inline unsigned tf32(unsigned x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
/// What tf32() took away, rounded likewise: together they have 21 bits of fraction.
__device__ inline unsigned tf32_rest(unsigned x) {
  return tf32(__float_as_uint(__uint_as_float(x) - __uint_as_float(tf32(x))));
}

/// product() of operands as they lie in shared memory. Exact: of f32, all but the last bits count; `low` takes what the
/// first 10 bits leave, apart, because what is infinite leaves NaN.
template <class Element, bool Exact>
__device__ inline void multiply(float (&c)[4], float (&low)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (ElementOf<Element>::bytes == 2) {
    product<Element>(c, a, b0, b1);
  } else {
    const unsigned high[4] = {tf32(a[0]), tf32(a[1]), tf32(a[2]), tf32(a[3])}, b[2] = {tf32(b0), tf32(b1)};
    if constexpr (Exact) {
      const unsigned rest[4] = {tf32_rest(a[0]), tf32_rest(a[1]), tf32_rest(a[2]), tf32_rest(a[3])};
      product<float>(low, rest, b[0], b[1]);
      product<float>(low, high, tf32_rest(b0), tf32_rest(b1));
    }
    product<float>(c, high, b[0], b[1]);
  }
}

}  // namespace attune
