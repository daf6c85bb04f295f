// runtime/ranks/schedule/gather.cpp — keys come to queries: by groups of heads, or of one rank after another in a ring,
// whose results are merged
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

void ring(const Rank& rank, Carrier& carrier, const Forward& call) {
  const int count = rank.count();
  std::vector<Wanted> steps;
  for (int step = 0; step < count; ++step) steps.push_back({.heads = rank.all_heads(), .step = step});
  KeyTraffic traffic(rank, carrier, rank.rows(call.k), rank.rows(call.v), std::move(steps));
  WorkspaceLayout space;
  traffic.lay_out(space);
  const std::int64_t heads = rank.problem().q_heads, rows = rank.q_rows(), all = rank.q_entries() * heads * rows,
                     dv = rank.problem().dv;
  const auto number = static_cast<std::int64_t>(size_of(carrier.number()));
  const auto o = space.take<std::byte>(all * dv * std::int64_t{sizeof(float)}),
             lse = space.take<std::byte>(all * number), max = space.take<std::byte>(all * number);
  std::byte* const memory = carrier.begin(space, 0);
  Partial sum{.o = rank.placed(o.in(memory), DType::f32, rank.q_entries(), heads, rows, dv),
              .lse = rank.placed_numbers(lse.in(memory), carrier.number(), heads, rows),
              .max = rank.placed_numbers(max.in(memory), carrier.number(), heads, rows)};
  traffic.place(memory);
  carrier.clear(sum);
  carrier.start();
  traffic.start();
  for (int step = 0; step < count; ++step) {
    Keys& keys = traffic.next(as_size(step));
    carrier.attend(call, {.keys = keys, .step = step, .steps = count}, sum);
    keys.used = carrier.mark(Lane::launches);
  }
  carrier.join();
  for (const auto& [from, to] : {std::pair{&sum.o, &call.o}, {&sum.lse, &call.lse}, {&sum.max, &call.max}})
    if (to->given()) carrier.copy(*from, *to);
  carrier.ended();
}

}  // namespace attune::runtime::ranks
