// codegen/cuda/contract/equal_parts.cuh — the number of equal parts into which blocks split a tile's keys; the host
// computes the same number, so only C++ is used here
#pragma once

#ifdef __CUDACC__
#define ATTUNE_HOST_DEVICE __host__ __device__
#else
#define ATTUNE_HOST_DEVICE
#endif

namespace attune {

/// The smallest number of warps per block with which two blocks of a cluster may share a tile: a block's part has to
/// fit into the memory of its keys.
constexpr int cluster_warps = 4;

/// The smallest share of a tile, in steps. A tile is not split into smaller shares.
constexpr int least_steps = 4;

/// The number of equal parts into which each of `tiles` tiles of `steps` steps is split, in multiples of `together`
/// steps: max(1, blocks / tiles), but no part is shorter than least_steps. 0 if the blocks would be busy for less than
/// 90 % of their rounds and more parts are possible: then equal ranges of all steps are better.
ATTUNE_HOST_DEVICE constexpr int equal_parts(int tiles, int blocks, int steps, int together) {
  const int few = (least_steps + together - 1) / together, can = (steps + together - 1) / together / few,
            most = can > 1 ? can : 1, fit = tiles < blocks ? blocks / tiles : 1, parts = fit < most ? fit : most,
            items = tiles * parts;
  const bool idle = parts < most && items % blocks != 0 &&
                    0.9f * static_cast<float>(((items - 1) / blocks + 1) * blocks) > static_cast<float>(items);
  return idle ? 0 : parts;
}

}  // namespace attune
