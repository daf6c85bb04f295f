// codegen/kernels/forward_sm90.cpp — the forward on Hopper, codegen/cuda/forward_sm90.cuh: its calls, its tiles
#include <algorithm>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/gpu_element.h"
#include "codegen/kernel.h"

namespace attune::codegen {

extern const KernelDescriptor forward_sm90;

namespace {

struct Tile {
  int m = 128;       ///< queries: m / 64 groups of four warps share them
  int n = 128;       ///< keys
  int stages = 2;    ///< tiles of keys and values in shared memory
  int q_stages = 2;  ///< tiles of queries in shared memory: 2 load the next one ahead
  int own_o = 1;     ///< results have shared memory of their own, else they lie on the queries
  int turns = 1;     ///< how groups take turns at issuing their products
  int dynamic = 0;   ///< blocks take tiles from a counter: tiles of equal length are dealt out evenly without one
  bool operator==(const Tile&) const = default;
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 128, .most = 192, .step = 64}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 16, .most = 256, .step = 16}, &Tile::n},
    TileMember<Tile>{{.name = "stages", .least = 2, .most = 4}, &Tile::stages},
    TileMember<Tile>{{.name = "q_stages", .least = 1, .most = 2}, &Tile::q_stages},
    TileMember<Tile>{{.name = "own_o", .least = 0, .most = 1}, &Tile::own_o},
    TileMember<Tile>{{.name = "turns", .least = 0, .most = 2}, &Tile::turns},
    TileMember<Tile>{{.name = "dynamic", .least = 0, .most = 1}, &Tile::dynamic},
};
constexpr auto erased_members = members_of(members);
constexpr Search searches[] = {{.member = "turns", .least = 0, .most = 2},
                               {.member = "dynamic", .least = 0, .most = 1},
                               {.member = "q_stages", .least = 1, .most = 2},
                               {.member = "own_o", .least = 0, .most = 1},
                               {.member = "stages", .least = 2, .most = 3}};

/// A tile for heads up to `d` and `dv` wide, and the kinds of calls that it is for.
struct Row {
  int d, dv;
  Tile tile;
  KindSet<CoverKind> covers{};
  KindSet<ModKind> mods{};
  KindSet<Length> lengths{};

  bool is_for(const CallKind& kind) const {
    return covers.has(kind.cover) && mods.has(kind.mod) && lengths.has(kind.length);
  }
};
constexpr KindSet<CoverKind> full = CoverKind::full, masked = full.others(), listed = CoverKind::listed;
constexpr KindSet<ModKind> heavy = ModKind::heavy;
constexpr KindSet<Length> to_1k = Length::to_1k, to_4k = Length::to_4k;

// The rows of the narrowest width that holds a head, as far as they are for the call's kind, are its candidates: one
// that spills leaves its place to the next. What a machine measured itself (attune tune) goes before them.
constexpr Row rows[] = {
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128, .turns = 2}, .mods = heavy},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128}, .covers = listed},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128}, .covers = masked, .lengths = to_1k},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 96, .stages = 3}, .covers = masked, .lengths = to_4k},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 128}, .covers = full},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 128, .turns = 2}},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 96, .stages = 3}},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128}},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 64, .turns = 0}},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 128, .turns = 2}, .mods = heavy},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 128}},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 96}},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 64}},
    {.d = 192, .dv = 128, .tile = {.m = 128, .n = 112, .q_stages = 1, .own_o = 0}},
    {.d = 192, .dv = 128, .tile = {.m = 128, .n = 80, .q_stages = 1, .own_o = 0}},
    {.d = 192, .dv = 192, .tile = {.m = 128, .n = 96, .q_stages = 1, .own_o = 0}},
    {.d = 192, .dv = 192, .tile = {.m = 128, .n = 64, .q_stages = 1, .own_o = 0}},
    {.d = 256, .dv = 256, .tile = {.m = 128, .n = 80, .q_stages = 1, .own_o = 0}},
    {.d = 256, .dv = 256, .tile = {.m = 128, .n = 64, .q_stages = 1, .own_o = 0}},
};

std::string why_not(const KernelSpec& spec, const ModFacts& facts) {
  if (spec.arch != 90)
    return fmt::format("it is for compute capability 9.0, and the device has {}.{}", spec.arch / 10, spec.arch % 10);
  if (spec.dtype != DType::bf16 && spec.dtype != DType::f16)
    return fmt::format("its products are of bf16 or f16, and q, k and v hold {}", name_of(spec.dtype));
  if (spec.narrow) return "it reads k and v in the type of q";
  if (spec.out != spec.dtype)
    return fmt::format("it writes o as {}, not as {}", name_of(spec.dtype), name_of(spec.out));
  if (!spec.boxes)
    return "the copy engine takes tensors whose rows are contiguous, whose other strides are positive multiples of 16 "
           "bytes, and none of them empty";
  if (facts.has_prob && !facts.prob_linear) return "the prob mod is not a multiple of p: it needs each row's sum first";
  return {};
}

