// codegen/cuda/wgmma.cuh — Hopper's matrix products: one instruction a function, operands in registers and shared
// memory
#pragma once

#include "types.cuh"

namespace attune {

/// A descriptor of a matrix in shared memory, in 128-byte rows that the copy engine swizzled (SWIZZLE_128B) from a
/// multiple of 1024 on. `across`: bytes from one chunk of 64 columns to the next, for operands whose rows run along k.
__device__ inline unsigned long long descriptor(unsigned address, unsigned across = 16) {
  return (1ull << 62) | (static_cast<unsigned long long>(1024 >> 4) << 32) |
         (static_cast<unsigned long long>(across >> 4) << 16) | ((address & 0x3ffff) >> 4);
}

/// Before the first product, and after registers that it uses were written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most so many groups are under way.
template <int N>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/// Keeps the compiler from moving accesses to these registers across this point.
template <int N>
__device__ inline void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// acc[64 x N] (+)= A[64 x 16] B[16 x N] by the four warps of a group. `ss`: A and B in shared memory, rows along k.
/// `rs`: A in registers, B with its rows along n. add = 0 overwrites acc.
template <int N, class T>
struct Product;

#define R0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define R1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define R2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define R3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define R4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define R5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define R6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define R7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define R8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define R9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define R10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define R11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define R12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define R13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define R14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define R15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define C(i)                                                                                                  \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define L16 R0
#define C16 C(0)
#define L32 R0 "," R1
#define C32 C(0), C(8)
#define L48 R0 "," R1 "," R2
#define C48 C(0), C(8), C(16)
#define L64 R0 "," R1 "," R2 "," R3
#define C64 C(0), C(8), C(16), C(24)
#define L80 R0 "," R1 "," R2 "," R3 "," R4
#define C80 C(0), C(8), C(16), C(24), C(32)
#define L96 R0 "," R1 "," R2 "," R3 "," R4 "," R5
#define C96 C(0), C(8), C(16), C(24), C(32), C(40)
#define L112 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6
#define C112 C(0), C(8), C(16), C(24), C(32), C(40), C(48)
#define L128 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7
#define C128 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56)
#define L144 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8
#define C144 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64)
#define L160 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8 "," R9
#define C160 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64), C(72)
#define L176 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8 "," R9 "," R10
#define C176 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64), C(72), C(80)
#define L192 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8 "," R9 "," R10 "," R11
#define C192 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64), C(72), C(80), C(88)
#define L208 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8 "," R9 "," R10 "," R11 "," R12
#define C208 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64), C(72), C(80), C(88), C(96)
#define L224 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8 "," R9 "," R10 "," R11 "," R12 "," R13
#define C224 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64), C(72), C(80), C(88), C(96), C(104)
#define L240 R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8 "," R9 "," R10 "," R11 "," R12 "," R13 "," R14
#define C240 C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64), C(72), C(80), C(88), C(96), C(104), C(112)
#define L256 \
  R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7 "," R8 "," R9 "," R10 "," R11 "," R12 "," R13 "," R14 "," R15
#define C256 \
  C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56), C(64), C(72), C(80), C(88), C(96), C(104), C(112), C(120)
#define ATTUNE_PRODUCT(N, T, type, a, b, c, e, g, f)                                                               \
  template <>                                                                                                      \
  struct Product<N, T> {                                                                                           \
    __device__ static void ss(float (&d)[N / 2], unsigned long long x, unsigned long long y, int add) {            \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #c ", 0;\n"                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" L##N "}, %" #a ", %" #b    \
                                                                                             ", p, 1, 1, 0, 0;}\n" \
                   : C##N                                                                                          \
                   : "l"(x), "l"(y), "r"(add));                                                                    \
    }                                                                                                              \
    __device__ static void rs(float (&d)[N / 2], const unsigned* x, unsigned long long y, int add) {               \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #f ", 0;\n"                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" L##N                       \
                   "}, {%" #a ",%" #b ",%" #c ",%" #e "}, %" #g ", p, 1, 1, 1;}\n"                                 \
                   : C##N                                                                                          \
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(add));                                \
    }                                                                                                              \
  }
