// codegen/choose/call_choices.cpp — the kernels that could compute each way of a call; all sources of a call, in the
// order of its launches
#include "codegen/choose/call_choices.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/print.h"

namespace attune::codegen {
namespace {

/// The reads whose gradients a kernel of a whole backward sums in this way, as the user wrote them: "bias[h, q, kv]".
std::vector<std::string> reads_summed_by(const GpuParts& parts, Term::Sum sum) {
  const compiler::Mod& mod = parts.mod();
  const ir::Signature signature = mod.signature();
  std::vector<std::string> out;
  for (std::size_t nth = 0; const compiler::Derivative* of : {&mod.dscore, &mod.dprob})
    for (const compiler::Scatter& scatter : of->captures) {
      if (!parts.gradient->wanted[scatter.capture] || parts.gradient->terms[nth++].whole != sum) continue;
      std::vector<std::string> index;
      for (const ir::Expr& e : scatter.index) index.push_back(ir::print(e, signature));
      out.push_back(fmt::format("{}[{}]", mod.captures[scatter.capture].name, fmt::join(index, ", ")));
    }
  return out;
}

/// The reads whose gradients make the kernel refuse the call, for a message: ": bias[h, q, kv]". Empty if the kernel
/// refuses it for another reason.
std::string reads_to_blame(const KernelDescriptor& kernel, const KernelSpec& spec, const GpuParts& parts) {
  Traits without = parts.facts;
  without.stores_ds = false;
  if (!parts.facts.stores_ds || !kernel.why_not(spec, without).empty()) return {};
  return fmt::format(": {}", fmt::join(reads_summed_by(parts, Term::Sum::ds), ", "));
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
  return gpu_parts(lowered, !call.spec.negative, &*call.backward, way == Way::keys);
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
          out.story.push_back(fmt::format("not {}: {}{}", one->name, why, reads_to_blame(*one, spec, parts)));
  }
  for (const Way way : ways) {
    WayChoices one{.way = way, .call = of_way(call, way), .parts = parts_of(lowered, call, way)};
    const Preference* const preference = one.call.preference ? &*one.call.preference : nullptr;
    one.kind = call_kind(one.parts, call.length);
    one.choices = choose(one.call.spec, one.parts.facts, one.kind, preference, kernels(way));
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
