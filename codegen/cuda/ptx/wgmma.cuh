// codegen/cuda/ptx/wgmma.cuh — Hopper's matrix products: one instruction a function, operands in registers and shared
// memory
#pragma once

#include "codegen/cuda/contract/types.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// A descriptor of a matrix in shared memory, in 128-byte rows swizzled by TMA (SWIZZLE_128B), at a multiple of 1024.
/// `across`: bytes from one chunk to the next, for operands whose rows run along k.
__device__ inline unsigned long long descriptor(unsigned address, unsigned across = 16) {
  return (1ull << 62) | (static_cast<unsigned long long>(1024 >> 4) << 32) |
         (static_cast<unsigned long long>(across >> 4) << 16) | ((address & 0x3ffff) >> 4);
}

/// Before the first product, and after registers that it uses were written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most this many groups are under way.
template <int N>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/// Also keeps the compiler from moving accesses to these sums, which have arrived then.
template <int N, class First, class... Others>
__device__ inline void wgmma_wait(First& first, Others&... others) {
  wgmma_wait<N>();
  pin(first);
  (pin(others), ...);
}

/// The dimension along which an operand in shared memory has rows of 128 bytes: k, over which products are summed, or
/// the other one.
enum class Major { k, n };
/// The step between products of 16 of k, in the 16-byte units of descriptors: 32 bytes along a row, or 16 rows.
__device__ constexpr int k_step(Major major) { return (major == Major::k ? 32 : 16 * chunk_bytes) >> 4; }
__device__ constexpr int transposed(Major major) { return major != Major::k; }

/// acc[64 x N] (+)= A[64 x 16] B[16 x N] by the four warps of a warpgroup. `ss`: A and B in shared memory. `rs`: A in
/// registers. add = 0 overwrites acc. `ss4`, `rs4`: four of these, over 128 bytes, in one statement, because each
/// statement has all of acc as operands, in and out, which slows compilers down. `set4`: ss4 that overwrites acc, whose
/// registers are free until then.
template <int N, class T>
struct Product;

// Operands by number, in groups of eight: first the N / 2 numbers of acc, then the others.
#define ATTUNE_EIGHT0 0, 1, 2, 3, 4, 5, 6, 7
#define ATTUNE_EIGHT1 8, 9, 10, 11, 12, 13, 14, 15
#define ATTUNE_EIGHT2 16, 17, 18, 19, 20, 21, 22, 23
#define ATTUNE_EIGHT3 24, 25, 26, 27, 28, 29, 30, 31
#define ATTUNE_EIGHT4 32, 33, 34, 35, 36, 37, 38, 39
#define ATTUNE_EIGHT5 40, 41, 42, 43, 44, 45, 46, 47
#define ATTUNE_EIGHT6 48, 49, 50, 51, 52, 53, 54, 55
#define ATTUNE_EIGHT7 56, 57, 58, 59, 60, 61, 62, 63
#define ATTUNE_EIGHT8 64, 65, 66, 67, 68, 69, 70, 71
#define ATTUNE_EIGHT9 72, 73, 74, 75, 76, 77, 78, 79
#define ATTUNE_EIGHT10 80, 81, 82, 83, 84, 85, 86, 87
#define ATTUNE_EIGHT11 88, 89, 90, 91, 92, 93, 94, 95
#define ATTUNE_EIGHT12 96, 97, 98, 99, 100, 101, 102, 103
#define ATTUNE_EIGHT13 104, 105, 106, 107, 108, 109, 110, 111
#define ATTUNE_EIGHT14 112, 113, 114, 115, 116, 117, 118, 119
#define ATTUNE_EIGHT15 120, 121, 122, 123, 124, 125, 126, 127
#define ATTUNE_EIGHT16 128, 129, 130, 131, 132, 133, 134, 135
#define ATTUNE_EIGHT17 136, 137, 138, 139, 140, 141, 142, 143
#define ATTUNE_EIGHT18 144, 145, 146, 147, 148, 149, 150, 151
#define ATTUNE_NAMES(...) ATTUNE_NAMES_OF(__VA_ARGS__)
#define ATTUNE_NAMES_OF(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define ATTUNE_NAMES1 ATTUNE_NAMES(ATTUNE_EIGHT0)
#define ATTUNE_NAMES2 ATTUNE_NAMES1 "," ATTUNE_NAMES(ATTUNE_EIGHT1)
#define ATTUNE_NAMES3 ATTUNE_NAMES2 "," ATTUNE_NAMES(ATTUNE_EIGHT2)
#define ATTUNE_NAMES4 ATTUNE_NAMES3 "," ATTUNE_NAMES(ATTUNE_EIGHT3)
#define ATTUNE_NAMES5 ATTUNE_NAMES4 "," ATTUNE_NAMES(ATTUNE_EIGHT4)
#define ATTUNE_NAMES6 ATTUNE_NAMES5 "," ATTUNE_NAMES(ATTUNE_EIGHT5)
#define ATTUNE_NAMES7 ATTUNE_NAMES6 "," ATTUNE_NAMES(ATTUNE_EIGHT6)
#define ATTUNE_NAMES8 ATTUNE_NAMES7 "," ATTUNE_NAMES(ATTUNE_EIGHT7)
#define ATTUNE_NAMES9 ATTUNE_NAMES8 "," ATTUNE_NAMES(ATTUNE_EIGHT8)
#define ATTUNE_NAMES10 ATTUNE_NAMES9 "," ATTUNE_NAMES(ATTUNE_EIGHT9)
#define ATTUNE_NAMES11 ATTUNE_NAMES10 "," ATTUNE_NAMES(ATTUNE_EIGHT10)
#define ATTUNE_NAMES12 ATTUNE_NAMES11 "," ATTUNE_NAMES(ATTUNE_EIGHT11)
#define ATTUNE_NAMES13 ATTUNE_NAMES12 "," ATTUNE_NAMES(ATTUNE_EIGHT12)
#define ATTUNE_NAMES14 ATTUNE_NAMES13 "," ATTUNE_NAMES(ATTUNE_EIGHT13)
#define ATTUNE_NAMES15 ATTUNE_NAMES14 "," ATTUNE_NAMES(ATTUNE_EIGHT14)
#define ATTUNE_NAMES16 ATTUNE_NAMES15 "," ATTUNE_NAMES(ATTUNE_EIGHT15)
#define ATTUNE_ACC(...) ATTUNE_ACC_OF(__VA_ARGS__)
#define ATTUNE_ACC_OF(a, b, c, d, e, f, g, h) \
  "+f"(acc[a]), "+f"(acc[b]), "+f"(acc[c]), "+f"(acc[d]), "+f"(acc[e]), "+f"(acc[f]), "+f"(acc[g]), "+f"(acc[h])
