// runtime/ranks/schedule/rank.cpp — a rank's part of a call, independent of the engine: its queries, the keys that it
// needs
#include "runtime/ranks/schedule/rank.h"

#include <mutex>

#include <attune/error.h>

#include "runtime/machine/tensor.h"
#include "runtime/ranks/plan/digest.h"
#include "runtime/ranks/plan/local.h"
#include "runtime/ranks/schedule/schedule.h"
#include "runtime/ranks/transport/transport.h"

namespace attune::runtime::ranks {

Rank::Rank(const detail::Ranks& ranks, const Call& of)
    : ranks_(ranks), of_(of), me_(ranks.transport.rank), layer_(layer_of(ranks, of.mod, of.args)),
      kv_local_(local_rows(ranks.kv, ranks.owners().kv)), q_local_(local_rows(ranks.q, ranks.owners().q)) {
  if (ranks.count() > 1 && !ranks.transport.exchange)
    throw Error("sharding-call", "this Sharding is for planning", {}, "its transport exchanges nothing",
                "make it with a transport: attune::threads, or one of your own");
}

std::vector<KeyRange> Rank::key_ranges(int rank, const Wanted& wanted) const {
  const std::vector<int>& owners = ranks_.owners().kv;
  const int from = wanted.step ? (rank + *wanted.step) % count() : -1;
  const auto has = [&](std::int64_t e, std::int64_t h, std::size_t g) {
    return (from < 0 || owners[g] == from) && (wanted.all || layer_.needs->of(e, h, rank).has(g));
  };
  const bool alike = heads_are_alike() && wanted.heads.count() > 0;
  const std::int64_t last = alike ? wanted.heads.first + 1 : wanted.heads.last,
                     heads = alike ? wanted.heads.count() : 1;
  std::vector<KeyRange> out;
  std::int64_t before = 0;
  for (std::int64_t e = 0; e < key_entries(); ++e)
    for (std::int64_t h = wanted.heads.first; h < last; ++h)
      for (std::size_t g = 0; g < owners.size();) {
        if (!has(e, h, g)) {
          ++g;
          continue;
        }
        KeyRange range{
            .owner = owners[g], .entry = e, .head = h, .heads = heads, .first = g, .last = g, .before = before};
        for (; g < owners.size() && owners[g] == range.owner && has(e, h, g); ++g)
          range.rows += ranks_.kv.blocks[g].rows();
        range.last = g;
        before += range.rows;
        out.push_back(range);
      }
  return out;
}

bool Rank::has_holes() const {
  for (std::size_t table = 0; table < layer_.needs->tables(); ++table)
    for (std::size_t g = 0; g < ranks_.kv.blocks.size(); ++g)
      if (!layer_.needs->of(table, me_).has(g)) return true;
  return false;
}

Rank::Queries Rank::own_queries() const {
  Queries out(as_size(packed() ? problem().batch : 1));
  for (std::size_t g = 0; g < ranks_.q.blocks.size(); ++g) {
    if (ranks_.owners().q[g] != me_) continue;
    const Block& block = ranks_.q.blocks[g];
    auto& into = out[as_size(block.entry)];
    if (!into.empty() && into.back().last == block.first)
      into.back().last = block.last;
    else
      into.push_back({block.first, block.last, q_local_[g]});
  }
  return out;
}

Rank::Queries Rank::all_queries() const {
  Queries out(as_size(packed() ? problem().batch : 1));
  for (const Block& block : ranks_.q.blocks) {
    auto& into = out[as_size(block.entry)];
    if (into.empty())
      into.push_back({block.first, block.last, block.row});
    else
      into.back().last = block.last;
  }
  return out;
}

Tensor Rank::placed(void* at, DType type, std::int64_t entries, std::int64_t heads, std::int64_t rows,
                    std::int64_t width) const {
  const Device device = of_.q().device;
  return packed() ? Tensor(at, type, {rows, heads, width}, {width, rows * width, 1}, device)
                  : Tensor(at, type, {entries, heads, rows, width}, {}, device);
}

Tensor Rank::placed_numbers(void* at, DType type, std::int64_t heads, std::int64_t rows) const {
  const Device device = of_.q().device;
  return packed() ? Tensor(at, type, {heads, rows}, {}, device)
                  : Tensor(at, type, {q_entries(), heads, rows}, {}, device);
}

Tensor Rank::heads_of(const Rows& of, std::int64_t first, std::int64_t count) {
  Tensor t = of.tensor;
  if (!t.given()) return t;
  t.data = static_cast<std::byte*>(t.data) +
           first * t.strides[of.head_dimension()] * static_cast<std::int64_t>(size_of(t.dtype));
  t.shape[of.head_dimension()] = count;
  return t;
}

void Rank::agree(const ir::Digest& digest) const {
  {
    const std::lock_guard lock(ranks_.agreed_mutex);
    if (ranks_.agreed.contains(digest)) return;
  }
  compare(ranks_.transport, digest, "this call", nullptr);
  const std::lock_guard lock(ranks_.agreed_mutex);
  ranks_.agreed.insert(digest);
}

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
