// codegen/kernels/forward_f32_sm90.cpp — f32 on Hopper by products of TF32,
// codegen/cuda/forward_sm90/forward_f32_sm90.cuh: its calls, its tiles
#include <algorithm>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/kernels/forward_tile_sm90.h"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor forward_f32_sm90;

namespace {

constexpr const Companion* companions[] = {&split_keys, &lists_along_kv};
constexpr auto members = [] {
  auto out = forward_members90;
  member_named(out, "stages").least = 1;
  return out;
}();
constexpr auto erased_members = members_of(members);
constexpr Search searches[] = {{.member = "issue_order", .least = 0, .most = 2},
                               {.member = "dynamic", .least = 0, .most = 1},
                               {.member = "q_stages", .least = 1, .most = 2},
                               {.member = "stages", .least = 1, .most = 4}};

constexpr std::int64_t widest = 128;
constexpr int chunk = 32;  // f32 of 128 bytes

bool is_for(const KernelSpec& spec) { return spec.dtype == DType::f32; }

/// The numbers of TF32 that each f32 is split into.
int parts_of(const KernelSpec& spec) { return spec.exact ? 2 : 1; }

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (!is_for(spec)) return fmt::format("its products are of f32, and q, k and v hold {}", name_of(spec.dtype));
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (std::string why = why_not_fp8_kv(spec); !why.empty()) return why;
  if (std::string why = why_not_other_out(spec); !why.empty()) return why;
  if (spec.d > widest || spec.dv > widest)
    return fmt::format("it supports heads up to {} wide; D is {} and Dv is {}", widest, spec.d, spec.dv);
  if (spec.sharing.rows != QueryRows::many) return "splitting keys and values for so few queries would take longer";
  if (std::string why = why_no_tma(spec); !why.empty()) return why;
  return why_needs_sum(facts);
}

/// A tile, and the calls that it is for.
struct Row {
  bool exact, narrow;  ///< narrow: heads up to 64 wide
  ForwardTile90 tile;
  KindSet<CoverKind> covers{};
};

// In the order to try: a tile that spills is skipped for the next. Tiles of 192 queries read keys less often, and need
// more of a mask.
constexpr Row rows[] = {
    {.exact = true, .narrow = true, .tile = {.n = 64}},
    {.exact = true, .narrow = true, .tile = {.n = 32}},
    {.exact = true, .narrow = false, .tile = {.n = 64, .stages = 1, .q_stages = 1}},
    {.exact = true, .narrow = false, .tile = {.n = 32, .q_stages = 1}},
    {.exact = false, .narrow = true, .tile = {.m = 192, .n = 64, .stages = 3, .q_stages = 1}},
    {.exact = false, .narrow = true, .tile = {.n = 64, .stages = 3}},
    {.exact = false, .narrow = false, .tile = {.m = 192, .n = 64, .q_stages = 1}, .covers = CoverKind::full},
    {.exact = false, .narrow = false, .tile = {.n = 64, .q_stages = 1}},
};

std::vector<Variant> tiles(const KernelSpec& spec, const Traits& facts, const CallKind& kind) {
  const bool narrow = spec.d <= 64 && spec.dv <= 64;
  std::vector<Variant> out;
  for (const Row& row : rows) {
    if (row.exact != spec.exact || row.narrow != narrow || !row.covers.has(kind.cover)) continue;
    ForwardTile90 tile = row.tile;
    tile.dynamic = facts.skips || spec.packed;
    out.push_back(variant_of(forward_f32_sm90.name, tile, members));
  }
  return out;
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  const ForwardTile90 tile = tile_of(variant, members);
  const int d = static_cast<int>(round_up(spec.d, chunk)), dv = static_cast<int>(round_up(spec.dv, chunk));
  if (tile.n % chunk != 0) return "n is a multiple of 32, the keys of 128 bytes";
  if (tile.n * std::max(d, dv) > 256 * chunk) return "a tile of keys has more rows than a box of TMA";
  if (!tile.own_o) return "results of f32 need no shared memory: own_o must be 1";
  if (!spec.exact) {
    if (tile.stages < 2) return "values arrive while the next keys are used: stages must be 2 or more";
    return why_illegal90(tile, tile.n + dv / 2);
  }
  if (tile.m != 128) return "three products leave room for two warpgroups: m must be 128";
  return why_illegal90(tile, tile.n + (dv > 64 ? dv / 2 : dv) + dv / 2);
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const ForwardTile90 tile = tile_of(variant, members);
  KernelChoice out = forward_choice90(forward_f32_sm90, spec, variant, tile, true, {.parts = parts_of(spec)});
  auto& own = out.plan.tile.own;
  own.insert(own.end(), {{"width_v", static_cast<int>(spec.dv)}, {"store", spec.strides.store}});
  return out;
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  return other_sides<ForwardTile90>(from, members, {&ForwardTile90::m, {128, 192}},
                                    {&ForwardTile90::n, {32, 64, 96, 128}});
}

std::string preamble(const KernelPlan& plan) {
  const Tile& tile = plan.tile;
  return "#define ATTUNE_F32_PRODUCTS\n" +
         ask_for_products({tile.n, tile.parts == 2 && tile.dv > 64 ? tile.dv / 2 : tile.dv});
}

}  // namespace

constinit const KernelDescriptor forward_f32_sm90{
    .name = "forward_f32_sm90",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .persistent = true,
    .companions = companions,
    .products = Products::wgmma,
    .waits = true,
    .spills_well = 256,  // a few results, which a tile of keys reads and writes once; narrower tiles lose more
    .is_for = is_for,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .other_tiles = other_tiles,
    .preamble = preamble,
};

}  // namespace attune::codegen