#define ATTUNE_NEW(...) ATTUNE_NEW_OF(__VA_ARGS__)
#define ATTUNE_NEW_OF(a, b, c, d, e, f, g, h) \
  "=f"(acc[a]), "=f"(acc[b]), "=f"(acc[c]), "=f"(acc[d]), "=f"(acc[e]), "=f"(acc[f]), "=f"(acc[g]), "=f"(acc[h])
#define ATTUNE_ACC1 ATTUNE_ACC(ATTUNE_EIGHT0)
#define ATTUNE_ACC2 ATTUNE_ACC1, ATTUNE_ACC(ATTUNE_EIGHT1)
#define ATTUNE_ACC3 ATTUNE_ACC2, ATTUNE_ACC(ATTUNE_EIGHT2)
#define ATTUNE_ACC4 ATTUNE_ACC3, ATTUNE_ACC(ATTUNE_EIGHT3)
#define ATTUNE_ACC5 ATTUNE_ACC4, ATTUNE_ACC(ATTUNE_EIGHT4)
#define ATTUNE_ACC6 ATTUNE_ACC5, ATTUNE_ACC(ATTUNE_EIGHT5)
#define ATTUNE_ACC7 ATTUNE_ACC6, ATTUNE_ACC(ATTUNE_EIGHT6)
#define ATTUNE_ACC8 ATTUNE_ACC7, ATTUNE_ACC(ATTUNE_EIGHT7)
#define ATTUNE_ACC9 ATTUNE_ACC8, ATTUNE_ACC(ATTUNE_EIGHT8)
#define ATTUNE_ACC10 ATTUNE_ACC9, ATTUNE_ACC(ATTUNE_EIGHT9)
#define ATTUNE_ACC11 ATTUNE_ACC10, ATTUNE_ACC(ATTUNE_EIGHT10)
#define ATTUNE_ACC12 ATTUNE_ACC11, ATTUNE_ACC(ATTUNE_EIGHT11)
#define ATTUNE_ACC13 ATTUNE_ACC12, ATTUNE_ACC(ATTUNE_EIGHT12)
#define ATTUNE_ACC14 ATTUNE_ACC13, ATTUNE_ACC(ATTUNE_EIGHT13)
#define ATTUNE_ACC15 ATTUNE_ACC14, ATTUNE_ACC(ATTUNE_EIGHT14)
#define ATTUNE_ACC16 ATTUNE_ACC15, ATTUNE_ACC(ATTUNE_EIGHT15)
#define ATTUNE_NEW1 ATTUNE_NEW(ATTUNE_EIGHT0)
#define ATTUNE_NEW2 ATTUNE_NEW1, ATTUNE_NEW(ATTUNE_EIGHT1)
#define ATTUNE_NEW3 ATTUNE_NEW2, ATTUNE_NEW(ATTUNE_EIGHT2)
#define ATTUNE_NEW4 ATTUNE_NEW3, ATTUNE_NEW(ATTUNE_EIGHT3)
#define ATTUNE_NEW5 ATTUNE_NEW4, ATTUNE_NEW(ATTUNE_EIGHT4)
#define ATTUNE_NEW6 ATTUNE_NEW5, ATTUNE_NEW(ATTUNE_EIGHT5)
#define ATTUNE_NEW7 ATTUNE_NEW6, ATTUNE_NEW(ATTUNE_EIGHT6)
#define ATTUNE_NEW8 ATTUNE_NEW7, ATTUNE_NEW(ATTUNE_EIGHT7)
#define ATTUNE_NEW9 ATTUNE_NEW8, ATTUNE_NEW(ATTUNE_EIGHT8)
#define ATTUNE_NEW10 ATTUNE_NEW9, ATTUNE_NEW(ATTUNE_EIGHT9)
#define ATTUNE_NEW11 ATTUNE_NEW10, ATTUNE_NEW(ATTUNE_EIGHT10)
#define ATTUNE_NEW12 ATTUNE_NEW11, ATTUNE_NEW(ATTUNE_EIGHT11)
#define ATTUNE_NEW13 ATTUNE_NEW12, ATTUNE_NEW(ATTUNE_EIGHT12)
#define ATTUNE_NEW14 ATTUNE_NEW13, ATTUNE_NEW(ATTUNE_EIGHT13)
#define ATTUNE_NEW15 ATTUNE_NEW14, ATTUNE_NEW(ATTUNE_EIGHT14)
#define ATTUNE_NEW16 ATTUNE_NEW15, ATTUNE_NEW(ATTUNE_EIGHT15)

