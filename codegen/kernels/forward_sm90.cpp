// codegen/kernels/forward_sm90.cpp — the forward on Hopper, codegen/cuda/forward_sm90/forward_sm90.cuh: its calls, its
// tiles
#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <limits>

#include "codegen/ceil_div.h"
#include "codegen/kernels/forward_tile_sm90.h"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor forward_sm90;

namespace {

struct Tile : ForwardTile90 {
  int copies = 0;        ///< of copied_reads(), whose elements are copied to shared memory, tile by tile
  int distances = 0;     ///< 1: distant_part() is computed once a distance
  int column_words = 0;  ///< words of a column that scores read in shared memory; 0: each warp reads columns itself
  int small_tanh = 0;    ///< 1: exact tanhs are polynomials where arguments are small
  int drawn = 0;         ///< 1: a warpgroup of its own draws dropout's decisions ahead
  bool operator==(const Tile&) const = default;
};
constexpr auto members = [] {
  auto out = forward_members90_and(std::array{
      TileMember<Tile>{{.name = "small_tanh", .least = 0, .most = 1}, &Tile::small_tanh},
      TileMember<Tile>{{.name = "copies", .least = 0, .most = 2}, &Tile::copies},
      TileMember<Tile>{{.name = "distances", .least = 0, .most = 1}, &Tile::distances},
      TileMember<Tile>{{.name = "column_words", .least = 0, .most = 2}, &Tile::column_words},
      TileMember<Tile>{{.name = "items", .least = 1, .most = 2}, &Tile::items},
      TileMember<Tile>{{.name = "drawn", .least = 0, .most = 1}, &Tile::drawn},
  });
  member_named(out, "m").least = 64;
  member_named(out, "own_o").most = 2;
  return out;
}();
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&lists_along_kv, &gather_pages, &combine_parts};
constexpr Search searches[] = {{.member = "issue_order", .least = 0, .most = 2},
                               {.member = "dynamic", .least = 0, .most = 1},
                               {.member = "q_stages", .least = 1, .most = 2},
                               {.member = "own_o", .least = 0, .most = 2},
                               {.member = "stages", .least = 2, .most = 3}};

/// A tile for heads up to `d` and `dv` wide, and the kinds of calls that it is for.
struct Row {
  int d, dv;
  ForwardTile90 tile;
  KindSet<CoverKind> covers{};
  KindSet<ModKind> mods{};
  KindSet<Length> lengths{};
  bool approximate = false;                                                        ///< not for exact functions
  int least_block = 0, most_block = 128;                                           ///< of Traits::keep_block
  std::int64_t wider_than = 0, widest = std::numeric_limits<std::int64_t>::max();  ///< of the wider of d and dv

  std::pair<int, int> widths() const { return {d, dv}; }
  bool is_for(const KernelSpec& spec, const Traits& facts, const CallKind& kind) const {
    const std::int64_t width = std::max(spec.d, spec.dv);
    if (facts.keep_block < least_block || facts.keep_block > most_block) return false;
    if (approximate && spec.exact) return false;
    return covers.has(kind.cover) && mods.has(kind.mod) && lengths.has(kind.length) && width > wider_than &&
           width <= widest;
  }
};
constexpr KindSet<CoverKind> full = CoverKind::full, masked = full.others(), listed = CoverKind::listed,
                             banded = listed.others();
constexpr KindSet<ModKind> heavy = ModKind::heavy, scaled = ModKind::scaled;
constexpr KindSet<Length> to_80 = Length::to_80, to_128 = Length::to_128, to_224 = Length::to_224,
                          to_1k = to_80 | to_128 | to_224 | Length::to_1k, to_4k = Length::to_4k,
                          from_1k = to_1k.others();

