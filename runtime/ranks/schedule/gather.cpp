// runtime/ranks/schedule/gather.cpp — keys come to queries: by groups of heads, or of one rank after another in a ring
#include "runtime/ranks/schedule/keys.h"
#include "runtime/ranks/schedule/schedule.h"

namespace attune::runtime::ranks {
namespace {

/// The call's results and queries of some key heads.
Forward slice_of(const Rank& rank, const Forward& call, const KeyHeads& heads) {
  const std::int64_t group = rank.problem().group;
  Forward part = call;
  for (Tensor* t : {&part.q, &part.o}) *t = Rank::heads_of(rank.rows(*t), heads.first * group, heads.count() * group);
  for (Tensor* t : {&part.lse, &part.max})
    *t = Rank::heads_of(rank.numbers(*t), heads.first * group, heads.count() * group);
  return part;
}

}  // namespace

void gather(const Rank& rank, Carrier& carrier, const Forward& call) {
  const std::int64_t groups = carrier.groups(rank.layer().chosen().groups);
  KeyTraffic traffic(rank, carrier, rank.rows(call.k), rank.rows(call.v), by_groups(rank, groups));
  WorkspaceLayout space;
  traffic.lay_out(space);
  traffic.place(carrier.begin(space, groups));
  carrier.start();
  traffic.start();
  for (std::int64_t g = 0; g < groups; ++g) {
    Keys& keys = traffic.next(as_size(g));
    carrier.run(slice_of(rank, call, keys.wanted.heads), {.keys = keys, .step = g, .steps = groups});
    keys.used = carrier.mark(Lane::launches);
  }
  carrier.join();
}

}  // namespace attune::runtime::ranks
