// codegen/kernels/queries_sm90.cpp — the backward of q on Hopper, codegen/cuda/backward_wide_sm90/queries_sm90.cuh: its
// calls, its tiles
#include "codegen/ceil_div.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/cuda/backward_wide_sm90/layout.cuh"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor queries_sm90;

namespace {

struct Tile {
  int m = 128;       ///< queries
  int n = 64;        ///< keys
  int v_stages = 1;  ///< tiles of values in shared memory; keys have two
  int parts = 2;     ///< parts of an operand, each packed while the product of the part before runs
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 128, .most = 128}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 64, .most = 64}, &Tile::n},
    TileMember<Tile>{{.name = "v_stages", .least = 1, .most = 2}, &Tile::v_stages},
    TileMember<Tile>{{.name = "parts", .least = 1, .most = 4}, &Tile::parts},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&repair_part};
constexpr Search searches[] = {{.member = "v_stages", .least = 1, .most = 2},
                               {.member = "parts", .least = 1, .most = 4}};

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (std::string why = why_not_wide_backward90(spec, facts); !why.empty()) return why;
  // Results pass through the memory of queries.
  return spec.d <= 64 ? "queries are not wider than 64" : "";
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(queries_sm90, spec, variant, tile.m, tile.n);
  plan.tile.stages = 2;
  plan.tile.own = {{"v_stages", tile.v_stages},
                   {"parts", tile.parts},
                   {"width", static_cast<int>(spec.d)},
                   {"width_v", static_cast<int>(spec.dv)}};
  const QueriesLayout90 shared{.m = tile.m,
                               .n = tile.n,
                               .d = plan.tile.d,
                               .dv = plan.tile.dv,
                               .stages = plan.tile.stages,
                               .v_stages = tile.v_stages,
                               .element = gpu_element(plan.spec.dtype).bytes};
  return {.plan = std::move(plan),
          .threads = wide_block.threads,
          .shared_bytes = shared.bytes,
          .boxes = BoxRows{.q = tile.m, .k = tile.n, .v = tile.n, .o = tile.m}};
}

/// Two stages of values if memory allows.
std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  const std::int64_t chunk = gpu_element(spec.dtype).chunk(),
                     chunks = ceil_div(spec.d, chunk) + ceil_div(spec.dv, chunk);
  std::vector<Variant> out;
  for (const int parts : {2, 1})
    out.push_back(variant_of(queries_sm90.name, Tile{.v_stages = chunks <= 7 ? 2 : 1, .parts = parts}, members));
  return out;
}

std::string why_illegal(const KernelSpec&, const Variant& variant) {
  return why_illegal_parts90(tile_of(variant, members).parts);
}

std::string preamble(const KernelPlan& plan) { return ask_for_products({plan.tile.n, plan.tile.d}); }

}  // namespace

constinit const KernelDescriptor queries_sm90{
    .name = "queries_sm90",
    .way = Way::queries,
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
