// codegen/kernels/forward_tile_sm90.h — what the descriptors of Hopper's forward kernels share: their tile, and what a
// launch of it needs
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <span>

#include "codegen/ceil_div.h"
#include "codegen/choose/choose.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/cuda/forward_sm90/layout.cuh"
#include "codegen/kernels/widths.h"

namespace attune::codegen {

struct ForwardTile90 {
  int m = 128;          ///< queries: m / 64 warpgroups share them; with 64, several blocks share an SM
  int n = 128;          ///< keys
  int stages = 2;       ///< tiles of keys and values in shared memory
  int q_stages = 2;     ///< tiles of queries in shared memory: 2 load the next one ahead
  int own_o = 1;        ///< 1: results have their own shared memory; 0: they use that of the queries; 2: of values
  int issue_order = 1;  ///< how warpgroups take turns at issuing their products
  int dynamic = 0;      ///< 1: blocks take tiles from a counter; tiles of equal length are even without one
  int items = 1;        ///< tiles of queries scheduled ahead: with 2, short ones load while others are computed
  bool operator==(const ForwardTile90&) const = default;
};
inline constexpr std::array forward_members90{
    TileMember<ForwardTile90>{{.name = "m", .least = 128, .most = 192, .step = 64}, &ForwardTile90::m},
    TileMember<ForwardTile90>{{.name = "n", .least = 16, .most = 256, .step = 16}, &ForwardTile90::n},
    TileMember<ForwardTile90>{{.name = "stages", .least = 2, .most = 4}, &ForwardTile90::stages},
    TileMember<ForwardTile90>{{.name = "q_stages", .least = 1, .most = 2}, &ForwardTile90::q_stages},
    TileMember<ForwardTile90>{{.name = "own_o", .least = 0, .most = 1}, &ForwardTile90::own_o},
    TileMember<ForwardTile90>{{.name = "issue_order", .least = 0, .most = 2}, &ForwardTile90::issue_order},
    TileMember<ForwardTile90>{{.name = "dynamic", .least = 0, .most = 1}, &ForwardTile90::dynamic},
};
/// The members of a kernel's own Tile, a ForwardTile90 with more: those of every forward, then `more`.
template <class Tile, std::size_t N>
constexpr auto forward_members90_and(const std::array<TileMember<Tile>, N>& more) {
  std::array<TileMember<Tile>, forward_members90.size() + N> out{};
  std::ranges::transform(forward_members90, out.begin(), [](const TileMember<ForwardTile90>& one) {
    return TileMember<Tile>{one.member, one.at};
  });
  std::ranges::copy(more, out.begin() + forward_members90.size());
  return out;
}
/// A member of a table, to change its values.
template <class Members>
constexpr Member& member_named(Members& members, std::string_view name) {
  return std::ranges::find(members, name, [](const auto& one) { return one.member.name; })->member;
}

/// The rows for the narrowest heads that hold a call's: a Row has `d`, `dv` and their `widths()`.
template <class Row, std::size_t R>
std::span<const Row> rows_of_width90(const Row (&rows)[R], const KernelSpec& spec) {
  return narrowest_rows(rows, [&](const Row& row) { return row.d >= spec.d && row.dv >= spec.dv; });
}

/// Numbers that a thread can hold, in addition to some 24 or, where threads have fewer registers, 32 others.
constexpr int most_numbers90(int m, int blocks) {
  const int registers = forward_block90(m, blocks).computing;
  return registers - (registers < 200 ? 32 : 24);
}
/// The reason why this tile is illegal, or empty. `numbers`: the scores, results and probabilities that a thread holds.
inline std::string why_illegal90(const ForwardTile90& tile, int numbers, int blocks = 1) {
  if (!tile.own_o && tile.q_stages == 2) return "o would overwrite the next queries: own_o must be 1";
  if (tile.m == 64 && tile.issue_order != 0) return "one warpgroup takes no turns: issue_order must be 0";
  const int most = most_numbers90(tile.m, blocks);
  return numbers > most ? fmt::format("a thread would hold {} numbers, and its registers hold {}", numbers, most) : "";
}

inline std::string forward_preamble90(const KernelPlan& plan) { return ask_for_products({plan.tile.n, plan.tile.dv}); }

/// `numbers` of a kernel of 16 bits.
inline int numbers90(const KernelSpec& spec, const ForwardTile90& tile) {
  return tile.n / 2 + static_cast<int>(round_up(spec.dv, 16)) / 2 + tile.n / 4;
}
/// Blocks that share an SM: with one consumer warpgroup, 3 if their registers and shared memory allow, else 2.
inline int blocks90(const KernelSpec& spec, const ForwardTile90& tile, int shared_bytes) {
  if (tile.m != 64) return 1;
  return numbers90(spec, tile) <= most_numbers90(tile.m, 3) && shared_bytes <= most_shared_of(3, 90) ? 3 : 2;
}

/// The parts of scores that a block keeps in shared memory (HasCopied, HasDistant, HasTanh), whether it does so with
/// dropout's decisions, its words of a column, the tiles of queries scheduled ahead, and Tile::parts.
struct ForwardHeld90 {
  int copies = 0;
  bool distances = false, small_tanh = false, drawn = false;
  int column_words = 0, items = 1, parts = 0;
};

inline KernelChoice forward_choice90(const KernelDescriptor& kernel, const KernelSpec& spec, const Variant& variant,
                                     const ForwardTile90& tile, bool transposed = false, ForwardHeld90 held = {}) {
  constexpr int results = 16;  // queries whose results a warp holds, and stores by itself
  KernelPlan plan = plan_of(kernel, spec, variant, tile.m, tile.n);
  plan.tile.stages = tile.stages;
  plan.tile.own = {
      {"q_stages", tile.q_stages}, {"own_o", tile.own_o}, {"issue_order", tile.issue_order}, {"dynamic", tile.dynamic}};
  plan.tile.transposed = transposed;
  if (transposed) plan.tile.own.emplace_back("transposed", 1);
  if (held.copies) plan.tile.own.emplace_back("copies", held.copies);
  if (held.distances) plan.tile.own.emplace_back("distances", 1);
  if (held.column_words > 0) plan.tile.own.emplace_back("column_words", held.column_words);
  if (held.small_tanh) plan.tile.own.emplace_back("small_tanh", 1);
  if (held.drawn) plan.tile.own.emplace_back("drawn", 1);
  if (held.items > 1) plan.tile.own.emplace_back("items", held.items);
  plan.tile.parts = held.parts;
  if (held.parts > 0) plan.tile.own.emplace_back("parts", held.parts);
  const ForwardLayout90 shared{.m = tile.m,
                               .n = tile.n,
                               .d = plan.tile.d,
                               .dv = plan.tile.dv,
                               .stages = tile.stages,
                               .q_stages = tile.q_stages,
                               .element = gpu_element(plan.spec.dtype).bytes,
                               .out_element = gpu_element(plan.spec.out).bytes,
                               .own_o = tile.own_o,
                               .comes_transposed = transposed,
                               .transposes_values = gpu_element(plan.spec.dtype).bytes == 1 && !transposed,
                               .copies = held.copies,
                               .distances = held.distances,
                               .column_words = held.column_words,
                               .drawn = held.drawn,
                               .items = held.items,
                               .per_entry = spec.cache.per_entry,
                               .parts = std::max(held.parts, 1)};
  plan.tile.gathered = may_prepare(spec) && spec.sharing.rows == QueryRows::many && held.parts == 0;
  const bool paged = spec.cache.paged() && !plan.tile.gathered;
  const int box = paged ? std::gcd(spec.cache.page_rows, tile.n) : tile.n;
  if (spec.cache.per_entry)
    plan.tile.own.insert(plan.tile.own.end(), {{"per_entry", 1}, {"paged", paged}, {"box", box}});
  if (plan.tile.gathered) plan.tile.own.emplace_back("gathered", 1);
  plan.tile.in_parts = spec.sharing.few_tiles;
  if (plan.tile.in_parts) plan.tile.own.emplace_back("in_parts", 1);
  const int bytes = shared.bytes + chunk_alignment, blocks = blocks90(spec, tile, bytes);
  if (blocks > 1) plan.tile.own.emplace_back("blocks", blocks);
  return {.plan = std::move(plan),
          .threads = forward_block90(tile.m, 1, false, held.drawn).threads,
          .shared_bytes = bytes,
          .blocks_of_sm = blocks,
          .counts_tiles = tile.dynamic != 0,
          .boxes = BoxRows{.q = tile.m, .k = box, .v = box, .o = results}};
}

}  // namespace attune::codegen
