// codegen/cuda/ptx/threads.cuh — a thread: its lane, its registers, the barriers at which it meets others, and when its
// kernel starts
#pragma once

namespace attune {

// ---- lanes ----------------------------------------------------------------------------------------------------------

/// %laneid, read anew each time, so that no value computed from it stays in registers between calls.
__device__ inline int lane_asked() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// exit: ends this thread.
[[noreturn]] __device__ inline void leave() {
  asm volatile("exit;");
  __builtin_unreachable();
}

// ---- registers ------------------------------------------------------------------------------------------------------

// Emits no instruction: the compiler assumes that x changes here. So it neither computes later values from x before
// this point, nor keeps values computed from x in extra registers across it.
__device__ inline void pin(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ inline void pin(int& x) { asm volatile("" : "+r"(x)); }
__device__ inline void pin(float& x) { asm volatile("" : "+f"(x)); }
/// Memory counts as changed too, so no earlier read is reused.
__device__ inline void pin_with_memory(int& x) { asm volatile("" : "+r"(x)::"memory"); }
/// The same for an array. Accesses to registers of products under way stay on their side of this point.
template <int N>
__device__ inline void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// mov.b32: a copy of x that the compiler treats as a different value.
__device__ inline float moved(float x) {
  float out;
  asm volatile("mov.b32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// setmaxnreg.inc, by all warps of a warpgroup: waits until each thread can have N registers.
template <int N>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
/// setmaxnreg.dec: each thread keeps N registers, and releases the others.
template <int N>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- barriers in shared memory, which threads and copies complete ---------------------------------------------------

/// mbarrier.init: a barrier of 8 bytes. Each phase ends once this many threads have arrived.
__device__ inline void barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// fence.mbarrier_init: called after all inits, before other threads use the barriers.
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// mbarrier.arrive: threads that wait for the phase see what this thread did before.
__device__ inline void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// mbarrier.arrive.expect_tx: arrives, and makes the phase wait for this many bytes of copies as well.
__device__ inline void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// mbarrier.try_wait until the phase of this parity is over. A new barrier counts phase parity 1 as over.
__device__ inline void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile("{.reg .pred p;\n"
               "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@!p bra again;}\n" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

// ---- the hardware's sixteen barriers of a block, for some of its threads --------------------------------------------

/// bar.sync: waits until `threads` threads of the block, a multiple of 32, have synced or arrived.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// bar.arrive: arrives without waiting.
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- clusters: blocks meet, and read each other's shared memory; before sm_90 no launch has them --------------------

#if __CUDA_ARCH__ >= 900
constexpr bool has_clusters = true;
#else
constexpr bool has_clusters = false;
#endif

/// After it, all threads of the cluster see what each thread wrote before.
__device__ inline void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// The address in the shared memory of the cluster's nth block that corresponds to this one.
__device__ inline unsigned shared_of(unsigned mine, int nth) {
  unsigned out = mine;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(mine), "r"(nth));
#endif
  return out;
}
__device__ inline float4 load_cluster(unsigned from) {
  float4 out{};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "r"(from)
               : "memory");
#endif
  return out;
}
__device__ inline float2 load_cluster_pair(unsigned from) {
  float2 out{};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(out.x), "=f"(out.y) : "r"(from) : "memory");
#endif
  return out;
}

// ---- launches -------------------------------------------------------------------------------------------------------

// A kernel that is launched early starts once every block of the previous kernel has called let_next_start() or ended.
// At least one of its blocks waits for that kernel, if only at the end, because the kernel after it waits for it alone.

/// The next kernel may start, and will wait.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits until the previous kernel has ended and its writes are visible, if this kernel was started early.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attune
