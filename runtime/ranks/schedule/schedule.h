// runtime/ranks/schedule/schedule.h — the schedules of a call over ranks, written once for all carriers
#pragma once

#include "runtime/ranks/carry/carrier.h"

namespace attune::runtime::ranks {

/// Runs a rank's part of a call, by the schedule of its plan.
void run(const Rank& rank, Carrier& carrier);

/// The rank receives the keys that its queries need, one group of heads at a time.
void gather(const Rank& rank, Carrier& carrier, const Forward& call);
/// q, k and v go to the ranks that compute their heads, and o back: all-to-all.
void heads(const Rank& rank, Carrier& carrier, const Forward& call);
/// The rank receives the keys of one rank after another, and merges the results.
void ring(const Rank& rank, Carrier& carrier, const Forward& call);
/// Queries go to the owners of all keys; results come back and are merged.
void decode(const Rank& rank, Carrier& carrier, const Forward& call);
/// The rank receives keys again, by groups of heads. Their gradients go back to their owners, which add them up in the
/// order of ranks.
void give_back(const Rank& rank, Carrier& carrier, const Backward& call);

}  // namespace attune::runtime::ranks
