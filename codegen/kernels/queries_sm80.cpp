// codegen/kernels/queries_sm80.cpp — the backward of q on any GPU, codegen/cuda/backward_sm80/queries_sm80.cuh: its
// tiles
#include "codegen/cuda/backward_sm80/layout.cuh"
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

std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  return tiles_of_width(queries_sm80.name, spec, rows, members);
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(queries_sm80, spec, variant, tile.m, tile.n);
  plan.tile.stages = tile.stages;
  plan.tile.own = {{"warps", tile.m / 16},
                   {"width", static_cast<int>(spec.d)},
                   {"width_v", static_cast<int>(spec.dv)},
                   {"vector", spec.strides.load},
                   {"exact", spec.exact}};
  const int shared_bytes = layout_of<QueriesLayout80>(plan).bytes;
  return {.plan = std::move(plan), .threads = 2 * tile.m, .shared_bytes = shared_bytes};
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  return other_sides<Tile>(from, members, {&Tile::m, {32, 64, 128}}, {&Tile::n, {16, 32, 48, 64}});
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
    .tiles = tiles,
    .choice = choice,
    .other_tiles = other_tiles,
};

}  // namespace attune::codegen
