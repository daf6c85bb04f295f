// codegen/choose/call_choices.cpp — the kernels that could compute each way of a call; all sources of a call, in the
// order of its launches
#include "codegen/choose/call_choices.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/print.h"

namespace attune::codegen {
namespace {

/// The reads whose gradients are asked for, as the user wrote them: "bias[h, q, kv]".
std::vector<std::string> reads_with_gradients(const GpuParts& parts) {
  const compiler::Mod& mod = parts.mod();
  const ir::Signature signature = mod.signature();
  std::vector<std::string> out;
  for (const compiler::Derivative* of : {&mod.dscore, &mod.dprob, &mod.dsink})
    for (const compiler::Scatter& scatter : of->captures) {
      if (!parts.gradient->wanted[scatter.capture]) continue;
      std::vector<std::string> index;
      for (const ir::Expr& e : scatter.index) index.push_back(ir::print(e, signature));
      out.push_back(fmt::format("{}[{}]", mod.captures[scatter.capture].name, fmt::join(index, ", ")));
    }
  return out;
}

/// True if the kernel refuses the call for nothing but gradients of captured tensors.
bool minds_gradients(const KernelDescriptor& kernel, const KernelSpec& spec, const Traits& facts) {
  Traits without = facts;
  without.has_terms = false;
  return facts.has_terms && !kernel.why_not(spec, facts).empty() && kernel.why_not(spec, without).empty();
}

}  // namespace

CallSpec of_way(CallSpec call, Way way) {
  if (way == Way::forward) return call;
  call.spec = backward_spec(call.spec);
  if (call.preference && !takes(*call.preference, way)) call.preference.reset();
  return call;
}

GpuParts parts_of(const compiler::LoweredMod& lowered, const CallSpec& call, Way way) {
  if (way == Way::forward) return forward_parts(lowered, call.spec);
  return gpu_parts(lowered, !call.spec.negative, &*call.backward, way == Way::keys, !call.other_extents);
}

CallChoices call_choices(const compiler::LoweredMod& lowered, const CallSpec& call) {
  CallChoices out;
  std::vector<Way> ways{Way::forward};
  if (call.backward) {
    const KernelSpec spec = backward_spec(call.spec);
    const GpuParts parts = parts_of(lowered, call, Way::backward);
    ways = ways_of_backward(spec, parts.facts);
    if (call.preference && !takes(*call.preference, ways[0])) ways = {Way::queries, Way::keys};
    if (ways.size() > 1)
      for (const KernelDescriptor* one : kernels(Way::backward))
        if (const std::string why = one->why_not(spec, parts.facts); !why.empty())
          out.story.push_back(fmt::format("not {}: {}", one->name, why));
  }
  for (const Way way : ways) {
    WayChoices one{.way = way, .call = of_way(call, way), .parts = parts_of(lowered, call, way)};
    const Preference* const preference = one.call.preference ? &*one.call.preference : nullptr;
    one.kind = call_kind(one.parts, call.length);
    one.choices = choose(one.call.spec, one.parts.facts, one.kind, preference, kernels(way));
    for (const KernelDescriptor* kernel : kernels(way))
      if (minds_gradients(*kernel, one.call.spec, one.parts.facts))
        out.story.push_back(fmt::format("{} takes the call without the gradients of {}", kernel->name,
                                        fmt::join(reads_with_gradients(one.parts), ", ")));
    out.ways.push_back(std::move(one));
  }
  return out;
}

// ---- sources --------------------------------------------------------------------------------------------------------

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
  const bool sums = call.ways.size() > 1 || !parts.gradient || parts.gradient->sums_exactly();
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
