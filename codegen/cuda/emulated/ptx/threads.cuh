// codegen/cuda/emulated/ptx/threads.cuh — a thread: its lane, its registers, the barriers at which it meets others, and
// when its kernel starts
#pragma once

namespace attune {

// ---- lanes ----------------------------------------------------------------------------------------------------------

inline int lane_asked() { return attune_machine->now->lane; }
[[noreturn]] inline void leave() {
  attune_machine->leave();
  __builtin_unreachable();
}

// ---- registers ------------------------------------------------------------------------------------------------------

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

// ---- barriers in shared memory, which threads and copies complete ---------------------------------------------------

inline void barrier_init(unsigned barrier, unsigned arrivals, Site at = Site::here()) {
  attune_machine->barrier_init(barrier, arrivals, at);
}
inline void barrier_init_done() {}
inline void barrier_arrive(unsigned barrier, Site at = Site::here()) { attune_machine->barrier_arrive(barrier, 0, at); }
inline void barrier_expect(unsigned barrier, unsigned bytes, Site at = Site::here()) {
  attune_machine->barrier_arrive(barrier, bytes, at);
}
inline void barrier_wait(unsigned barrier, unsigned parity, Site at = Site::here()) {
  attune_machine->barrier_wait(barrier, parity, at);
}

// ---- the hardware's sixteen barriers of a block, for some of its threads --------------------------------------------

inline void named_sync(int id, int threads, Site at = Site::here()) {
  attune_machine->meet(id, threads, true, false, at);
}
inline void named_arrive(int id, int threads, Site at = Site::here()) {
  attune_machine->meet(id, threads, false, false, at);
}

// ---- clusters: blocks meet, and read each other's shared memory; before sm_90 no launch has them --------------------

constexpr bool has_clusters = __CUDA_ARCH__ >= 900;

inline void meet_cluster(Site at = Site::here()) {
  if constexpr (has_clusters) {
    __syncwarp(~0u, at);
    attune_machine->meet_cluster(at);
  }
}
inline unsigned shared_of(unsigned mine, int nth, Site at = Site::here()) {
  return has_clusters ? attune_machine->address_in_cluster(mine, nth, at) : mine;
}
inline float4 load_cluster(unsigned from, Site at = Site::here()) {
  return has_clusters ? *static_cast<const float4*>(attune_machine->cluster_shared(from, 16, at)) : float4{};
}
inline float2 load_cluster_pair(unsigned from, Site at = Site::here()) {
  return has_clusters ? *static_cast<const float2*>(attune_machine->cluster_shared(from, 8, at)) : float2{};
}

// ---- launches -------------------------------------------------------------------------------------------------------

inline void let_next_start(Site at = Site::here()) {
  if constexpr (__CUDA_ARCH__ >= 900) attune_machine->let_next_start(at);
}
/// Takes no place in the source, because it is passed on as a function.
inline void wait_for_kernel_before() {
  if constexpr (__CUDA_ARCH__ >= 900) attune_machine->wait_for_kernel_before({});
}

}  // namespace attune
