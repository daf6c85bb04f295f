// runtime/ranks/plan/choose.cpp — chooses the assignment of a plan, and the schedule of each of its layers
#include <algorithm>
#include <array>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {
namespace {

/// Weights of keys in greedy assignments. Causal masks need a small weight, many short documents a large one: simulated
/// with 4 to 64 ranks.
constexpr std::array greedy_weights{0.35, 0.7, 1.4, 2.8, 5.6, 11.2};
/// A schedule whose results differ in bits from one rank's must be this many times as fast as one with the same bits.
constexpr double merging_gain = 2;
bool merges(Travel travel) { return travel == Travel::ring || travel == Travel::decode; }
/// Times are predictions, so among greedy assignments within this factor of the fastest, the one that moves the fewest
/// bytes is taken.
constexpr double nearly = 1.02;
/// Its load may not be much less balanced either: all-to-all costs the same for every assignment, so its time would
/// hide an imbalance.
constexpr double nearly_even = 0.08;

}  // namespace

Plan::Considered Plan::consider(Assignment assignment, std::vector<int> q_owners, const Asked& asked) const {
  const std::vector<Work>& work = asked.work;
  Considered out;
  Candidate& c = out.candidate;
  c.assignment = assignment;
  c.owners.kv = together ? q_owners : contiguous(kv, count());
  c.owners.q = std::move(q_owners);
  std::vector<double> load(static_cast<std::size_t>(count()));
  for (std::size_t i = 0; i < work.size(); ++i) {
    out.schedules.push_back(schedules(work[i], c.owners, asked.linear[i]));
    c.ms += out.schedules.back().front().ms;
    c.gather += share_of_gather(work[i], c.owners) / static_cast<double>(work.size());
    for (std::size_t g = 0; g < c.owners.q.size(); ++g)
      load[static_cast<std::size_t>(c.owners.q[g])] += work[i].pairs[g];
  }
  double most = 0, sum = 0;
  for (const double one : load) most = std::max(most, one), sum += one;
  c.load = sum > 0 ? most * count() / sum : 1;
  return out;
}

/// Among greedy assignments that are nearly as fast as the fastest and nearly as balanced as the most balanced, the one
/// that moves the fewest bytes.
Plan::Considered Plan::best_greedy(const Asked& asked) const {
  std::vector<Considered> greedies;
  for (const double weight : greedy_weights)
    greedies.push_back(consider(Assignment::greedy, greedy(q, kv, asked.work, count(), together, weight), asked));
  const auto ms = [](const Considered& c) { return c.candidate.ms; };
  const auto load = [](const Considered& c) { return c.candidate.load; };
  const double evenest = load(*std::ranges::min_element(greedies, {}, load));
  std::erase_if(greedies, [&](const Considered& c) { return load(c) > evenest + nearly_even; });
  const double fastest = ms(*std::ranges::min_element(greedies, {}, ms));
  std::erase_if(greedies, [&](const Considered& c) { return ms(c) > fastest * nearly; });
  return *std::ranges::min_element(greedies, {}, [](const Considered& c) { return c.candidate.gather; });
}

void Plan::choose(const Asked& asked, const Plan* before) {
  const int ranks = count();
  // All-to-all redistributes by heads, so no assignment needs balancing.
  const bool any = !before && how.assignment == Assignment::best && how.travel != Travel::heads;
  const auto considered = [&](Assignment assignment) { return any || (!before && how.assignment == assignment); };
  std::vector<Considered> all;
  if (before) all.push_back(consider(before->candidates.front().assignment, before->owners().q, asked));
  if (considered(Assignment::contiguous) || (!before && how.assignment == Assignment::best))
    all.push_back(consider(Assignment::contiguous, contiguous(q, ranks), asked));
  if (considered(Assignment::zigzag))
    all.push_back(consider(Assignment::zigzag, zigzag(q, ranks, problem.q.packed()), asked));
  if (considered(Assignment::greedy)) all.push_back(best_greedy(asked));
  // An assignment must be faster by a thousandth to be chosen instead of a simpler one.
  std::size_t best = 0;
  for (std::size_t i = 1; i < all.size(); ++i)
    if (all[i].candidate.ms < all[best].candidate.ms * 0.999) best = i;
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(best),
              all.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].schedules = std::move(all.front().schedules[i]);
  for (Considered& c : all) candidates.push_back(std::move(c.candidate));
}

std::vector<Predicted> Plan::schedules(const Work& work, const Owners& owners, bool linear) const {
  std::vector<Predicted> out;
  const auto add = [&](Travel travel, int groups) {
    if (how.travel != Travel::best && how.travel != travel) return;
    out.push_back(predict({sizes, q, kv, count(), how}, work, owners, travel, groups));
    if (!linear && (travel == Travel::ring || travel == Travel::decode))
      out.back().why_not = "the prob mod is not a multiple of p, so partial results cannot be merged";
  };
  if (how.groups > 0 && sizes.kv_heads % how.groups != 0)
    throw Error("sharding-how", fmt::format("{} key heads cannot travel in {} groups", sizes.kv_heads, how.groups), {},
                "groups have the same number of heads", "pass a divisor of the key heads, or 0 for the best");
  for (const int groups : how.groups > 0 ? std::vector<int>{how.groups} : groups_of(sizes.kv_heads))
    add(Travel::gather, groups);
  add(Travel::heads, 1);
  add(Travel::ring, 1);
  add(Travel::decode, 1);
  std::stable_sort(out.begin(), out.end(), [](const Predicted& a, const Predicted& b) {
    if (a.why_not.empty() != b.why_not.empty()) return a.why_not.empty();
    return a.why_not.empty() && a.ms < b.ms;
  });
  const auto exact = std::ranges::find_if(out,
                                          [](const Predicted& p) { return p.why_not.empty() && !merges(p.travel); });
  if (exact != out.end() && exact->ms < out.front().ms * merging_gain) std::rotate(out.begin(), exact, exact + 1);
  if (!out.front().why_not.empty())
    throw Error("sharding-how", fmt::format("{} is not possible for this call", name_of(how.travel)), {},
                out.front().why_not, "use Travel::best");
  return out;
}

double Plan::share_of_gather(const Work& work, const Owners& owners) const {
  const Needs needs(work, owners, count(), problem.kv_shared);
  double share = 0;
  for (int r = 0; r < count(); ++r) {
    double received = 0, all = 0;
    for (std::size_t t = 0; t < needs.tables(); ++t)
      for (std::size_t g = 0; g < kv.blocks.size(); ++g) {
        const auto rows = static_cast<double>(kv.blocks[g].rows());
        if (owners.kv[g] == r) continue;
        all += rows;
        if (needs.of(t, r).has(g)) received += rows;
      }
    if (all > 0) share += received / all;
  }
  return share / count();
}

}  // namespace attune::runtime::ranks
