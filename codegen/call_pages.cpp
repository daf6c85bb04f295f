// codegen/call_pages.cpp — a forward is a page, a backward several
#include "codegen/call_pages.h"

#include <algorithm>

namespace attune::codegen {

std::vector<CallPage> call_pages(const compiler::LoweredMod& lowered, const PagesOf& what) {
  const bool backward = what.backward.has_value();
  const Wanted* const wanted = backward ? &*what.backward : nullptr;
  const KernelSpec spec = backward ? backward_spec(what.spec) : what.spec;
  const GpuParts parts = backward ? gpu_parts(lowered, spec.scale_positive, wanted) : forward_parts(lowered, spec);
  const GpuParts of_keys = gpu_parts(lowered, spec.scale_positive, wanted, backward);
  std::vector<CallPage> out;
  std::vector<Way> ways{Way::forward};
  if (backward) ways = ways_of_backward(spec, parts.facts);
  if (backward && what.preference && !takes(*what.preference, ways[0])) ways = {Way::queries, Way::keys};
  if (what.lists) {
    if (ways[0] == Way::backward && parts.facts.listed)
      return {{"table of visits", cover_source(lowered, spec.wide, spec.arch, CoverForm::visits)}};
    if (parts.facts.listed) out.push_back({"lists along kv", cover_source(lowered, spec.wide, spec.arch)});
    if (backward && of_keys.facts.listed)
      out.push_back({"lists along q", cover_source(lowered, spec.wide, spec.arch, CoverForm::of_keys)});
    return out;
  }
  const auto walker = [&](Way way) {
    const bool preferred = what.preference && (!backward || takes(*what.preference, way));
    const GpuParts& of = way == Way::keys ? of_keys : parts;
    KernelChoices choices = choose(spec, of.facts, call_kind(of, what.length), preferred ? &*what.preference : nullptr,
                                   kernels(way));
    const KernelPlan plan = choices.choices[0].plan;
    out.push_back({std::string(name_of(way)), kernel_source(of, plan, spec.arch), std::move(choices)});
    if (comes_turned(plan)) out.push_back({"values turned round before", turn_source(plan, spec.arch)});
    if (needs_clear(of, plan, spec.arch)) out.push_back({"counters before", clear_source(spec.arch)});
    if (!plan.kernel->joins.empty()) out.push_back({"parts after", join_source(of, plan, spec.arch)});
    if (plan.kernel->end.empty()) return;
    out.push_back({"dq after", end_source(plan, spec.arch)});
    if (needs_repair(of, plan)) out.push_back({"repair after", repair_source(of, plan, spec.arch)});
    if (leaves_diagonals(of, plan)) out.push_back({"sums along diagonals after", spread_source(of, plan, spec.arch)});
  };
  if (!backward) {
    walker(Way::forward);
    // Their keys and values are a cache's.
    if (spec.apart) out.push_back({"new keys before", append_source(spec.arch)});
    return out;
  }
  out.push_back({"rows before", rows_source(rows_spec(what.spec, parts.gradient->delta_of_o))});
  for (const Way way : ways) walker(way);
  if (std::ranges::find(*wanted, true) != wanted->end())
    out.push_back({"captured gradients after", sums_source(spec.arch)});
  return out;
}

}  // namespace attune::codegen
