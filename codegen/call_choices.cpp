// codegen/call_choices.cpp — the kernels that could compute a call, for each way that it takes
#include "codegen/call_choices.h"

#include <fmt/format.h>

namespace attune::codegen {

CallChoices call_choices(const compiler::LoweredMod& lowered, const CallSpec& call) {
  const bool backward = call.backward.has_value();
  const Wanted* const wanted = backward ? &*call.backward : nullptr;
  const KernelSpec spec = backward ? backward_spec(call.spec) : call.spec;
  CallChoices out;
  std::vector<Way> ways{Way::forward};
  if (backward) {
    const Traits facts = gpu_parts(lowered, spec.scale_positive, wanted).facts;
    ways = ways_of_backward(spec, facts);
    if (call.preference && !takes(*call.preference, ways[0])) ways = {Way::queries, Way::keys};
    if (ways.size() > 1)
      for (const KernelDescriptor* one : kernels(Way::backward))
        if (const std::string why = one->why_not(spec, facts); !why.empty())
          out.story.push_back(fmt::format("not {}: {}", one->name, why));
  }
  for (const Way way : ways) {
    WayChoices one{.way = way,
                   .spec = spec,
                   .parts = backward ? gpu_parts(lowered, spec.scale_positive, wanted, way == Way::keys)
                                     : forward_parts(lowered, spec)};
    one.kind = call_kind(one.parts, call.length);
    if (call.preference && (!backward || takes(*call.preference, way))) one.preference = call.preference;
    one.choices = choose(spec, one.parts.facts, one.kind, one.preference ? &*one.preference : nullptr, kernels(way));
    out.ways.push_back(std::move(one));
  }
  return out;
}

}  // namespace attune::codegen
