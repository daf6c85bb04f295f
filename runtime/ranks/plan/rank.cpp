// runtime/ranks/plan/rank.cpp — the layer of the plan that a rank's call is of
#include "runtime/ranks/plan/rank.h"

#include <algorithm>

namespace attune::runtime::ranks {

Error other(std::string problem, std::string why) {
  return Error("shares-other", std::move(problem), {}, std::move(why),
               "pass Shares that were made of this attention and of the whole call");
}

const Layer& layer_of(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const compiler::Args& args) {
  const auto none = [] {
    return other("these Shares are of other masks", "none of their attentions has this mask with this data");
  };
  const compiler::CoverOf of = compiler::cover_of(lowered.cover);
  const bool on_device = std::ranges::any_of(
      of.captures, [&](std::uint32_t slot) { return args.captures[slot].device.kind != Device::Kind::cpu; });
  if (!on_device) {
    const MaskOf mask = mask_of(lowered, args);
    for (const Layer& layer : plan.layers)
      if (layer.mask == mask) return layer;
    throw none();
  }
  const Layer* found = nullptr;
  for (const Layer& layer : plan.layers) {
    if (layer.mask.mask != of.mask) continue;
    if (found)
      throw Error("shares-capture", "two masks of these Shares differ in what they capture alone", {},
                  "this call captures it on a device, where it is not read", "make Shares of their own for each");
    found = &layer;
  }
  if (!found) throw none();
  return *found;
}

}  // namespace attune::runtime::ranks
