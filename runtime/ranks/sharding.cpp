// runtime/ranks/sharding.cpp — include/attune/ranks.h made real: plans that ranks have agreed on
#include <algorithm>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/parallel.h"
#include "runtime/machine/placed.h"
#include "runtime/ranks/ranks.h"
#include "runtime/ranks/transport/transport.h"

namespace attune {
namespace detail {

Ranks::Ranks(std::span<const Attention> attentions, std::span<const Forward> wholes, Transport with,
             const Sharding::How& asked, const Ranks* before)
    : Plan(attentions, wholes, {with.rank, with.count}, asked, before,
           [](std::int64_t count, const std::function<void(std::int64_t)>& task) {
             runtime::run_tasks(count, [&task](std::int64_t i, int) { task(i); });
           }),
      transport(std::move(with)) {
  runtime::ranks::compare(transport, digest, "their Shardings", nullptr);
}

}  // namespace detail

Sharding::Sharding(std::span<const Attention> layers, const Forward& whole, Transport with, Line at)
    : Sharding(layers, whole, std::move(with), How{}, at) {}
Sharding::Sharding(std::span<const Attention> layers, const Forward& whole, Transport with, How how, Line at)
    : ranks_(runtime::placed(at, [&] {
        const std::vector<Forward> wholes(std::max<std::size_t>(layers.size(), 1), whole);
        return std::make_shared<detail::Ranks>(layers, wholes, std::move(with), how, nullptr);
      })) {}
Sharding::Sharding(std::span<const Attention> layers, std::span<const Forward> wholes, Transport with, How how, Line at)
    : ranks_(runtime::placed(
          at, [&] { return std::make_shared<detail::Ranks>(layers, wholes, std::move(with), how, nullptr); })) {}
Sharding::Sharding(const Sharding& sharded, std::span<const Attention> layers, std::span<const Forward> wholes, Line at)
    : ranks_(runtime::placed(at, [&] {
        if (!sharded)
          throw Error("ranks-count", "this Sharding is empty", {}, "a default Sharding holds no assignment",
                      "make it from the attentions, the whole call and a transport");
        return std::make_shared<detail::Ranks>(layers, wholes, sharded.get()->transport, sharded.get()->how,
                                               sharded.get());
      })) {}

namespace {

const detail::Ranks& ranks_of(const detail::Ranks* ranks, int rank) {
  if (!ranks)
    throw Error("ranks-count", "this Sharding is empty", {}, "a default Sharding holds no plan",
                "make it from the attentions, the whole call and a transport");
  if (rank < 0 || rank >= ranks->count())
    throw Error("ranks-count", fmt::format("there is no rank {}", rank), {},
                fmt::format("ranks are 0 to {}", ranks->count() - 1), "pass one of them");
  return *ranks;
}

}  // namespace

std::span<const Sharding::Range> Sharding::of(int rank) const {
  return ranks_of(get(), rank).q_of[static_cast<std::size_t>(rank)];
}
std::span<const Sharding::Range> Sharding::keys_of(int rank) const {
  return ranks_of(get(), rank).kv_of[static_cast<std::size_t>(rank)];
}

Array<int> Sharding::positions(int rank) const {
  const detail::Ranks& all = ranks_of(get(), rank);
  auto out = Device::cpu().array<int>({all.q_rows(rank)}, "positions");
  std::size_t at = 0;
  for (std::size_t g = 0; g < all.q.blocks.size(); ++g)
    if (all.owners().q[g] == rank)
      for (std::int64_t i = all.q.blocks[g].first; i < all.q.blocks[g].last; ++i)
        out.values()[at++] = all.problem.q_offset + static_cast<int>(i);
  return out;
}

std::size_t Sharding::received(int rank, std::size_t layer) const {
  const detail::Ranks& all = ranks_of(get(), rank);
  if (layer >= all.layers.size())
    throw Error("ranks-count", fmt::format("there is no layer {}", layer), {},
                fmt::format("this Sharding was made of {} attentions", all.layers.size()), "count from 0");
  return static_cast<std::size_t>(all.received(rank, layer));
}

std::string Sharding::explain() const { return ranks_of(get(), 0).explain(); }

}  // namespace attune
