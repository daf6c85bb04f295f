// codegen/cuda/contract/schedule.cuh — numbers of a schedule that the host computes too, so only C++ is used here
#pragma once

#ifdef __CUDACC__
#define ATTUNE_HOST_DEVICE __host__ __device__
#else
#define ATTUNE_HOST_DEVICE
#endif

namespace attune {

// ---- parts of a tile's keys -----------------------------------------------------------------------------------------

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

// ---- items of a backward --------------------------------------------------------------------------------------------

/// Queries of a tile whose dQ is computed transposed ("turned"): they are no multiple of the 64 rows of a product.
constexpr int turned_queries = 80;

/// The number of steps, or of items of one step, that start between two items of one set of heads. Blocks then take
/// these items some 2 us apart, the time in which a tile of `m` queries passes from one to the next. docs/kernels has
/// results with other numbers; bits depend on the number. `masked`: the host does not know how short items are under a
/// mask, so this is a lower bound, which the kernel raises after counting steps.
ATTUNE_HOST_DEVICE constexpr int items_apart(int m, bool masked) { return m < 128 ? 128 : masked ? 512 : 256; }

}  // namespace attune
