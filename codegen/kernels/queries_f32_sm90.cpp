// codegen/kernels/queries_f32_sm90.cpp — the backward of q on Hopper where operands are f32,
// codegen/cuda/kernels/queries_f32_sm90.cuh: its calls, its tiles
#include "codegen/cuda/layout/queries_f32_sm90.cuh"
#include "codegen/kernels/refusals.h"
#include "codegen/kernels/split_f16.h"

namespace attune::codegen {

extern const KernelDescriptor queries_f32_sm90;

namespace {

struct Tile {
  int m = 128;       ///< queries
  int n = 64;        ///< keys
  int v_stages = 1;  ///< tiles of values in shared memory; keys have two
  int wide = 1;      ///< 1: products of S and dP read queries and grad_o once for both parts of keys
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 128, .most = 128}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 64, .most = 64}, &Tile::n},
    TileMember<Tile>{{.name = "v_stages", .least = 1, .most = 2}, &Tile::v_stages},
    TileMember<Tile>{{.name = "wide", .least = 0, .most = 1}, &Tile::wide},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&split_rows, &repair_part};
constexpr Search searches[] = {{.member = "v_stages", .least = 1, .most = 2},
                               {.member = "wide", .least = 0, .most = 1}};

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = split_plan(queries_f32_sm90, spec, variant, tile.m, tile.n);
  plan.tile.stages = 2;
  plan.tile.own.insert(plan.tile.own.end(), {{"v_stages", tile.v_stages}, {"wide", tile.wide}});
  const int parts = plan.tile.parts;
  const int shared_bytes = queries_layout_f32(tile.m, tile.n, parts * plan.tile.d, parts * plan.tile.dv,
                                              plan.tile.stages, tile.v_stages)
                               .bytes;
  return {.plan = std::move(plan),
          .threads = 384,
          .shared_bytes = shared_bytes,
          .boxes = BoxRows{.q = tile.m, .k = tile.n, .v = tile.n, .o = tile.m}};
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  return tile_of(variant, members).wide && !spec.exact ? "one product has one part of keys" : "";
}

/// Two stages of values if memory allows.
std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  std::vector<Variant> out;
  for (int wide = spec.exact ? 1 : 0; wide >= 0; --wide)
    for (const int stages : {2, 1}) {
      Variant one = variant_of(queries_f32_sm90.name, Tile{.v_stages = stages, .wide = wide}, members);
      if (choice(spec, one).shared_bytes <= most_shared(spec.arch)) out.push_back(std::move(one));
    }
  return out;
}

}  // namespace

constinit const KernelDescriptor queries_f32_sm90{
    .name = "queries_f32_sm90",
    .way = Way::queries,
    .members = erased_members,
    .searches = searches,
    .args = ArgsKind::backward,
    .companions = companions,
    .products = Products::wgmma,
    .spills_well = 64,
    .is_for = is_f32,
    .why_not = why_not_f32_backward90,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .preamble =
        [](const KernelPlan& plan) {
          return ask_for_products({64, 64 * plan.tile.parts});
        },
};

}  // namespace attune::codegen
