// runtime/ranks/plan/plan.cpp — the plan of a Sharding: which rank holds which positions, and the schedule of each mask
#include "runtime/ranks/plan/plan.h"

#include <algorithm>
#include <array>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/facts/parts.h"
#include "compiler/bind.h"
#include "compiler/check.h"
#include "runtime/ranks/plan/digest.h"
#include "runtime/ranks/plan/local.h"

namespace attune::runtime::ranks {
namespace {

std::vector<std::vector<Sharding::Range>> ranges(const Axis& axis, std::span<const int> owners, int ranks) {
  std::vector<std::vector<Sharding::Range>> out(static_cast<std::size_t>(ranks));
  for (std::size_t g = 0; g < owners.size(); ++g) {
    const Block& block = axis.blocks[g];
    auto& mine = out[static_cast<std::size_t>(owners[g])];
    if (!mine.empty() && mine.back().end == block.row)
      mine.back().end += block.rows();
    else
      mine.push_back({block.row, block.row + block.rows()});
  }
  return out;
}

std::int64_t rows_in(std::span<const Sharding::Range> ranges) {
  std::int64_t rows = 0;
  for (const Sharding::Range& s : ranges) rows += s.end - s.begin;
  return rows;
}

}  // namespace

Plan::Plan(std::span<const Attention> attentions, std::span<const Forward> wholes, const Place& at,
           const Sharding::How& asked, const Plan* before, const Tasks& tasks)
    : how(asked), problem((check_how(asked), check_layers(attentions, wholes), whole_problem(wholes.front()))),
      place(at), sizes(sizes_of(problem, wholes.front().q.dtype)), dtype(wholes.front().q.dtype),
      q(problem.q, problem.batch, asked.block), kv(problem.kv, problem.batch, asked.block) {
  if (place.count < 1 || place.rank < 0 || place.rank >= place.count)
    throw Error("ranks-count", fmt::format("this is rank {} of {}", place.rank, place.count), {},
                "ranks are numbered from 0", "pass a transport of this rank");
  check_count(place.count);
  together = q == kv && problem.q_offset == problem.kv_offset;
  if (before && (before->q != q || before->kv != kv || before->together != together))
    throw Error("sharding-other", "this Sharding is for other lengths", {},
                fmt::format("it shards {} queries and {} keys, and the call has {} and {}", before->q.rows,
                            before->kv.rows, q.rows, kv.rows),
                "make a Sharding of its own for other lengths");

  Asked all;
  for (std::size_t i = 0; i < attentions.size(); ++i) {
    const compiler::LoweredMod lowered = compiler::lower(attentions[i]);
    const Forward& whole = wholes[i];
    std::vector<Tensor> captures;
    compiler::check_bound(lowered, whole.captures, whole.params);
    if (!whole.captures.empty()) captures = compiler::filled(lowered.slots, whole.captures);
    const compiler::Args args = compiler::args(lowered, captures, whole.params);
    layers.push_back({.mask = mask_of(lowered, args), .work = {}, .schedules = {}, .needs = {}});
    all.linear.push_back(codegen::linear_in_p(lowered.mod.prob));
    all.work.push_back(work_of({lowered, args, problem, q, kv, how.block}, tasks));
  }
  choose(all, before);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].work = std::move(all.work[i]);
    layers[i].needs.emplace(layers[i].work, owners(), count(), problem.kv_shared);
  }
  q_of = ranges(q, owners().q, count());
  kv_of = ranges(kv, owners().kv, count());
  digest = digest_of_plan();
}

ir::Digest Plan::digest_of_plan() const {
  Digester d;
  for (const std::int64_t n :
       {std::int64_t{count()}, problem.batch, problem.q_heads, problem.kv_heads, problem.d, problem.dv, q.rows, kv.rows,
        std::int64_t{problem.q_offset}, std::int64_t{problem.kv_offset}, static_cast<std::int64_t>(dtype), how.block})
    d.add(n);
  for (const Axis* axis : {&q, &kv}) d.add(std::as_bytes(std::span(axis->blocks)));
  d.add(std::as_bytes(std::span(owners().q)));
  d.add(std::as_bytes(std::span(owners().kv)));
  for (const Layer& layer : layers) {
    d.add(layer.mask.mask);
    d.add(layer.mask.data);
    d.add(static_cast<std::int64_t>(layer.chosen().travel));
    d.add(std::int64_t{layer.chosen().groups});
  }
  return d.digest();
}

std::int64_t Plan::q_rows(int rank) const { return rows_in(q_of[static_cast<std::size_t>(rank)]); }
std::int64_t Plan::kv_rows(int rank) const { return rows_in(kv_of[static_cast<std::size_t>(rank)]); }

double Plan::received(int rank, std::size_t layer) const {
  const Layer& of = layers.at(layer);
  const Predicted& chosen = of.chosen();
  if (chosen.travel != Travel::gather) return chosen.ranks[static_cast<std::size_t>(rank)].received();
  double rows = 0;
  for (std::size_t t = 0; t < of.needs->tables(); ++t)
    for (std::size_t g = 0; g < kv.blocks.size(); ++g)
      if (owners().kv[g] != rank && of.needs->of(t, rank).has(g)) rows += static_cast<double>(kv.blocks[g].rows());
  return rows * static_cast<double>(sizes.kv_batch * sizes.kv_heads * (sizes.d + sizes.dv) * sizes.element) /
         static_cast<double>(of.needs->tables());
}

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
