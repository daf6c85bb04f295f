// codegen/cuda/emulated/ptx/copy_async.cuh — asynchronous copies of a thread into shared memory
#pragma once

namespace attune {

template <int Bytes>
inline void copy_async(unsigned to, const void* from, int count, Site at = Site::here()) {
  attune_machine->copy_async(to, from, Bytes, count, at);
}
inline void copy_commit(Site at = Site::here()) { attune_machine->copy_commit(at); }
template <int Pending>
inline void copy_wait(Site at = Site::here()) {
  attune_machine->copy_wait(Pending, at);
}

}  // namespace attune
