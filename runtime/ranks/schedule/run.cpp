// runtime/ranks/schedule/run.cpp — a rank's part of a call, once all ranks agree on it
#include "runtime/ranks/plan/digester.h"
#include "runtime/ranks/schedule/schedule.h"

namespace attune::runtime::ranks {
namespace {

/// The digest of the choices that all ranks must make alike.
ir::Digest digest_of(const Rank& rank, const Carrier& carrier) {
  const Call& call = rank.call();
  Digester d;
  d.add(std::int64_t{call.is_forward()});
  d.add(static_cast<std::int64_t>(carrier.places()));
  d.add(call.mod.digest);
  d.add(std::int64_t{carrier.values_within_keys()});
  if (call.is_forward()) {
    for (const Tensor* t : {&call.forward().o, &call.forward().lse, &call.forward().max})
      d.add(t->given() ? static_cast<std::int64_t>(t->dtype) : std::int64_t{-1});
    return d.digest();
  }
  const Backward& backward = call.backward();
  d.add(std::int64_t{backward.dk.given()});
  d.add(std::int64_t{backward.dv.given()});
  d.add(std::int64_t{backward.sum_captured});
  for (const Backward::Captured& one : backward.captured) d.add(one.of.size());
  return d.digest();
}

}  // namespace

void run(const Rank& rank, Carrier& carrier) {
  rank.agree(digest_of(rank, carrier));
  if (!rank.call().is_forward()) {
    give_back(rank, carrier, rank.call().backward());
    return carrier.report(name_of(Travel::gather));
  }
  const Forward& call = rank.call().forward();
  const Travel travel = carrier.takes(rank.layer().chosen().travel);
  switch (travel) {
    case Travel::best:
    case Travel::gather: gather(rank, carrier, call); break;
    case Travel::heads: heads(rank, carrier, call); break;
    case Travel::ring: ring(rank, carrier, call); break;
    case Travel::decode: decode(rank, carrier, call); break;
  }
  carrier.report(name_of(travel));
}

}  // namespace attune::runtime::ranks