// The candidates of a call are the rows of the narrowest width that holds a head, if they are for the call's kind; a
// tile that spills is skipped for the next. Tiles that `attune tune` measured on this machine go first.
constexpr Row rows[] = {
    {.d = 64,
     .dv = 64,
     .tile = {.m = 128, .n = 80, .stages = 4, .issue_order = 0, .items = 2},
     .covers = banded,
     .lengths = to_80},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128}, .covers = full, .lengths = to_128},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 112}, .covers = full, .lengths = to_224},
    {.d = 64,
     .dv = 64,
     .tile = {.m = 64, .n = 64, .stages = 3, .issue_order = 0, .items = 2},
     .covers = banded & masked,
     .mods = scaled,
     .lengths = to_1k},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128, .issue_order = 2}, .mods = heavy},
    {.d = 64,
     .dv = 64,
     .tile = {.m = 64, .n = 64, .q_stages = 1, .issue_order = 0},
     .covers = listed,
     .least_block = 64,
     .most_block = 64},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128}, .covers = listed},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128}, .covers = masked, .lengths = to_1k},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 96, .stages = 3}, .covers = masked, .lengths = to_4k},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 128, .items = 2}, .covers = full, .lengths = to_1k},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 128}, .covers = full},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 128, .issue_order = 2}},
    {.d = 64, .dv = 64, .tile = {.m = 192, .n = 96, .stages = 3}},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 128}},
    {.d = 64, .dv = 64, .tile = {.m = 128, .n = 64, .issue_order = 0}},
    {.d = 128,
     .dv = 128,
     .tile = {.m = 192, .n = 112, .q_stages = 1},
     .covers = banded,
     .mods = scaled,
     .lengths = from_1k,
     .widest = 80},
    {.d = 128,
     .dv = 128,
     .tile = {.m = 192, .n = 96, .q_stages = 1},
     .covers = banded,
     .mods = scaled,
     .lengths = from_1k,
     .wider_than = 80,
     .widest = 96},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 80}, .covers = banded, .lengths = to_80},
    {.d = 128,
     .dv = 128,
     .tile = {.m = 64, .n = 64, .q_stages = 1, .issue_order = 0},
     .covers = listed,
     .least_block = 64,
     .most_block = 64},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 128, .issue_order = 2}, .mods = heavy, .approximate = true},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 128}},
    {.d = 128, .dv = 128, .tile = {.m = 64, .n = 64, .q_stages = 1, .issue_order = 0}, .covers = listed},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 96}},
    {.d = 128, .dv = 128, .tile = {.m = 128, .n = 64}},
    {.d = 192, .dv = 128, .tile = {.m = 128, .n = 128, .q_stages = 1, .own_o = 2}, .covers = listed, .least_block = 64},
    {.d = 192, .dv = 128, .tile = {.m = 128, .n = 112, .q_stages = 1, .own_o = 2}},
    {.d = 192, .dv = 128, .tile = {.m = 128, .n = 80, .q_stages = 1, .own_o = 0}},
    {.d = 192, .dv = 192, .tile = {.m = 128, .n = 96, .q_stages = 1, .own_o = 2}},
    {.d = 192, .dv = 192, .tile = {.m = 128, .n = 64, .q_stages = 1, .own_o = 0}},
    {.d = 256, .dv = 256, .tile = {.m = 128, .n = 64, .q_stages = 1, .own_o = 2}, .covers = listed, .least_block = 64},
    {.d = 256, .dv = 256, .tile = {.m = 128, .n = 80, .q_stages = 1, .own_o = 2}},
    {.d = 256, .dv = 256, .tile = {.m = 128, .n = 64, .q_stages = 1, .own_o = 0}},
};

/// f32 has a kernel of its own.
bool is_for(const KernelSpec& spec) { return spec.dtype != DType::f32; }

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (std::string why = why_not_16_bits(spec); !why.empty()) return why;
  if (std::string why = why_not_fp8_kv(spec); !why.empty()) return why;
  if (std::string why = why_not_other_out(spec); !why.empty()) return why;
  if (std::string why = why_no_tma(spec); !why.empty()) return why;
  if (spec.cache.paged() && spec.sharing.decode()) return "it does not load pages in decode calls";
  // Two walks are known to be faster than the portable kernel's for prompts only.
  return spec.sharing.decode() ? why_needs_sum(facts) : "";
}

