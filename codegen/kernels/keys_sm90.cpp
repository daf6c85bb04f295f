// codegen/kernels/keys_sm90.cpp — the backward of k and v on Hopper, codegen/cuda/backward_wide_sm90/keys_sm90.cuh: its
// calls, its tiles
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/cuda/backward_wide_sm90/layout.cuh"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor keys_sm90;

namespace {

struct Tile {
  int m = 64;     ///< queries
  int n = 64;     ///< keys
  int parts = 2;  ///< parts of an operand, each packed while the product of the part before runs
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 64, .most = 64}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 64, .most = 64}, &Tile::n},
    TileMember<Tile>{{.name = "parts", .least = 1, .most = 4}, &Tile::parts},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&repair_part};
constexpr Search searches[] = {{.member = "parts", .least = 1, .most = 4}};

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (std::string why = why_not_wide_backward90(spec, facts); !why.empty()) return why;
  // Results pass through the memory of the values, and of the keys except one chunk that stays in registers.
  if (spec.d <= 128) return "keys are not wider than 128";
  return spec.dv <= 64 ? "values are not wider than 64" : "";
}

std::vector<Variant> tiles(const KernelSpec&, const Traits&, const CallKind&) {
  std::vector<Variant> out;
  for (const int parts : {2, 1}) out.push_back(variant_of(keys_sm90.name, Tile{.parts = parts}, members));
  return out;
}

std::string why_illegal(const KernelSpec&, const Variant& variant) {
  return why_illegal_parts90(tile_of(variant, members).parts);
}

constexpr int q_stages = 3;

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(keys_sm90, spec, variant, tile.m, tile.n);
  plan.tile.stages = q_stages;
  plan.tile.own = {{"parts", tile.parts}, {"width", static_cast<int>(spec.d)}, {"width_v", static_cast<int>(spec.dv)}};
  const int shared_bytes = layout_of<KeysLayout90>(plan).bytes;
  return {.plan = std::move(plan),
          .threads = wide_block.threads,
          .shared_bytes = shared_bytes,
          .boxes = BoxRows{.q = tile.m, .k = tile.n, .v = tile.n, .o = tile.m}};
}

std::string preamble(const KernelPlan& plan) { return ask_for_products({plan.tile.m, plan.tile.d, plan.tile.dv}); }

}  // namespace

constinit const KernelDescriptor keys_sm90{
    .name = "keys_sm90",
    .way = Way::keys,
    .members = erased_members,
    .searches = searches,
    .args = ArgsKind::backward,
    .companions = companions,
    .products = Products::wgmma,
    .spills_well = 64,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .preamble = preamble,
};

}  // namespace attune::codegen