// clang-format off
// 8-bit and 32-bit operands always have rows along k: their products take no majors. Of f32, the tensor cores ignore
// the last 13 bits: a product is of TF32.
#define ATTUNE_MMA(T, N, j, rest, majors) ATTUNE_MMA_##T(N, j, rest, majors)
#define ATTUNE_MMA_bf16(N, j, rest, majors) ATTUNE_MMA_OF(bf16, "k16", N, j, rest ", " majors)
#define ATTUNE_MMA_f16(N, j, rest, majors) ATTUNE_MMA_OF(f16, "k16", N, j, rest ", " majors)
#define ATTUNE_MMA_e4m3(N, j, rest, majors) ATTUNE_MMA_OF(e4m3, "k32", N, j, rest)
#define ATTUNE_MMA_float(N, j, rest, majors) ATTUNE_MMA_OF(tf32, "k8", N, j, rest)
#define ATTUNE_MMA_OF(T, k, N, j, rest)                                                                                \
  "wgmma.mma_async.sync.aligned.m64n" #N k ".f32." #T "." #T " {" ATTUNE_NAMES##j "}, " rest ";\n"
#define ATTUNE_PRODUCT(T, N, j, a, b, c, d, e, f, g, h, i, k, l, m, n, o, q, r, s, t, u, v, w, z, ...)                 \
  template <>                                                                                                          \
  struct Product<N, T> {                                                                                               \
    template <Major x_major, Major y_major>                                                                            \
    __device__ static void ss(float (&acc)[N / 2], unsigned long long x, unsigned long long y, int add) {              \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #c ", 0;\n"                                                       \
                   ATTUNE_MMA(T, N, j, "%" #a ", %" #b ", p, 1, 1", "%" #d ", %" #e) "}"                               \
                   : ATTUNE_ACC##j                                                                                     \
                   : "l"(x), "l"(y), "r"(add), "n"(transposed(x_major)), "n"(transposed(y_major)));                            \
    }                                                                                                                  \
    template <Major x_major, Major y_major>                                                                            \
    __device__ static void ss4(float (&acc)[N / 2], unsigned long long x, unsigned long long y, int add) {             \
      constexpr int dx = k_step(x_major), dy = k_step(y_major);                                                        \
      asm volatile("{.reg .pred p; .reg .b64 x, y; setp.ne.b32 p, %" #c ", 0;\n"                                       \
                   ATTUNE_MMA(T, N, j, "%" #a ", %" #b ", p, 1, 1", "%" #d ", %" #e)                                   \
                   "add.s64 x, %" #a ", %" #f "; add.s64 y, %" #b ", %" #g ";\n"                                       \
                   ATTUNE_MMA(T, N, j, "x, y, 1, 1, 1", "%" #d ", %" #e)                                               \
                   "add.s64 x, %" #a ", %" #h "; add.s64 y, %" #b ", %" #i ";\n"                                       \
                   ATTUNE_MMA(T, N, j, "x, y, 1, 1, 1", "%" #d ", %" #e)                                               \
                   "add.s64 x, %" #a ", %" #k "; add.s64 y, %" #b ", %" #l ";\n"                                       \
                   ATTUNE_MMA(T, N, j, "x, y, 1, 1, 1", "%" #d ", %" #e) "}"                                           \
                   : ATTUNE_ACC##j                                                                                     \
                   : "l"(x), "l"(y), "r"(add), "n"(transposed(x_major)), "n"(transposed(y_major)), "n"(dx), "n"(dy),           \
                     "n"(2 * dx), "n"(2 * dy), "n"(3 * dx), "n"(3 * dy));                                              \
    }                                                                                                                  \
    template <Major x_major, Major y_major>                                                                            \
    __device__ static void set4(float (&acc)[N / 2], unsigned long long x, unsigned long long y) {                     \
      constexpr int dx = k_step(x_major), dy = k_step(y_major);                                                        \
      asm volatile("{.reg .b64 x, y;\n"                                                                                \
                   ATTUNE_MMA(T, N, j, "%" #a ", %" #b ", 0, 1, 1", "%" #c ", %" #d)                                   \
                   "add.s64 x, %" #a ", %" #e "; add.s64 y, %" #b ", %" #f ";\n"                                       \
                   ATTUNE_MMA(T, N, j, "x, y, 1, 1, 1", "%" #c ", %" #d)                                               \
                   "add.s64 x, %" #a ", %" #g "; add.s64 y, %" #b ", %" #h ";\n"                                       \
                   ATTUNE_MMA(T, N, j, "x, y, 1, 1, 1", "%" #c ", %" #d)                                               \
                   "add.s64 x, %" #a ", %" #i "; add.s64 y, %" #b ", %" #k ";\n"                                       \
                   ATTUNE_MMA(T, N, j, "x, y, 1, 1, 1", "%" #c ", %" #d) "}"                                           \
                   : ATTUNE_NEW##j                                                                                     \
                   : "l"(x), "l"(y), "n"(transposed(x_major)), "n"(transposed(y_major)), "n"(dx), "n"(dy), "n"(2 * dx),        \
                     "n"(2 * dy), "n"(3 * dx), "n"(3 * dy));                                                           \
    }                                                                                                                  \
    template <Major y_major>                                                                                           \
    __device__ static void rs(float (&acc)[N / 2], const unsigned* x, unsigned long long y, int add) {                 \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #f ", 0;\n"                                                       \
                   ATTUNE_MMA(T, N, j, "{%" #a ",%" #b ",%" #c ",%" #d "}, %" #e ", p, 1, 1", "%" #g) "}"              \
                   : ATTUNE_ACC##j                                                                                     \
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(add), "n"(transposed(y_major)));              \
    }                                                                                                                  \
    template <Major y_major>                                                                                           \
    __device__ static void rs4(float (&acc)[N / 2], const unsigned* x, unsigned long long y, int add) {                \
      constexpr int dy = k_step(y_major);                                                                              \
      asm volatile("{.reg .pred p; .reg .b64 y; setp.ne.b32 p, %" #t ", 0;\n"                                          \
                   ATTUNE_MMA(T, N, j, "{%" #a ",%" #b ",%" #c ",%" #d "}, %" #s ", p, 1, 1", "%" #u)                  \
                   "add.s64 y, %" #s ", %" #v ";\n"                                                                    \
                   ATTUNE_MMA(T, N, j, "{%" #e ",%" #f ",%" #g ",%" #h "}, y, 1, 1, 1", "%" #u)                        \
                   "add.s64 y, %" #s ", %" #w ";\n"                                                                    \
                   ATTUNE_MMA(T, N, j, "{%" #i ",%" #k ",%" #l ",%" #m "}, y, 1, 1, 1", "%" #u)                        \
                   "add.s64 y, %" #s ", %" #z ";\n"                                                                    \
                   ATTUNE_MMA(T, N, j, "{%" #n ",%" #o ",%" #q ",%" #r "}, y, 1, 1, 1", "%" #u) "}"                    \
                   : ATTUNE_ACC##j                                                                                     \
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]),           \
                     "r"(x[8]), "r"(x[9]), "r"(x[10]), "r"(x[11]), "r"(x[12]), "r"(x[13]), "r"(x[14]), "r"(x[15]),     \
                     "l"(y), "r"(add), "n"(transposed(y_major)), "n"(dy), "n"(2 * dy), "n"(3 * dy));                       \
    }                                                                                                                  \
  };
// clang-format on
// A source of f32 products alone says so, because each type takes its time to compile.
#ifdef ATTUNE_F32_PRODUCTS
#define ATTUNE_WIDTH(...) ATTUNE_PRODUCT(float, __VA_ARGS__)
#else
#define ATTUNE_WIDTH(...)           \
  ATTUNE_PRODUCT(bf16, __VA_ARGS__) \
  ATTUNE_PRODUCT(f16, __VA_ARGS__)  \
  ATTUNE_PRODUCT(e4m3, __VA_ARGS__)
#endif
#define ATTUNE_N16 ATTUNE_WIDTH(16, 1, ATTUNE_EIGHT1, ATTUNE_EIGHT2, ATTUNE_EIGHT3)
#define ATTUNE_N32 ATTUNE_WIDTH(32, 2, ATTUNE_EIGHT2, ATTUNE_EIGHT3, ATTUNE_EIGHT4)
#define ATTUNE_N48 ATTUNE_WIDTH(48, 3, ATTUNE_EIGHT3, ATTUNE_EIGHT4, ATTUNE_EIGHT5)
#define ATTUNE_N64 ATTUNE_WIDTH(64, 4, ATTUNE_EIGHT4, ATTUNE_EIGHT5, ATTUNE_EIGHT6)
#define ATTUNE_N80 ATTUNE_WIDTH(80, 5, ATTUNE_EIGHT5, ATTUNE_EIGHT6, ATTUNE_EIGHT7)
#define ATTUNE_N96 ATTUNE_WIDTH(96, 6, ATTUNE_EIGHT6, ATTUNE_EIGHT7, ATTUNE_EIGHT8)
#define ATTUNE_N112 ATTUNE_WIDTH(112, 7, ATTUNE_EIGHT7, ATTUNE_EIGHT8, ATTUNE_EIGHT9)
#define ATTUNE_N128 ATTUNE_WIDTH(128, 8, ATTUNE_EIGHT8, ATTUNE_EIGHT9, ATTUNE_EIGHT10)
#define ATTUNE_N144 ATTUNE_WIDTH(144, 9, ATTUNE_EIGHT9, ATTUNE_EIGHT10, ATTUNE_EIGHT11)
#define ATTUNE_N160 ATTUNE_WIDTH(160, 10, ATTUNE_EIGHT10, ATTUNE_EIGHT11, ATTUNE_EIGHT12)
#define ATTUNE_N176 ATTUNE_WIDTH(176, 11, ATTUNE_EIGHT11, ATTUNE_EIGHT12, ATTUNE_EIGHT13)
#define ATTUNE_N192 ATTUNE_WIDTH(192, 12, ATTUNE_EIGHT12, ATTUNE_EIGHT13, ATTUNE_EIGHT14)
#define ATTUNE_N208 ATTUNE_WIDTH(208, 13, ATTUNE_EIGHT13, ATTUNE_EIGHT14, ATTUNE_EIGHT15)
#define ATTUNE_N224 ATTUNE_WIDTH(224, 14, ATTUNE_EIGHT14, ATTUNE_EIGHT15, ATTUNE_EIGHT16)
#define ATTUNE_N240 ATTUNE_WIDTH(240, 15, ATTUNE_EIGHT15, ATTUNE_EIGHT16, ATTUNE_EIGHT17)
#define ATTUNE_N256 ATTUNE_WIDTH(256, 16, ATTUNE_EIGHT16, ATTUNE_EIGHT17, ATTUNE_EIGHT18)

// All widths, unless a source names those it uses, which saved a tenth of the compile time.
#ifndef ATTUNE_PRODUCTS
#define ATTUNE_PRODUCTS                                                                                             \
  ATTUNE_N16 ATTUNE_N32 ATTUNE_N48 ATTUNE_N64 ATTUNE_N80 ATTUNE_N96 ATTUNE_N112 ATTUNE_N128 ATTUNE_N144 ATTUNE_N160 \
      ATTUNE_N176 ATTUNE_N192 ATTUNE_N208 ATTUNE_N224 ATTUNE_N240 ATTUNE_N256
#endif
ATTUNE_PRODUCTS

}  // namespace attune
