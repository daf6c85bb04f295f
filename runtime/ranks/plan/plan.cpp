// runtime/ranks/plan/plan.cpp — the plan of a Sharding: which rank holds which positions, and the schedule of each mask
#include "runtime/ranks/plan/plan.h"

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/facts/parts.h"
#include "compiler/bind.h"
#include "compiler/check.h"
#include "runtime/ranks/plan/digester.h"
#include "runtime/ranks/plan/whole.h"

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

}  // namespace attune::runtime::ranks
