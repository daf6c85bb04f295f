// codegen/cuda/ptx/arithmetic.cuh — arithmetic that the compiler has no expression for, or must not rearrange
#pragma once

namespace attune {

/// add.f32, x += y, in order with other such statements, and in x's own register.
__device__ inline void add_in_place(float& x, float y) { asm volatile("add.f32 %0, %0, %1;" : "+f"(x) : "f"(y)); }

/// mad.wide.s32, mad.lo.s64: the address of the element that is `steps` further. Only the assembler adds the two, so a
/// number of steps that it alone knows becomes part of the load; the compiler would add the steps to those of `at`.
template <class T>
__device__ inline const T* further(const T* at, int steps) {
  const T* out;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(out) : "r"(steps), "n"(int(sizeof(T))), "l"(at));
  return out;
}
template <class T>
__device__ inline const T* further(const T* at, long long steps) {
  const T* out;
  asm("mad.lo.s64 %0, %1, %2, %3;" : "=l"(out) : "l"(steps), "n"(int(sizeof(T))), "l"(at));
  return out;
}

/// prmt.b32: 32 copies of the highest bit of a byte of x. (__byte_perm does not copy signs.)
__device__ inline unsigned copies_of_sign(unsigned x, int byte) {
  unsigned out;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(out) : "r"(x), "r"(0x8888 + 0x1111 * byte));
  return out;
}

/// fma.rn.f16x2: a b + c of both halves, rounded once.
__device__ inline unsigned fma_f16_pair(unsigned a, unsigned b, unsigned c) {
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
  return a;
}
/// fma.rn.bf16x2: the same for bf16.
__device__ inline unsigned fma_bf16_pair(unsigned a, unsigned b, unsigned c) {
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
  return a;
}

}  // namespace attune
