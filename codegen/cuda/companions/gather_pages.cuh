// codegen/cuda/companions/gather_pages.cuh — copies keys and values from pages of few rows to where they follow one
// another, before a kernel that loads tiles of keys by TMA
//
// TMA loads a box in some 7 ns, and a tile has as many boxes as pages. Blocks: (gather_rows keys, key head, batch
// entry). Rows of missing pages become zeros; rows after an entry's last key are not written.
#pragma once

#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

__global__ void __launch_bounds__(gather_threads) gather_pages(const __grid_constant__ GatherArgs args) {
  __shared__ Pages::At places[gather_rows];
  // The next kernel may start; it waits for the end of this one.
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * gather_rows,
            head = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z), heads = static_cast<int>(gridDim.y),
            count = min(kv_length(args, b, args.kv_len) - first, gather_rows);
  const Pages pages(args.page_table, b);
  if (thread < count) places[thread] = pages.at(first + thread);
  __syncthreads();
  const auto copy = [&](const Strided& from, uint4* to, int units, int bytes) {
    to += (static_cast<long long>(b * heads + head) * args.kv_len + first) * units;
    for (int i = thread; i < count * units; i += gather_threads) {
      const int row = i / units, unit = i - row * units;
      const Pages::At at = places[row];
      const char* const line = static_cast<const char*>(from.data) +
                               (at.page * from.batch + head * from.head + at.row * from.position) * bytes;
      to[i] = pages.exists(at.page) ? reinterpret_cast<const uint4*>(line)[unit] : uint4{};
    }
  };
  copy(args.k, static_cast<uint4*>(args.k_to), args.k_units, args.element);
  copy(args.v, static_cast<uint4*>(args.v_to), args.v_units, args.element);
}

}  // namespace attune
