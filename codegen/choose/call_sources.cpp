// codegen/choose/call_sources.cpp — generates the sources of a call: one for a forward, several for a backward
#include "codegen/choose/call_sources.h"

#include <algorithm>

namespace attune::codegen {

std::vector<CallSource> call_sources(const compiler::LoweredMod& lowered, const SourcesOf& what) {
  const bool backward = what.call.backward.has_value();
  CallChoices call = call_choices(lowered, what.call);
  std::vector<CallSource> out;
  const auto walker = [&](WayChoices& one) {
    const KernelPlan plan = one.choices.choices[0].plan;
    if (!what.lists)
      out.push_back({std::string(name_of(one.way)), kernel_source(one.parts, plan), std::move(one.choices)});
    for (const Companion* companion : companions_of(one.parts, plan)) {
      const std::string does = what.lists ? std::string(companion->role) : words_of(*companion);
      // The gradients of both kernels of a backward are repaired once.
      if (what.lists == companion->writes_lists() && std::ranges::find(out, does, &CallSource::of) == out.end())
        out.push_back({does, companion->source_of(one.parts, plan)});
    }
  };
  const GpuParts& parts = call.ways[0].parts;
  const KernelPlan of_call{.spec = what.call.spec};
  // Of the gradients that a call can ask for, dS is the only one that is not 0.
  const bool sums = call.ways.size() > 1 || !parts.gradient || !parts.gradient->ds;
  const auto around = [&](Companion::When when) {
    for (const Companion* one : companions_of_calls())
      if (one->when == when && !what.lists && one->is_needed(parts, of_call) && (sums || one != &captured_sums))
        out.push_back({words_of(*one), one->source_of(parts, of_call)});
  };
  if (backward) around(Companion::When::before);
  for (WayChoices& one : call.ways) walker(one);
  around(backward ? Companion::When::after : Companion::When::before);
  return out;
}

}  // namespace attune::codegen
