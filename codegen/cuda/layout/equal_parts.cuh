// codegen/cuda/layout/equal_parts.cuh — into how many equal parts blocks split a tile's keys; the host computes the
// same, so only C++ is used here
#pragma once

#ifdef __CUDACC__
#define ATTUNE_HOST_DEVICE __host__ __device__
#else
#define ATTUNE_HOST_DEVICE
#endif

namespace attune {

/// The least number of warps of a block in a cluster of two that shares a tile, so that its part fits where its keys
/// were.
constexpr int cluster_warps = 4;

/// Steps of a tile: a block's share has at least as many, or the tile stays whole there.
constexpr int least_steps = 4;

/// Into how many equal parts each of so many tiles of `steps` is cut, of multiples of `together` steps: whole ones, or
/// as many as there are blocks for. 0 if that leaves too many blocks idle.
ATTUNE_HOST_DEVICE constexpr int equal_parts(int tiles, int blocks, int steps, int together) {
  const int few = (least_steps + together - 1) / together, can = (steps + together - 1) / together / few,
            most = can > 1 ? can : 1, fit = tiles < blocks ? blocks / tiles : 1, parts = fit < most ? fit : most,
            items = tiles * parts;
  const bool idle = parts < most && items % blocks != 0 &&
                    0.9f * static_cast<float>(((items - 1) / blocks + 1) * blocks) > static_cast<float>(items);
  return idle ? 0 : parts;
}

}  // namespace attune
