// codegen/cuda/emulated/ptx/wgmma.cuh — Hopper's matrix products, of a warpgroup
#pragma once

#include "codegen/cuda/contract/types.cuh"
#include "codegen/cuda/ptx/mma.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

inline unsigned long long descriptor(unsigned address, unsigned across = 16) {
  return (1ull << 62) | (static_cast<unsigned long long>(1024 >> 4) << 32) |
         (static_cast<unsigned long long>(across >> 4) << 16) | ((address & 0x3ffff) >> 4);
}
inline void wgmma_fence(Site at = Site::here()) { attune_machine->group_fence(at); }
inline void wgmma_commit(Site at = Site::here()) { attune_machine->group_commit(at); }
template <int N>
inline void wgmma_wait(Site at = Site::here()) {
  attune_machine->group_wait(N, at);
}
template <int N, class A, class B = float, class C = float>
inline void wgmma_wait(const A&, const B& = {}, const C& = {}, Site at = Site::here()) {
  attune_machine->group_wait(N, at);
}

enum class Major { k, n };
constexpr int k_step(Major major) { return (major == Major::k ? 32 : 16 * chunk_bytes) >> 4; }
constexpr int transposed(Major major) { return major != Major::k; }

template <int N, class T>
struct Product {
  template <Major x_major, Major y_major>
  static void ss(float (&acc)[N / 2], unsigned long long x, unsigned long long y, int add, Site at = Site::here()) {
    of({acc, nullptr, x, y, N, 1, 0, 0, transposed(x_major) != 0, transposed(y_major) != 0, add != 0, operands_of<T>},
       at);
  }
  template <Major x_major, Major y_major>
  static void ss4(float (&acc)[N / 2], unsigned long long x, unsigned long long y, int add, Site at = Site::here()) {
    of({acc, nullptr, x, y, N, 4, k_step(x_major), k_step(y_major), transposed(x_major) != 0, transposed(y_major) != 0,
        add != 0, operands_of<T>},
       at);
  }
  template <Major x_major, Major y_major>
  static void set4(float (&acc)[N / 2], unsigned long long x, unsigned long long y, Site at = Site::here()) {
    ss4<x_major, y_major>(acc, x, y, 0, at);
  }
  template <Major y_major>
  static void rs(float (&acc)[N / 2], const unsigned* x, unsigned long long y, int add, Site at = Site::here()) {
    of({acc, x, 0, y, N, 1, 0, 0, false, transposed(y_major) != 0, add != 0, operands_of<T>}, at);
  }
  template <Major y_major>
  static void rs4(float (&acc)[N / 2], const unsigned* x, unsigned long long y, int add, Site at = Site::here()) {
    of({acc, x, 0, y, N, 4, 0, k_step(y_major), false, transposed(y_major) != 0, add != 0, operands_of<T>}, at);
  }

 private:
  static void of(const emulated::GroupProduct& one, Site at) { attune_machine->multiply_group(&one, at); }
};

}  // namespace attune
