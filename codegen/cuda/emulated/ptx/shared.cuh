// codegen/cuda/emulated/ptx/shared.cuh — loads from and stores to the block's shared memory
#pragma once

namespace attune {

inline unsigned shared_address(const void* p, Site at = Site::here()) { return attune_machine->shared_address(p, at); }

template <class T, int n>
struct alignas(sizeof(T) * n) SharedWords {
  T x[n];
};
template <class T, int n>
inline void put_words(unsigned at, const SharedWords<T, n>& x, Site from) {
  *static_cast<SharedWords<T, n>*>(attune_machine->shared(at, sizeof x, emulated::Touch::write, from)) = x;
}
template <class T>
inline T get_words(unsigned at, Site from) {
  return *static_cast<const T*>(attune_machine->shared(at, sizeof(T), emulated::Touch::read, from));
}

inline void shared_put(unsigned at, unsigned short x, Site from = Site::here()) {
  put_words<unsigned short, 1>(at, {x}, from);
}
inline void shared_put(unsigned at, unsigned x, Site from = Site::here()) { put_words<unsigned, 1>(at, {x}, from); }
inline void shared_put(unsigned at, int x, Site from = Site::here()) { put_words<int, 1>(at, {x}, from); }
inline void shared_put(unsigned at, unsigned x, unsigned y, Site from = Site::here()) {
  put_words<unsigned, 2>(at, {x, y}, from);
}
inline void shared_put(unsigned at, float x, float y, Site from = Site::here()) {
  put_words<float, 2>(at, {x, y}, from);
}
inline void shared_put(unsigned at, unsigned x, unsigned y, unsigned z, unsigned w, Site from = Site::here()) {
  put_words<unsigned, 4>(at, {x, y, z, w}, from);
}
inline void shared_put(unsigned at, float x, float y, float z, float w, Site from = Site::here()) {
  put_words<float, 4>(at, {x, y, z, w}, from);
}
inline unsigned short shared_get_half(unsigned at, Site from = Site::here()) {
  return get_words<unsigned short>(at, from);
}
inline int shared_get(unsigned at, Site from = Site::here()) { return get_words<int>(at, from); }
inline float2 shared_get2(unsigned at, Site from = Site::here()) { return get_words<float2>(at, from); }
inline float4 shared_get4(unsigned at, Site from = Site::here()) { return get_words<float4>(at, from); }
inline uint4 shared_get_words(unsigned at, Site from = Site::here()) { return get_words<uint4>(at, from); }

inline void shared_put_flag(unsigned at, int x, Site from = Site::here()) {
  *static_cast<int*>(attune_machine->shared(at, sizeof x, emulated::Touch::flag, from)) = x;
}
inline int shared_get_flag(unsigned at, Site from = Site::here()) {
  return *static_cast<const int*>(attune_machine->shared(at, sizeof(int), emulated::Touch::flag, from));
}

}  // namespace attune
