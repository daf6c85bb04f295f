// codegen/kernels/forward_e4m3_sm90.cpp — FP8 (E4M3) prefill on Hopper, codegen/cuda/kernels/forward_e4m3_sm90.cuh: its
// calls, its tiles
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
};
constexpr auto members = [] {
  std::array<TileMember<Tile>, forward_members90.size() + 1> out{};
  std::ranges::transform(forward_members90, out.begin(), [](const TileMember<ForwardTile90>& one) {
    return TileMember<Tile>{one.member, one.at};
  });
  out.back() = {{.name = "transposed", .least = 0, .most = 1}, &Tile::transposed};
  return out;
}();
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&transpose_v, &lists_along_kv};
constexpr Search searches[] = {
    {.member = "issue_order", .least = 0, .most = 2}, {.member = "dynamic", .least = 0, .most = 1},
    {.member = "q_stages", .least = 1, .most = 2},    {.member = "own_o", .least = 0, .most = 1},
    {.member = "stages", .least = 2, .most = 4},      {.member = "transposed", .least = 0, .most = 1}};

constexpr std::int64_t widest = 128;

/// A tile, and the calls that it is for.
struct Row {
  Tile tile;
  KindSet<CoverKind> covers{};
  KindSet<Length> lengths{};
};
constexpr KindSet<CoverKind> full = CoverKind::full, masked = full.others();

// In the order to try, whatever the width: a tile that spills is skipped for the next. Transposing values before costs
// moving them twice, which pays with many tiles of queries.
constexpr Row rows[] = {
    {.tile = {{.n = 128, .stages = 3, .issue_order = 1}, 1}, .covers = full, .lengths = Length::longer},
    {.tile = {{.n = 128, .stages = 3, .issue_order = 2}}, .covers = full},
    {.tile = {{.n = 128, .issue_order = 0}}, .covers = masked},
    {.tile = {{.n = 128, .issue_order = 2}}},
    {.tile = {{.n = 96, .issue_order = 1}}},
    {.tile = {{.n = 64, .issue_order = 1}}},
    {.tile = {{.n = 32, .issue_order = 1}}}};

bool is_for(const KernelSpec& spec) { return spec.dtype == DType::e4m3; }

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (!is_for(spec)) return fmt::format("its products are of e4m3, and q holds {}", name_of(spec.dtype));
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (spec.out != DType::bf16 && spec.out != DType::f16)
    return fmt::format("it writes o as bf16 or f16, not as {}", name_of(spec.out));
  if (spec.d > widest || spec.dv > widest)
    return fmt::format("it supports heads up to {} wide; D is {} and Dv is {}", widest, spec.d, spec.dv);
  if (std::string why = why_not_per_entry(spec); !why.empty()) return why;
  if (std::string why = why_no_tma(spec); !why.empty()) return why;
  return why_not_prob(facts);
}

std::vector<Variant> tiles(const KernelSpec& spec, const Traits& facts, const CallKind& kind) {
  std::vector<Variant> out;
  for (const Row& row : rows) {
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
  return why_illegal90(tile, tile.n / 2 + static_cast<int>(round_up(spec.dv, 32)) + tile.n / 8);
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  return forward_choice90(forward_e4m3_sm90, spec, variant, tile, tile.transposed != 0);
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
    .preamble = forward_preamble90,
};

}  // namespace attune::codegen
