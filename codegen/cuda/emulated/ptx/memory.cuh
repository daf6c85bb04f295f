// codegen/cuda/emulated/ptx/memory.cuh — accesses to shared and global memory: of threads and warps, which the compiler
// must neither split nor reorder, and of TMA
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

// ---- shared memory, by its own 32-bit addresses ---------------------------------------------------------------------

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

// ---- global memory --------------------------------------------------------------------------------------------------

inline void global_put(void* at, uint4 x) { *static_cast<uint4*>(at) = x; }
inline uint4 global_get_if(bool exists, const void* at) { return exists ? *static_cast<const uint4*>(at) : uint4{}; }
inline void global_put(void* at, unsigned short x) { *static_cast<unsigned short*>(at) = x; }

/// What is read afterwards is not a number.
inline void global_discard(void* at) { __builtin_memset(at, 0xff, 128); }

/// Runs other threads first, because the caller may wait for what they write.
inline unsigned global_acquire(const unsigned* at, Site from = Site::here()) {
  attune_machine->let_others_run("ld.acquire", at, from);
  return *at;
}
inline void global_release(unsigned* at, unsigned x) { *at = x; }

// ---- asynchronous copies of a thread into shared memory, since sm_80 ------------------------------------------------

template <int Bytes>
inline void copy_async(unsigned to, const void* from, int count, Site at = Site::here()) {
  attune_machine->copy_async(to, from, Bytes, count, at);
}
inline void copy_commit(Site at = Site::here()) { attune_machine->copy_commit(at); }
template <int Pending>
inline void copy_wait(Site at = Site::here()) {
  attune_machine->copy_wait(Pending, at);
}

// ---- blocks of 8 rows by 16 bytes between shared memory and a warp's registers, as operands of products have them ---

/// A lane's part: the row that it names, on the host, and its words.
struct BlockRows {
  void* row;
  unsigned* words;
};

/// Word i of thread 4 r + c is 32-bit word c of row r of block i; transposed, halves 2 c and 2 c + 1 of column r.
template <int Blocks, bool Transposed, bool Store>
inline void move_blocks(void* const* parts, unsigned) {
  const auto part = [&](int lane) { return static_cast<const BlockRows*>(parts[lane]); };
  for (int i = 0; i < Blocks; ++i)
    for (int lane = 0; lane < 32; ++lane) {
      if (!part(lane)) continue;
      unsigned& word = part(lane)->words[i];
      const auto move = [](auto& register_, auto& shared) {
        if constexpr (Store)
          shared = register_;
        else
          register_ = shared;
      };
      if constexpr (!Transposed) {
        move(word, static_cast<unsigned*>(part(8 * i + lane / 4)->row)[lane % 4]);
      } else {
        unsigned short halves[2] = {static_cast<unsigned short>(word), static_cast<unsigned short>(word >> 16)};
        for (int j = 0; j < 2; ++j)
          move(halves[j], static_cast<unsigned short*>(part(8 * i + 2 * (lane % 4) + j)->row)[lane / 4]);
        if constexpr (!Store) word = halves[0] | static_cast<unsigned>(halves[1]) << 16;
      }
    }
}
template <int Blocks, bool Transposed, bool Store>
inline void together_blocks(const char* what, unsigned* words, unsigned at, Site from) {
  using namespace emulated;
  BlockRows mine{nullptr, words};
  if (attune_machine->now->lane < 8 * Blocks)
    mine.row = attune_machine->shared(at, 16, Store ? Touch::write : Touch::read, from);
  attune_machine->together(~0u, what, &move_blocks<Blocks, Transposed, Store>, &mine, from);
}

inline void load_blocks(unsigned* x, unsigned at, Site from = Site::here()) {
  together_blocks<4, false, false>("ldmatrix", x, at, from);
}
inline void load_blocks_transposed(unsigned (&x)[4], unsigned at, Site from = Site::here()) {
  together_blocks<4, true, false>("ldmatrix.trans", x, at, from);
}
inline void load_two_blocks_transposed(unsigned (&x)[2], unsigned at, Site from = Site::here()) {
  together_blocks<2, true, false>("ldmatrix.x2.trans", x, at, from);
}
inline void store_blocks(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d, Site from = Site::here()) {
  unsigned words[4] = {a, b, c, d};
  together_blocks<4, false, true>("stmatrix", words, at, from);
}
inline void store_blocks_transposed(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d,
                                    Site from = Site::here()) {
  unsigned words[4] = {a, b, c, d};
  together_blocks<4, true, true>("stmatrix.trans", words, at, from);
}

// ---- TMA: boxes of tensors, and bytes in a row, between global and shared memory ------------------------------------

/// The last lane, which no other condition that stands for a warp names.
inline bool elected(Site at = Site::here()) {
  attune_machine->together(
      ~0u, "elect.sync", [](void* const*, unsigned) {}, nullptr, at);
  return attune_machine->now->lane == 31;
}

inline void load_box(unsigned into, const TensorMap& map, unsigned barrier, int d, int position, int head, int batch,
                     Site at = Site::here()) {
  const emulated::Box box{&map, {d, position, head, batch}, 4};
  attune_machine->load_box(into, &box, barrier, at);
}
inline emulated::Box box_of(const TensorMap& map, HeadsBox of) {
  return {&map, {of.d, of.head, of.position, of.kv_head, of.batch}, 5};
}
inline void load_box_of_heads(unsigned into, const TensorMap& map, unsigned barrier, HeadsBox of,
                              Site at = Site::here()) {
  const emulated::Box box = box_of(map, of);
  attune_machine->load_box(into, &box, barrier, at);
}
inline void store_box(const TensorMap& map, unsigned from, int d, int position, int head, int batch,
                      Site at = Site::here()) {
  const emulated::Box box{&map, {d, position, head, batch}, 4};
  attune_machine->store_box(&box, from, at);
}
inline void store_box_of_heads(const TensorMap& map, unsigned from, HeadsBox of, Site at = Site::here()) {
  const emulated::Box box = box_of(map, of);
  attune_machine->store_box(&box, from, at);
}
inline void load_bulk(unsigned into, const void* from, unsigned bytes, unsigned barrier, Site at = Site::here()) {
  attune_machine->load_bulk(into, from, bytes, barrier, at);
}
inline void store_bulk(void* to, unsigned from, unsigned bytes, Site at = Site::here()) {
  attune_machine->store_bulk(to, from, bytes, false, at);
}
inline void add_bulk(void* to, unsigned from, unsigned bytes, Site at = Site::here()) {
  attune_machine->store_bulk(to, from, bytes, true, at);
}
inline void store_commit(Site at = Site::here()) { attune_machine->store_commit(at); }
inline void store_wait_read(Site at = Site::here()) { attune_machine->store_wait(true, at); }
inline void store_wait(Site at = Site::here()) { attune_machine->store_wait(false, at); }
inline void proxy_fence(Site at = Site::here()) { attune_machine->proxy_fence(false, at); }
inline void copy_fence(Site at = Site::here()) { attune_machine->proxy_fence(true, at); }

}  // namespace attune
