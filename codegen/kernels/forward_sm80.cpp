// codegen/kernels/forward_sm80.cpp — the forward on any GPU, codegen/cuda/forward_sm80/forward_sm80.cuh: its tiles
#include "codegen/cuda/forward_sm80/layout.cuh"
#include "codegen/kernels/refusals.h"
#include "codegen/kernels/widths.h"

namespace attune::codegen {

extern const KernelDescriptor forward_sm80;

namespace {

struct Tile {
  int m = 64;      ///< queries: 16 or 32 for each warp
  int n = 64;      ///< keys
  int stages = 2;  ///< tiles of keys and values in shared memory
  int warps = 4;   ///< warps of a block
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 16, .most = 256, .step = 16}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 16, .most = 128, .step = 16}, &Tile::n},
    TileMember<Tile>{{.name = "stages", .least = 1, .most = 4}, &Tile::stages},
    TileMember<Tile>{{.name = "warps", .least = 1, .most = 8}, &Tile::warps},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&lists_along_kv};
constexpr Search searches[] = {{.member = "stages", .least = 1, .most = 3}};

// At most 99 kB of shared memory, which every GPU has.
constexpr WidthRow<Tile> rows[] = {
    {.bytes = 2, .d = 64, .tile = {.m = 128, .n = 96}},
    {.bytes = 2, .d = 64, .tile = {.m = 64, .n = 64}},
    {.bytes = 2, .d = 96, .tile = {.m = 128, .n = 64}},
    {.bytes = 2, .d = 96, .tile = {.m = 64, .n = 64}},
    {.bytes = 2, .d = 128, .tile = {.m = 128, .n = 48}},
    {.bytes = 2, .d = 128, .tile = {.m = 64, .n = 64}},
    {.bytes = 2, .d = 192, .tile = {.m = 64, .n = 64, .stages = 1}},
    {.bytes = 2, .d = 192, .tile = {.m = 64, .n = 32, .stages = 1}},
    {.bytes = 2, .d = 256, .tile = {.m = 64, .n = 32, .stages = 1}},
    {.bytes = 2, .d = 256, .tile = {.m = 64, .n = 16, .stages = 1}},
    {.bytes = 4, .d = 64, .tile = {.m = 64, .n = 32}},
    {.bytes = 4, .d = 64, .tile = {.m = 64, .n = 16}},
    {.bytes = 4, .d = 128, .tile = {.m = 64, .n = 32}},
    {.bytes = 4, .d = 128, .tile = {.m = 64, .n = 16}},
    {.bytes = 4, .d = 256, .tile = {.m = 64, .n = 16, .stages = 1}},
};

std::string why_not(const KernelSpec& spec, const Traits&) {
  if (spec.dtype == DType::e4m3) return "its products are of f32, bf16 or f16, and q, k and v hold e4m3";
  return why_not_fp8_kv(spec);
}

std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  return tiles_of_width(forward_sm80.name, spec, rows, members);
}

std::string why_illegal(const KernelSpec&, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  if (tile.m == 16 * tile.warps || tile.m == 32 * tile.warps) return {};
  return "m is 16 or 32 times the warps";
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(forward_sm80, spec, variant, tile.m, tile.n);
  plan.tile.stages = tile.stages;
  const auto width = static_cast<int>(spec.d), width_v = static_cast<int>(spec.dv);
  plan.tile.own = {{"warps", tile.warps},         {"width", width},
                   {"width_v", width_v},          {"vector", spec.strides.load},
                   {"store", spec.strides.store}, {"exact", spec.exact}};
  if (spec.cache.per_entry)
    plan.tile.own.insert(plan.tile.own.end(), {{"per_entry", 1}, {"paged", spec.cache.paged()}});
  const ForwardLayout80 shared{.m = tile.m,
                               .n = tile.n,
                               .d = plan.tile.d,
                               .dv = plan.tile.dv,
                               .stages = tile.stages,
                               .element = gpu_element(plan.spec.dtype).bytes,
                               .out_element = gpu_element(plan.spec.out).bytes};
  return {.plan = std::move(plan), .threads = 32 * tile.warps, .shared_bytes = shared.bytes};
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  std::vector<std::vector<Variant>> out;
  for (const int warps : {4, 8})
    for (const int rows_of_warp : {16, 32})
      for (int n = 16; n <= 128; n += 16) {
        Tile tile = tile_of(from, members);
        tile.warps = warps;
        tile.m = rows_of_warp * warps;
        tile.n = n;
        out.push_back({variant_of(forward_sm80.name, tile, members)});
      }
  return out;
}

}  // namespace

constinit const KernelDescriptor forward_sm80{
    .name = "forward_sm80",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .takes_any = true,
    .companions = companions,
    .spills_well = 128,  // wide tiles spill a little, and are faster than narrow ones without spills
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .other_tiles = other_tiles,
};

}  // namespace attune::codegen
