// codegen/kernels/queries_sm80.cpp — the backward of q on any GPU, codegen/cuda/kernels/queries_sm80.cuh: its tiles
#include "codegen/cuda/layout/queries_sm80.cuh"
#include "codegen/kernels/widths.h"

namespace attune::codegen {

extern const KernelDescriptor queries_sm80;

namespace {

struct Tile {
  int m = 128;     ///< queries: 16 for each warp
  int n = 32;      ///< keys
  int stages = 2;  ///< tiles of keys and values in shared memory
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 16, .most = 128, .step = 16}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 16, .most = 128, .step = 16}, &Tile::n},
    TileMember<Tile>{{.name = "stages", .least = 1, .most = 2}, &Tile::stages},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&lists_along_kv};
constexpr Search searches[] = {{.member = "stages", .least = 1, .most = 2}};

// At most 99 kB of shared memory, which every GPU has.
constexpr WidthRow<Tile> rows[] = {
    {.bytes = 2, .d = 64, .tile = {.n = 64}},           {.bytes = 2, .d = 64, .tile = {.n = 32}},
    {.bytes = 2, .d = 96, .tile = {.n = 32}},           {.bytes = 2, .d = 128, .tile = {.n = 32}},
    {.bytes = 2, .d = 128, .tile = {.n = 16}},          {.bytes = 2, .d = 192, .tile = {.m = 64, .n = 32}},
    {.bytes = 2, .d = 192, .tile = {.m = 64, .n = 16}}, {.bytes = 2, .d = 256, .tile = {.m = 64, .n = 16}},
    {.bytes = 4, .d = 64, .tile = {.m = 64, .n = 32}},  {.bytes = 4, .d = 64, .tile = {.m = 64, .n = 16}},
    {.bytes = 4, .d = 128, .tile = {.m = 64, .n = 16}}, {.bytes = 4, .d = 256, .tile = {.m = 32, .n = 16}},
};

std::string why_not(const KernelSpec&, const Traits&) { return {}; }

std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  return tiles_of_width(queries_sm80.name, spec, rows, members);
}

std::string why_illegal(const KernelSpec&, const Variant&) { return {}; }

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(queries_sm80, spec, variant, tile.m, tile.n);
  plan.tile.stages = tile.stages;
  plan.tile.own = {{"warps", tile.m / 16},
                   {"width", static_cast<int>(spec.d)},
                   {"width_v", static_cast<int>(spec.dv)},
                   {"vector", spec.load},
                   {"exact", spec.exact}};
  const QueriesLayout80 shared{.m = tile.m,
                               .n = tile.n,
                               .d = plan.tile.d,
                               .dv = plan.tile.dv,
                               .stages = tile.stages,
                               .element = gpu_element(plan.spec.dtype).bytes};
  return {.plan = std::move(plan), .threads = 2 * tile.m, .shared_bytes = shared.bytes};
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  std::vector<std::vector<Variant>> out;
  for (const int m : {32, 64, 128})
    for (int n = 16; n <= 64; n += 16) {
      Tile tile = tile_of(from, members);
      tile.m = m;
      tile.n = n;
      out.push_back({variant_of(queries_sm80.name, tile, members)});
    }
  return out;
}

}  // namespace

constinit const KernelDescriptor queries_sm80{
    .name = "queries_sm80",
    .way = Way::queries,
    .members = erased_members,
    .searches = searches,
    .takes_any = true,
    .args = ArgsKind::backward,
    .companions = companions,
    .spills_well = 64,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .other_tiles = other_tiles,
};

}  // namespace attune::codegen