ATTUNE_PRODUCT(16, bf16, "bf16", 8, 9, 10, 11, 12, 13);
ATTUNE_PRODUCT(16, f16, "f16", 8, 9, 10, 11, 12, 13);
ATTUNE_PRODUCT(32, bf16, "bf16", 16, 17, 18, 19, 20, 21);
ATTUNE_PRODUCT(32, f16, "f16", 16, 17, 18, 19, 20, 21);
ATTUNE_PRODUCT(48, bf16, "bf16", 24, 25, 26, 27, 28, 29);
ATTUNE_PRODUCT(48, f16, "f16", 24, 25, 26, 27, 28, 29);
ATTUNE_PRODUCT(64, bf16, "bf16", 32, 33, 34, 35, 36, 37);
ATTUNE_PRODUCT(64, f16, "f16", 32, 33, 34, 35, 36, 37);
ATTUNE_PRODUCT(80, bf16, "bf16", 40, 41, 42, 43, 44, 45);
ATTUNE_PRODUCT(80, f16, "f16", 40, 41, 42, 43, 44, 45);
ATTUNE_PRODUCT(96, bf16, "bf16", 48, 49, 50, 51, 52, 53);
ATTUNE_PRODUCT(96, f16, "f16", 48, 49, 50, 51, 52, 53);
ATTUNE_PRODUCT(112, bf16, "bf16", 56, 57, 58, 59, 60, 61);
ATTUNE_PRODUCT(112, f16, "f16", 56, 57, 58, 59, 60, 61);
ATTUNE_PRODUCT(128, bf16, "bf16", 64, 65, 66, 67, 68, 69);
ATTUNE_PRODUCT(128, f16, "f16", 64, 65, 66, 67, 68, 69);
ATTUNE_PRODUCT(144, bf16, "bf16", 72, 73, 74, 75, 76, 77);
ATTUNE_PRODUCT(144, f16, "f16", 72, 73, 74, 75, 76, 77);
ATTUNE_PRODUCT(160, bf16, "bf16", 80, 81, 82, 83, 84, 85);
ATTUNE_PRODUCT(160, f16, "f16", 80, 81, 82, 83, 84, 85);
ATTUNE_PRODUCT(176, bf16, "bf16", 88, 89, 90, 91, 92, 93);
ATTUNE_PRODUCT(176, f16, "f16", 88, 89, 90, 91, 92, 93);
ATTUNE_PRODUCT(192, bf16, "bf16", 96, 97, 98, 99, 100, 101);
ATTUNE_PRODUCT(192, f16, "f16", 96, 97, 98, 99, 100, 101);
ATTUNE_PRODUCT(208, bf16, "bf16", 104, 105, 106, 107, 108, 109);
ATTUNE_PRODUCT(208, f16, "f16", 104, 105, 106, 107, 108, 109);
ATTUNE_PRODUCT(224, bf16, "bf16", 112, 113, 114, 115, 116, 117);
ATTUNE_PRODUCT(224, f16, "f16", 112, 113, 114, 115, 116, 117);
ATTUNE_PRODUCT(240, bf16, "bf16", 120, 121, 122, 123, 124, 125);
ATTUNE_PRODUCT(240, f16, "f16", 120, 121, 122, 123, 124, 125);
ATTUNE_PRODUCT(256, bf16, "bf16", 128, 129, 130, 131, 132, 133);
ATTUNE_PRODUCT(256, f16, "f16", 128, 129, 130, 131, 132, 133);
#undef ATTUNE_PRODUCT
#undef C
#undef R0
#undef R1
#undef R2
#undef R3
#undef R4
#undef R5
#undef R6
#undef R7
#undef R8
#undef R9
#undef R10
#undef R11
#undef R12
#undef R13
#undef R14
#undef R15
#undef L16
#undef C16
#undef L32
#undef C32
#undef L48
#undef C48
#undef L64
#undef C64
#undef L80
#undef C80
#undef L96
#undef C96
#undef L112
#undef C112
#undef L128
#undef C128
#undef L144
#undef C144
#undef L160
#undef C160
#undef L176
#undef C176
#undef L192
#undef C192
#undef L208
#undef C208
#undef L224
#undef C224
#undef L240
#undef C240
#undef L256
#undef C256

}  // namespace attune