std::vector<Variant> tiles(const KernelSpec& spec, const ModFacts& facts, const CallKind& kind) {
  const Row* narrowest = std::ranges::find_if(rows,
                                              [&](const Row& row) { return row.d >= spec.d && row.dv >= spec.dv; });
  std::vector<Tile> out;
  for (const Row* row = narrowest; row != std::end(rows) && row->d == narrowest->d && row->dv == narrowest->dv; ++row) {
    Tile tile = row->tile;
    tile.dynamic = facts.skips || spec.packed;
    // How groups take turns makes no difference to what spills.
    const auto alike = [&](Tile other) {
      other.turns = tile.turns;
      return other == tile;
    };
    if (row->is_for(kind) && std::ranges::none_of(out, alike)) out.push_back(tile);
  }
  std::vector<Variant> variants;
  for (const Tile& tile : out) variants.push_back(variant_of(forward_sm90.name, tile, members));
  return variants;
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  if (!tile.own_o && tile.q_stages == 2) return "results would lie on the next queries: own_o is 1";
  // A thread holds scores, results and probabilities, beside some 24 (two groups) or 32 other registers.
  const int numbers = tile.n / 2 + static_cast<int>(round_up(spec.dv, 16)) / 2 + tile.n / 4,
            most = tile.m == 128 ? 208 : 128;
  return numbers > most ? fmt::format("a thread would hold {} numbers, and {} fit its registers", numbers, most) : "";
}

/// As struct Shared90 of deal_sm90.cuh counts, and what aligns it to 1024 bytes.
int shared_bytes(const KernelPlan& plan, const Tile& tile) {
  const int line = 128, chunk = gpu_element(plan.dtype).chunk();
  const int chunks = ceil_div(plan.d, chunk), dv_chunks = ceil_div(plan.dv, chunk);
  const int q = chunks * tile.m, k = chunks * tile.n, v = dv_chunks * tile.n, o = dv_chunks * tile.m;
  const int barriers = 16 * (tile.q_stages + 2 * tile.stages), item = 16 + 16 + 64, again = 4 * 32 * (tile.m / 16);
  const int queries = tile.own_o ? tile.q_stages * q + o : std::max(tile.q_stages * q, o);
  return line * (queries + tile.stages * (k + v)) + barriers + item + again + 1024;
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  constexpr int results = 16;  // queries whose results a warp holds, and stores by itself
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(forward_sm90, spec, tile.m, tile.n);
  plan.stages = tile.stages;
  plan.traits = {{"q_stages", tile.q_stages}, {"own_o", tile.own_o}, {"turns", tile.turns}, {"dynamic", tile.dynamic}};
  const int bytes = shared_bytes(plan, tile);
  return {.plan = std::move(plan),
          .threads = 128 * (tile.m / 64 + 1),
          .shared_bytes = bytes,
          .counts_tiles = tile.dynamic != 0,
          .boxes = BoxRows{.q = tile.m, .k = tile.n, .v = tile.n, .o = results}};
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  std::vector<std::vector<Variant>> out;
  for (const int m : {128, 192})
    for (int n = 48; n <= 256; n += 16) {
      Tile tile = tile_of(from, members);
      tile.m = m;
      tile.n = n;
      // Without second queries, results may need no memory of their own: shared memory shrinks in this order.
      std::vector<Variant>& group = out.emplace_back();
      for (const auto& [q_stages, own_o] : {std::pair{2, 1}, {1, 1}, {1, 0}}) {
        if (q_stages > tile.q_stages || own_o > tile.own_o) continue;
        Tile other = tile;
        other.q_stages = q_stages;
        other.own_o = own_o;
        group.push_back(variant_of(forward_sm90.name, other, members));
      }
    }
  return out;
}

std::string preamble(const KernelPlan& plan) { return ask_for_products({plan.n, plan.dv}); }

}  // namespace

constinit const KernelDescriptor forward_sm90{
    .name = "forward_sm90",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .persistent = true,
    .waits = true,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .other_tiles = other_tiles,
    .preamble = preamble,
};

}  // namespace attune::codegen
