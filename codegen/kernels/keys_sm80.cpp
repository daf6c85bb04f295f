// codegen/kernels/keys_sm80.cpp — the backward of k and v on any GPU, codegen/cuda/backward_sm80/keys_sm80.cuh: its
// tiles
#include "codegen/cuda/backward_sm80/layout.cuh"
#include "codegen/kernels/widths.h"

namespace attune::codegen {

extern const KernelDescriptor keys_sm80;

namespace {

struct Tile {
  int m = 32;      ///< queries
  int n = 128;     ///< keys: 16 for each warp
  int stages = 2;  ///< tiles of queries in shared memory
  int passes = 1;  ///< 2: the gradients of k and v are computed in separate loops
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 16, .most = 128, .step = 16}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 16, .most = 128, .step = 16}, &Tile::n},
    TileMember<Tile>{{.name = "stages", .least = 1, .most = 2}, &Tile::stages},
    TileMember<Tile>{{.name = "passes", .least = 1, .most = 2}, &Tile::passes},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&lists_along_q};
constexpr Search searches[] = {{.member = "stages", .least = 1, .most = 2},
                               {.member = "passes", .least = 1, .most = 2}};

// At most 99 kB of shared memory, which every GPU has. Both gradients of 128 columns and two tiles of scores fill the
// registers; wider heads have two passes.
constexpr WidthRow<Tile> rows[] = {
    {.bytes = 2, .d = 64, .tile = {.m = 64}},
    {.bytes = 2, .d = 64, .tile = {.m = 32}},
    {.bytes = 2, .d = 96, .tile = {.m = 32}},
    {.bytes = 2, .d = 128, .tile = {.m = 32}},
    {.bytes = 2, .d = 128, .tile = {.m = 16}},
    {.bytes = 2, .d = 128, .tile = {.m = 32, .passes = 2}},
    {.bytes = 2, .d = 192, .tile = {.m = 32, .n = 64, .passes = 2}},
    {.bytes = 2, .d = 192, .tile = {.m = 16, .n = 64, .passes = 2}},
    {.bytes = 2, .d = 256, .tile = {.m = 16, .n = 64, .passes = 2}},
    {.bytes = 4, .d = 64, .tile = {.m = 32, .n = 64}},
    {.bytes = 4, .d = 64, .tile = {.m = 16, .n = 64}},
    {.bytes = 4, .d = 64, .tile = {.m = 16, .n = 64, .passes = 2}},
    {.bytes = 4, .d = 128, .tile = {.m = 16, .n = 64, .passes = 2}},
    {.bytes = 4, .d = 256, .tile = {.m = 16, .n = 32, .passes = 2}},
};

std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  return tiles_of_width(keys_sm80.name, spec, rows, members);
}

std::string why_illegal(const KernelSpec&, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  // One thread per query of a tile computes its lse and delta.
  return tile.m <= 2 * tile.n ? "" : "m is at most twice n";
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(keys_sm80, spec, variant, tile.m, tile.n);
  plan.tile.stages = tile.stages;
  plan.tile.own = {{"warps", tile.n / 16},
                   {"width", static_cast<int>(spec.d)},
                   {"width_v", static_cast<int>(spec.dv)},
                   {"vector", spec.strides.load},
                   {"exact", spec.exact},
                   {"passes", tile.passes}};
  const int shared_bytes = layout_of<KeysLayout80>(plan).bytes;
  return {.plan = std::move(plan), .threads = 2 * tile.n, .shared_bytes = shared_bytes};
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  return other_sides<Tile>(from, members, {&Tile::n, {32, 64, 128}}, {&Tile::m, {16, 32, 48, 64}});
}

}  // namespace

constinit const KernelDescriptor keys_sm80{
    .name = "keys_sm80",
    .way = Way::keys,
    .members = erased_members,
    .searches = searches,
    .takes_any = true,
    .args = ArgsKind::backward,
    .companions = companions,
    .spills_well = 64,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .other_tiles = other_tiles,
};

}  // namespace attune::codegen
