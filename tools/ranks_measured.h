// tools/ranks_measured.h — how long a call over ranks takes on this machine's GPUs, beside one GPU alone
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

/// Milliseconds of a call, the slowest rank's: the median of several rounds, and the fastest.
struct MeasuredTimes {
  double median = 0, best = 0;
};

/// One GPU alone makes the whole call.
MeasuredTimes measure_alone(const Attention& attention, const Forward& whole, const MeasuredOptions& options);

/// Makes the Sharding of one rank.
using ShardingOf = std::function<Sharding(const Transport& with)>;
/// Every rank a thread with a GPU of its own, or in turns where there are fewer.
MeasuredTimes measure_ranks(const Attention& attention, const Forward& whole, const ShardingOf& sharding_of,
                            const MeasuredOptions& options);

}  // namespace attune::tools
