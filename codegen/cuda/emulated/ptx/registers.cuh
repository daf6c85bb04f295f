// codegen/cuda/emulated/ptx/registers.cuh — what a compiler may assume of registers: an emulated kernel has no number
// of them
#pragma once

namespace attune {

inline void pin(unsigned&) {}
inline void pin(int&) {}
inline void pin(float&) {}
inline void pin_with_memory(int&) {}
template <int N>
inline void pin(float (&)[N]) {}
inline float moved(float x) { return x; }
template <int N>
inline void registers_up() {}
template <int N>
inline void registers_down() {}

}  // namespace attune