/// The rows of a call's width and kind.
std::vector<Tile> usual_tiles(const KernelSpec& spec, const Traits& facts, const CallKind& kind) {
  std::vector<Tile> out;
  for (const Row& row : rows_of_width90(rows, spec)) {
    const Tile tile{row.tile};
    if (spec.sharing.few_tiles && tile.m > few_rows)
      continue;  // fewer tiles, and their warpgroups have fewer registers
    // The issue order does not change what spills.
    const auto alike = [&](Tile other) {
      other.issue_order = tile.issue_order;
      return other == tile;
    };
    if (row.is_for(spec, facts, kind) && std::ranges::none_of(out, alike)) out.push_back(tile);
  }
  return out;
}

/// Tiles whose blocks keep parts of scores in shared memory. Calls whose heads share a tile get none: they have few
/// queries.
std::vector<Tile> holding_tiles(const KernelSpec& spec, const Traits& facts, Length length,
                                std::span<const Tile> usual) {
  const std::int64_t width = std::max(spec.d, spec.dv);
  const bool narrow = width <= 64;
  if (spec.sharing.heads > 1) return {};
  std::vector<Tile> out;
  if (facts.copied_reads && width <= 128) {
    if (facts.copied_reads == 2)
      for (const int n : {128, 64}) out.push_back({{.m = 128, .n = n, .q_stages = 1, .own_o = 0}, 2});
    for (const int n : {128, 96}) out.push_back({{.m = 128, .n = n, .q_stages = narrow ? 2 : 1, .own_o = narrow}, 1});
    return out;
  }
  if (facts.drops && width <= 192 && usual.front().m == 128)
    for (Tile tile : usual) {
      if (tile.m != 128) continue;
      tile.drawn = 1;
      tile.small_tanh = facts.has_tanh && spec.exact && facts.distant_reads == 0;
      if (narrow && tile.issue_order == 2) tile.issue_order = 1;
      if (!narrow) tile.q_stages = 1;
      out.push_back(tile);
    }
  if (!out.empty()) return out;
  if (facts.has_tanh && spec.exact && facts.distant_reads == 0)
    for (Tile tile : usual) {
      tile.small_tanh = 1;
      out.push_back(tile);
    }
  // Where `slower`, a single read that was made once a distance had 0.96 of the rate; elsewhere it has 1.00 to 1.17.
  const bool slower = narrow && facts.skips && length == Length::to_1k;
  if (width <= 192 && facts.distant_reads > (slower ? 1 : 0))
    for (Tile tile : usual) {
      tile.distances = 1;
      if (!narrow) tile.q_stages = 1;
      out.push_back(tile);
    }
  // At D=128 queries then no longer load ahead: 200 positions had 0.96 to 0.98 of the rate, and other calls have 1.00
  // to 1.27.
  const bool short_and_wide = !narrow && (length == Length::to_128 || length == Length::to_224);
  if (width <= 192 && out.empty() && facts.column_words > 0 && facts.column_words <= 2 && !short_and_wide)
    for (Tile tile : usual) {
      tile.column_words = facts.column_words;
      if (!narrow) tile.q_stages = 1;
      out.push_back(tile);
    }
  return out;
}

