// codegen/kernels/keys_f32_sm90.cpp — the backward of k and v on Hopper where operands are f32,
// codegen/cuda/kernels/keys_f32_sm90.cuh: its calls, its tiles
#include "codegen/cuda/layout/keys_f32_sm90.cuh"
#include "codegen/kernels/refusals.h"
#include "codegen/kernels/split_f16.h"

namespace attune::codegen {

extern const KernelDescriptor keys_f32_sm90;

namespace {

struct Tile {
  int m = 64;      ///< queries
  int n = 64;      ///< keys
  int stages = 2;  ///< tiles of queries in shared memory; grad_o has two
  int wide = 1;    ///< 1: products of S and dP read keys and values once for both parts of queries
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 64, .most = 64}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 64, .most = 64}, &Tile::n},
    TileMember<Tile>{{.name = "stages", .least = 2, .most = 3}, &Tile::stages},
    TileMember<Tile>{{.name = "wide", .least = 0, .most = 1}, &Tile::wide},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&split_rows, &repair_part};
constexpr Search searches[] = {{.member = "stages", .least = 2, .most = 3}, {.member = "wide", .least = 0, .most = 1}};

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = split_plan(keys_f32_sm90, spec, variant, tile.m, tile.n);
  plan.tile.stages = tile.stages;
  plan.tile.own.emplace_back("wide", tile.wide);
  const int parts = plan.tile.parts;
  const int shared_bytes =
      keys_layout_f32(tile.m, tile.n, parts * plan.tile.d, parts * plan.tile.dv, tile.stages).bytes;
  return {.plan = std::move(plan),
          .threads = 384,
          .shared_bytes = shared_bytes,
          .boxes = BoxRows{.q = tile.m, .k = tile.n, .v = tile.n, .o = tile.m}};
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  return tile_of(variant, members).wide && !spec.exact ? "one product has one part of queries" : "";
}

std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  std::vector<Variant> out;
  for (int wide = spec.exact ? 1 : 0; wide >= 0; --wide)
    for (const int stages : {3, 2}) {
      Variant one = variant_of(keys_f32_sm90.name, Tile{.stages = stages, .wide = wide}, members);
      if (choice(spec, one).shared_bytes <= most_shared(spec.arch)) out.push_back(std::move(one));
    }
  return out;
}

}  // namespace

constinit const KernelDescriptor keys_f32_sm90{
    .name = "keys_f32_sm90",
    .way = Way::keys,
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
