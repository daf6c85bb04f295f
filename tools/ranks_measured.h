// tools/ranks_measured.h — measures a call over ranks on this machine's GPUs, and on one GPU
#pragma once

#include <functional>
#include <vector>

#include <attune/attention.h>

namespace attune::tools {

struct MeasuredOptions {
  int ranks = 2;
  bool by_nccl = false;   ///< else by copies between the GPUs of this process
  bool backward = false;  ///< the forward, then the backward
  double seconds = 1;     ///< for each of the two
};

/// Milliseconds of a call on the slowest rank: the median and the fastest of several rounds.
struct MeasuredTimes {
  double median = 0, best = 0;
};

/// Measures the whole call on one GPU.
MeasuredTimes measure_alone(const Attention& attention, const Forward& whole, const MeasuredOptions& options);

/// Makes the Sharding of one rank.
using ShardingOf = std::function<Sharding(const Transport& with)>;
/// Measures the call over ranks. Each rank is a thread with its own GPU; with fewer GPUs, ranks share them in turns.
MeasuredTimes measure_ranks(const Attention& attention, const Forward& whole, const ShardingOf& sharding_of,
                            const MeasuredOptions& options);

}  // namespace attune::tools
