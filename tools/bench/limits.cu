// tools/bench/limits.cu — measures a Hopper card's limits of memory, reduce-adds and hand-overs, by kernels that do
// nothing else
//
// nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -o limits tools/bench/limits.cu && ./limits
// Each figure is the median of launches timed by the device's events. docs/kernels/limits.md has an H200's figures.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include <cuda_runtime.h>

namespace {

void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(result));
  std::exit(1);
}

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ void expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ bool is_complete(unsigned barrier, int phase) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(phase)
               : "memory");
  return done;
}
__device__ void copy_in(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ void reduce_add(void* to, unsigned from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;");
}
/// Fills shared memory with ones that TMA may read.
__device__ void fill(char* memory, int bytes) {
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) reinterpret_cast<float*>(memory)[i] = 1;
  asm volatile("fence.proxy.async.shared::cta;");
  __syncthreads();
}

/// Each block reads one range, with `stages` copies of `chunk` bytes in flight.
__global__ void read(const char* data, long long bytes, int chunk, int stages) {
  extern __shared__ __align__(128) char memory[];
  __shared__ __align__(8) unsigned long long barriers[32];
  if (threadIdx.x != 0) return;
  const long long stretch = bytes / gridDim.x / chunk * chunk;
  const char* from = data + stretch * blockIdx.x;
  const int chunks = static_cast<int>(stretch / chunk);
  for (int i = 0; i < stages; ++i)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barriers[i])));
  asm volatile("fence.mbarrier_init.release.cluster;");
  const auto start = [&](int i) {
    const unsigned barrier = shared_address(&barriers[i % stages]);
    expect(barrier, chunk);
    copy_in(shared_address(memory) + i % stages * chunk, from + static_cast<long long>(i) * chunk, chunk, barrier);
  };
  for (int i = 0; i < min(stages, chunks); ++i) start(i);
  for (int i = 0; i < chunks; ++i) {
    while (!is_complete(shared_address(&barriers[i % stages]), i / stages & 1)) {
    }
    if (i + stages < chunks) start(i + stages);
  }
}

/// Adds `bytes` from shared memory, `rounds` times, to places that each block visits in sequence.
__global__ void add(char* sums, long long area, int bytes, int rounds) {
  extern __shared__ __align__(128) char memory[];
  fill(memory, bytes);
  if (threadIdx.x != 0) return;
  const long long places = area / bytes, first = places * blockIdx.x / gridDim.x;
  for (int i = 0; i < rounds; ++i) {
    reduce_add(sums + (first + i) % places * bytes, shared_address(memory), bytes);
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

/// Each block waits for its turn at each tile, adds `bytes` to it if there are any, and hands over to the next.
__global__ void take_turns(char* sums, int* turns, int tiles, int bytes) {
  extern __shared__ __align__(128) char memory[];
  fill(memory, bytes);
  if (threadIdx.x != 0) return;
  for (int tile = 0; tile < tiles; ++tile) {
    int turn;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(turn) : "l"(turns + tile) : "memory");
    while (turn != static_cast<int>(blockIdx.x));
    if (bytes) {
      asm volatile("fence.proxy.async;" ::: "memory");
      reduce_add(sums + static_cast<long long>(tile) * bytes, shared_address(memory), bytes);
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
      asm volatile("fence.proxy.async;" ::: "memory");
    }
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turns + tile), "r"(static_cast<int>(blockIdx.x) + 1)
                 : "memory");
  }
}

/// Seconds of one launch.
template <class F>
double median(F launch) {
  constexpr int rounds = 9;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < rounds + 2; ++i) {
    check(cudaEventRecord(begin));
    launch();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3;
}

template <class Kernel>
void allow_shared(Kernel kernel) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
}

}  // namespace

int main() {
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0));
  const int blocks = card.multiProcessorCount;
  std::printf("%s, %d multiprocessors\n", card.name, blocks);
  constexpr long long mb = 1 << 20, most = 2048 * mb;
  char* data = nullptr;
  check(cudaMalloc(&data, most));
  std::vector<unsigned> random(mb);
  for (unsigned& x : random) x = static_cast<unsigned>(std::rand());
  for (long long at = 0; at < most; at += 4 * mb)
    check(cudaMemcpy(data + at, random.data(), 4 * mb, cudaMemcpyHostToDevice));

  allow_shared(read);
  constexpr int chunk = 16 << 10;
  for (const long long bytes : {16 * mb, 512 * mb, most})
    for (const int of : {64, 96, blocks})
      for (const int kb : {32, 64, 128, 192}) {
        const double seconds = median([&] { read<<<of, 32, kb << 10>>>(data, bytes, chunk, (kb << 10) / chunk); });
        std::printf("read %4lld MB, %3d blocks, %3d KB in flight each: %6.1f us, %4.0f GB/s\n", bytes / mb, of, kb,
                    seconds * 1e6, static_cast<double>(bytes) / seconds * 1e-9);
      }

  allow_shared(add);
  check(cudaMemset(data, 0, most));
  for (const long long area : {16 * mb, 32 * mb, 128 * mb, 1024 * mb})
    for (const int bytes : {8 << 10, 32 << 10}) {
      const int rounds = (400 * 32 << 10) / bytes;
      const double seconds = median([&] { add<<<blocks, 32, bytes>>>(data, area, bytes, rounds); });
      const double rate = static_cast<double>(rounds) * bytes / seconds * 1e-9;
      std::printf("reduce-add %2d KB into %4lld MB: %4.1f GB/s a multiprocessor, %4.2f us each\n", bytes >> 10,
                  area / mb, rate, seconds / rounds * 1e6);
    }

  allow_shared(take_turns);
  int* turns = nullptr;
  check(cudaMalloc(&turns, 64 * sizeof(int)));
  for (const int bytes : {0, 16 << 10, 32 << 10})
    for (const int tiles : {1, 64}) {
      const double seconds = median([&] {
        check(cudaMemsetAsync(turns, 0, 64 * sizeof(int)));
        take_turns<<<blocks, 32, bytes>>>(data, turns, tiles, bytes);
      });
      std::printf("turns of %d blocks at %2d tiles, %2d KB added: %4.2f us a hand-over\n", blocks, tiles, bytes >> 10,
                  seconds / (blocks + tiles - 1) * 1e6);
    }
}
