// runtime/ranks/plan/predict.h — predicts the bytes that each schedule moves and its time, on a machine of given rates
#pragma once

#include "runtime/ranks/plan/assignment.h"

namespace attune::runtime::ranks {

using Assignment = Sharding::Assignment;
using Travel = Sharding::Travel;
using How = Sharding::How;

std::string_view name_of(Assignment assignment);
std::string_view name_of(Travel travel);
/// 0.683 ms, 12.3 ms, 6830 ms
std::string milliseconds(double ms);

/// The sizes of a call that determine its predicted times.
struct Sizes {
  std::int64_t batch = 1, kv_batch = 1, q_heads = 1, kv_heads = 1, d = 0, dv = 0, element = 2;  ///< element: bytes
  bool kv_shared() const { return kv_batch != batch; }
};

/// A rank's time line, in ms: when a group of keys or a step travels and when it is computed.
struct Bar {
  double begin = 0, end = 0;
};
struct RankTimes {
  std::vector<Bar> travels, computes;
  double compute = 0;          ///< total compute time, ms
  double own = 0, across = 0;  ///< bytes received from ranks of its node, and its share of the bytes from other nodes
  double received() const { return own + across; }
};

/// One schedule of one layer's forward.
struct Predicted {
  Travel travel = Travel::gather;
  int groups = 1;
  std::string why_not;  ///< if not empty, the schedule cannot be used and the other members are meaningless
  std::vector<RankTimes> ranks;
  double ms = 0;     ///< ms of the slowest rank
  double ideal = 0;  ///< ms, if the work were perfectly balanced and exchanges took no time
};

/// Blocks of keys that each rank's queries need, by (entry, head, rank). There is one table for all entries if they are
/// alike or share their keys, and one for all heads if they are alike.
struct Needs {
  Needs(const Work& work, const Owners& owners, int ranks, bool kv_shared);
  std::size_t entries, heads, ranks;
  std::vector<BlockSet> sets;

  std::size_t tables() const { return entries * heads; }
  const BlockSet& of(std::size_t table, int rank) const { return sets[table * ranks + static_cast<std::size_t>(rank)]; }
  const BlockSet& of(std::int64_t entry, std::int64_t head, int rank) const {
    return of((entries > 1 ? static_cast<std::size_t>(entry) : 0) * heads +
                  (heads > 1 ? static_cast<std::size_t>(head) : 0),
              rank);
  }
};

/// The inputs that all schedules of a call have in common.
struct Setting {
  const Sizes& sizes;
  const Axis &q, &kv;
  int ranks;
  const How& how;
};
/// Predicts a schedule with `groups` groups of key heads (only gather has several).
Predicted predict(const Setting& setting, const Work& work, const Owners& owners, Travel travel, int groups);
/// The numbers of groups that gather may have: divisors of the number of key heads up to 8.
std::vector<int> groups_of(std::int64_t kv_heads);

}  // namespace attune::runtime::ranks
