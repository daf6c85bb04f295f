// codegen/cuda/ptx/copy_async.cuh — asynchronous copies of a thread into shared memory, since sm_80
#pragma once

namespace attune {

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

}  // namespace attune
