// codegen/cuda/emulated/ptx/global.cuh — accesses to global memory
#pragma once

namespace attune {

inline void global_put(void* at, uint4 x) { *static_cast<uint4*>(at) = x; }
inline void global_put(void* at, unsigned short x) { *static_cast<unsigned short*>(at) = x; }

/// What is read afterwards is not a number.
inline void global_discard(void* at) { __builtin_memset(at, 0xff, 128); }

/// Runs other threads first, because the caller may wait for what they write.
inline unsigned global_acquire(const unsigned* at, Site from = Site::here()) {
  attune_machine->let_others_run("ld.acquire", at, from);
  return *at;
}
inline void global_release(unsigned* at, unsigned x) { *at = x; }

}  // namespace attune
