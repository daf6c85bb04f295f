// codegen/cuda/ptx/ldmatrix.cuh — blocks of 8 rows by 16 bytes between shared memory and a warp's registers, as
// operands of products have them
//
// Thread 8 i + r says where row r of block i lies; word i of thread 4 r + c is 32-bit word c of row r of block i.
// Transposed, in units of 16 bits: units 2 c and 2 c + 1 of column r.
#pragma once

namespace attune {

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

}  // namespace attune
