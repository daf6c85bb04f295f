// codegen/kernels/forward_e4m3_sm90.cpp — FP8 (E4M3) prefill on Hopper,
// codegen/cuda/forward_sm90/forward_e4m3_sm90.cuh: its calls, its tiles
#include <algorithm>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/kernels/forward_tile_sm90.h"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor forward_e4m3_sm90;

namespace {

struct Tile : ForwardTile90 {
  int transposed = 0;  ///< 1: a previous kernel transposes values; 0: they are transposed in shared memory for each use
  int columns = 32;    ///< of values that are multiplied at a time, if these are wider than 128
};
constexpr auto members = forward_members90_and(std::array{
    TileMember<Tile>{{.name = "transposed", .least = 0, .most = 1}, &Tile::transposed},
    TileMember<Tile>{{.name = "columns", .least = 32, .most = 64, .step = 32}, &Tile::columns},
});
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&transpose_v, &lists_along_kv};
constexpr Search searches[] = {
    {.member = "issue_order", .least = 0, .most = 2}, {.member = "dynamic", .least = 0, .most = 1},
    {.member = "q_stages", .least = 1, .most = 2},    {.member = "own_o", .least = 0, .most = 1},
    {.member = "stages", .least = 2, .most = 4},      {.member = "transposed", .least = 0, .most = 1}};

/// Values wider than this are transposed by a previous kernel, and multiplied in parts.
constexpr std::int64_t wide = 128;

/// A tile for heads up to `d` and `dv` wide, and the calls that it is for.
struct Row {
  std::int64_t d, dv;
  Tile tile;
  KindSet<CoverKind> covers{};
  KindSet<Length> lengths{};

  std::pair<std::int64_t, std::int64_t> widths() const { return {d, dv}; }
};
constexpr KindSet<CoverKind> full = CoverKind::full, masked = full.others(), causal = CoverKind::causal;

// A call's candidates are the rows of the narrowest width that holds a head, in the order to try: a tile that spills is
// skipped for the next. Transposing values before costs moving them twice, which pays with many tiles of queries.
constexpr Row rows[] = {{128, 128, {{.n = 128, .stages = 3, .issue_order = 1}, 1}, full, Length::longer},
                        {128, 128, {{.n = 128, .stages = 3, .issue_order = 2}}, full},
                        {128, 128, {{.n = 128, .issue_order = 0}}, masked},
                        {128, 128, {{.n = 128, .issue_order = 2}}},
                        {128, 128, {{.n = 96, .issue_order = 1}}},
                        {128, 128, {{.n = 64, .issue_order = 1}}},
                        {128, 128, {{.n = 32, .issue_order = 1}}},
                        {256, 128, {{.n = 128, .q_stages = 1, .issue_order = 1}, 1}, full, Length::longer},
                        {256, 128, {{.n = 96, .q_stages = 1, .issue_order = 1}, 1}, causal, Length::longer},
                        {256, 128, {{.n = 128, .q_stages = 1, .issue_order = 2}}, full},
                        {256, 128, {{.n = 96, .q_stages = 1, .issue_order = 1}}},
                        {256, 128, {{.n = 64, .q_stages = 1, .issue_order = 1}}},
                        {192, 192, {{.n = 128, .q_stages = 1, .issue_order = 1}, 1}},
                        {192, 192, {{.n = 96, .q_stages = 1, .issue_order = 1}, 1}},
                        {192, 192, {{.n = 64, .q_stages = 1, .issue_order = 1}, 1}},
                        {256, 256, {{.n = 128, .q_stages = 1, .issue_order = 1}, 1}, full},
                        {256, 256, {{.n = 96, .q_stages = 1, .issue_order = 1}, 1}},
                        {256, 256, {{.n = 64, .q_stages = 1, .issue_order = 1}, 1}},
                        {256, 256, {{.n = 32, .q_stages = 1, .issue_order = 1}, 1}}};

bool is_for(const KernelSpec& spec) { return spec.dtype == DType::e4m3; }

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (!is_for(spec)) return fmt::format("its products are of e4m3, and q holds {}", name_of(spec.dtype));
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (spec.out != DType::bf16 && spec.out != DType::f16)
    return fmt::format("it writes o as bf16 or f16, not as {}", name_of(spec.out));
  if (std::string why = why_not_per_entry(spec); !why.empty()) return why;
  if (std::string why = why_no_tma(spec); !why.empty()) return why;
  return why_not_prob(facts);
}

std::vector<Variant> tiles(const KernelSpec& spec, const Traits& facts, const CallKind& kind) {
  std::vector<Variant> out;
  for (const Row& row : rows_of_width90(rows, spec)) {
    if (!row.covers.has(kind.cover) || !row.lengths.has(kind.length)) continue;
    Tile tile = row.tile;
    tile.dynamic = facts.skips || spec.packed;
    out.push_back(variant_of(forward_e4m3_sm90.name, tile, members));
  }
  return out;
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  if (tile.n % 32 != 0) return "n is a multiple of 32, the keys of a product";
  const int dv = static_cast<int>(round_up(spec.dv, 32));
  if (dv <= wide) return why_illegal90(tile, tile.n / 2 + dv + tile.n / 8);
  if (!tile.transposed) return fmt::format("values wider than {} are transposed before: transposed must be 1", wide);
  if (tile.n > 128) return fmt::format("n is at most 128 with values wider than {}", wide);
  if (dv % tile.columns != 0) return fmt::format("columns divide Dv, rounded up to {}", dv);
  const int products = tile.columns == 64 ? 64 : 48;  // of two and of three parts
  return why_illegal90(tile, std::max(tile.n / 2, products + tile.n / 8) + dv / 2);
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelChoice out = forward_choice90(forward_e4m3_sm90, spec, variant, tile, tile.transposed != 0);
  if (out.plan.tile.dv > wide) out.plan.tile.own.emplace_back("columns", tile.columns);
  return out;
}

std::string preamble(const KernelPlan& plan) {
  const int dv = plan.tile.dv;
  return ask_for_products({plan.tile.n, dv > wide ? tile_of(plan.variant, members).columns : dv});
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  return other_sides<Tile>(from, members, {&Tile::m, {128, 192}}, {&Tile::n, {32, 64, 96, 128, 160, 192, 224, 256}});
}

}  // namespace

constinit const KernelDescriptor forward_e4m3_sm90{
    .name = "forward_e4m3_sm90",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .persistent = true,
    .companions = companions,
    .products = Products::wgmma,
    .waits = true,
    .is_for = is_for,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .other_tiles = other_tiles,
    .preamble = preamble,
};

}  // namespace attune::codegen
