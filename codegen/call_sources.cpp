// codegen/call_sources.cpp — generates the sources of a call: one for a forward, several for a backward
#include "codegen/call_sources.h"

#include <algorithm>

namespace attune::codegen {

std::vector<CallSource> call_sources(const compiler::LoweredMod& lowered, const SourcesOf& what) {
  const bool backward = what.backward.has_value();
  const Wanted* const wanted = backward ? &*what.backward : nullptr;
  const KernelSpec spec = backward ? backward_spec(what.spec) : what.spec;
  const GpuParts parts = backward ? gpu_parts(lowered, spec.scale_positive, wanted) : forward_parts(lowered, spec);
  const GpuParts of_keys = gpu_parts(lowered, spec.scale_positive, wanted, backward);
  std::vector<CallSource> out;
  std::vector<Way> ways{Way::forward};
  if (backward) ways = ways_of_backward(spec, parts.facts);
  if (backward && what.preference && !takes(*what.preference, ways[0])) ways = {Way::queries, Way::keys};
  const auto walker = [&](Way way) {
    const bool preferred = what.preference && (!backward || takes(*what.preference, way));
    const GpuParts& of = way == Way::keys ? of_keys : parts;
    KernelChoices choices = choose(spec, of.facts, call_kind(of, what.length), preferred ? &*what.preference : nullptr,
                                   kernels(way));
    const KernelPlan plan = choices.choices[0].plan;
    if (!what.lists) out.push_back({std::string(name_of(way)), kernel_source(of, plan), std::move(choices)});
    for (const Companion* one : companions_of(of, plan)) {
      const std::string does = what.lists ? std::string(one->role) : words_of(*one);
      // What both kernels of a backward leave is repaired once.
      if (what.lists == (one->args == Companion::Args::lists) &&
          std::ranges::find(out, does, &CallSource::of) == out.end())
        out.push_back({does, one->source(of, plan)});
    }
  };
  const KernelPlan of_call{.spec = what.spec};
  const auto around = [&](Companion::When when) {
    for (const Companion* one : companions_of_calls())
      if (one->when == when && !what.lists && one->is_needed(parts, of_call))
        out.push_back({words_of(*one), one->source(parts, of_call)});
  };
  if (backward) around(Companion::When::before);
  for (const Way way : ways) walker(way);
  around(backward ? Companion::When::after : Companion::When::before);
  return out;
}

}  // namespace attune::codegen
