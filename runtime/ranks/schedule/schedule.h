// runtime/ranks/schedule/schedule.h — each schedule of a call over ranks, once, whatever carries it out
#pragma once

#include "runtime/ranks/carry/carrier.h"

namespace attune::runtime::ranks {

/// A rank's part of a call, by the schedule of its plan.
void run(const Rank& rank, Carrier& carrier);

/// The keys that the rank's queries need come to it, by groups of heads.
void gather(const Rank& rank, Carrier& carrier, const Forward& call);
/// q, k and v go to the ranks that compute their heads, and o back: all-to-all.
void heads(const Rank& rank, Carrier& carrier, const Forward& call);
/// Keys of one rank after the other, whose results are merged.
void ring(const Rank& rank, Carrier& carrier, const Forward& call);
/// Queries go to all keys, and results back, where they are merged.
void decode(const Rank& rank, Carrier& carrier, const Forward& call);
/// Keys come again, by groups of heads, and their gradients go back to their owners, who add them up in the order of
/// ranks.
void give_back(const Rank& rank, Carrier& carrier, const Backward& call);

}  // namespace attune::runtime::ranks