std::vector<Variant> tiles(const KernelSpec& spec, const Traits& facts, const CallKind& kind) {
  const std::vector<Tile> usual = usual_tiles(spec, facts, kind);
  std::vector<Tile> all = holding_tiles(spec, facts, kind.length, usual);
  all.insert(all.end(), usual.begin(), usual.end());
  std::vector<Variant> out;
  for (Tile& tile : all) {
    // If a head has one or two tiles of queries, blocks that take them in rounds end as evenly as with a counter, which
    // would have to be cleared before.
    const bool few = kind.length <= (tile.m > 64 ? Length::to_224 : Length::to_80);
    tile.dynamic = facts.listed || (facts.skips && !few) || spec.packed;
    out.push_back(variant_of(forward_sm90.name, tile, members));
  }
  return out;
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  return forward_choice90(forward_sm90, spec, variant, tile, false,
                          {.copies = tile.copies,
                           .distances = tile.distances != 0,
                           .small_tanh = tile.small_tanh != 0,
                           .drawn = tile.drawn != 0,
                           .column_words = tile.column_words,
                           .items = tile.items});
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  const KernelChoice of = choice(spec, variant);
  const int blocks = of.blocks_of_sm, most = most_shared_of(blocks, spec.arch);
  if (std::string why = why_illegal90(tile, numbers90(spec, tile), blocks); !why.empty()) return why;
  if (spec.sharing.heads > 1 && (tile.copies || tile.distances || tile.column_words))
    return "heads share a tile, and a warp's 16 rows are not of one head: copies, distances and column_words must be 0";
  if (tile.column_words && (tile.copies || tile.distances))
    return "scores read one kind of numbers from shared memory: copies and distances must be 0, or column_words";
  if (tile.drawn && (spec.sharing.heads > 1 || tile.distances || tile.column_words))
    return "heads share no tile whose decisions are drawn ahead, and scores read no numbers beside them: distances and "
           "column_words must be 0";
  if (tile.drawn && spec.dv > 192)
    return "with a further warpgroup, products of more than 192 columns lack registers: drawn must be 0";
  if (tile.drawn && tile.m != 128) return "four warps draw for 32 queries each, if not for all: m must be 128";
  if (tile.own_o == 2 && (tile.n < 64 || tile.stages < tile.m / 64))
    return "o has no room in the memory of values: own_o must be 0 or 1";
  // A phase of `results_left` could end twice before the producer warp looks, if tiles of queries have no keys.
  if (tile.own_o == 2 && tile.items > 1)
    return "the next queries are scheduled before results have left the memory of values: items must be 1";
  if (blocks == 1 || of.shared_bytes <= most) return {};
  return fmt::format("it needs {} bytes of shared memory, and each of an SM's {} blocks has at most {}",
                     of.shared_bytes, blocks, most);
}

std::string why_unfit(const Traits& facts, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  if (tile.distances && facts.distant_reads == 0)
    return "distances must be 0: no part of the score reads captured tensors by q - kv alone";
  if (tile.drawn && !facts.drops) return "drawn must be 0: the prob mod is no dropout";
  if (tile.column_words && tile.column_words != facts.column_words)
    return facts.column_words == 0
               ? "column_words must be 0: no part of the score reads captured tensors by kv alone"
               : fmt::format("column_words is 0 or {}, the numbers that the score reads by kv alone",
                             facts.column_words);
  return {};
}

std::vector<std::vector<Variant>> other_tiles(const Variant& from) {
  std::vector<std::vector<Variant>> out;
  for (const int m : {64, 128, 192})
    for (int n = 48; n <= 256; n += 16) {
      Tile tile = tile_of(from, members);
      tile.m = m;
      tile.n = n;
      if (m == 64) tile.issue_order = 0;
      // With one stage of queries, results may use the memory of values or queries: shared memory shrinks in this
      // order.
      std::vector<Variant>& group = out.emplace_back();
      for (const auto& [q_stages, own_o] : {std::pair{2, 1}, {1, 1}, {1, 2}, {1, 0}}) {
        if (q_stages > tile.q_stages || (own_o == 1 && tile.own_o != 1)) continue;
        Tile other = tile;
        other.q_stages = q_stages;
        other.own_o = own_o;
        group.push_back(variant_of(forward_sm90.name, other, members));
      }
    }
  return out;
}

}  // namespace

constinit const KernelDescriptor forward_sm90{
    .name = "forward_sm90",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .persistent = true,
    .companions = companions,
    .products = Products::wgmma,
    .waits = true,
    .spliced = Spliced::but_terms,
    .is_for = is_for,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .why_unfit = why_unfit,
    .choice = choice,
    .other_tiles = other_tiles,
    .preamble = forward_preamble90,
};

}  // namespace attune::codegen
