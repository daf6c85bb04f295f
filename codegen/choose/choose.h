// codegen/choose/choose.h — which kernels of a GPU can compute a call, and with which tiles, in the order to try
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <optional>

#include "codegen/choose/kernels.h"
#include "codegen/cuda/contract/args.cuh"

namespace attune::codegen {

/// Exactness that the call asks for. By default only f32 is exact.
constexpr bool is_exact(std::optional<bool> asked, DType type) { return asked.value_or(type == DType::f32); }

/// The KernelSpec of a backward's kernels, from that of the forward over the same tensors. dq, dk and dv are written by
/// their strides; `out` is the forward's, which only rows.cuh reads.
KernelSpec backward_spec(KernelSpec of);

struct KernelChoices {
  /// Never empty: the last kernel takes any call, and may spill. If the call needs split-KV, only split-KV kernels.
  std::vector<KernelChoice> choices;
  std::vector<std::string> story;  ///< kernels that do not support the call, and why
  std::string refused;             ///< why the preferred kernel is not the first choice, or empty
};
/// The widest head of ordinary kernels; the columns of an MLA head, and of its values; the rows of an MLA tile.
constexpr std::int64_t widest_head = 256, mla_d = 576, mla_dv = 512;
constexpr int mla_rows = 64;
/// KvCache::mla, given whether v is a view of k's first columns; and Sharing::heads for MLA.
constexpr bool is_mla(std::int64_t d, std::int64_t dv, bool values_within_keys) {
  return values_within_keys && d > widest_head && dv <= d;
}
constexpr int mla_heads_to_share(std::int64_t group) {
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(group, 1, mla_rows))));
}

/// Sharing::row_blocks for `rows`, queries times heads, that share keys: 4 if clusters of four leave at most
/// an eighth of the blocks without rows, or no more than clusters of two. Packed sequences differ in length: at most 2.
constexpr int row_blocks(std::int64_t rows, bool packed) {
  const std::int64_t blocks = (rows + mla_rows - 1) / mla_rows, missing = (4 - blocks % 4) % 4;
  if (blocks <= 2 || packed) return blocks > 1 ? 2 : 1;
  return missing < 2 || 8 * missing <= blocks ? 4 : 2;
}

/// Sharing::heads for `q_len` queries (of the longest sequence) of `group` heads to a key head.
constexpr int heads_to_share(std::int64_t q_len, std::int64_t group) {
  constexpr std::int64_t half_a_tile = 64;
  if (q_len > half_a_tile || group < 2) return 1;
  // Decode tiles have 16 rows: up to 16 heads of one query.
  const std::int64_t most = q_len > 1 ? 8 : 16;
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::min(group, most))));
}
/// True for QueryRows::decode, unless keys are prepared: see settle().
constexpr bool is_decode(std::int64_t q_len, std::int64_t group) {
  constexpr std::int64_t most = 16;
  return q_len * heads_to_share(q_len, group) <= most;
}
/// True for calls whose kernels load keys by TMA, in boxes that lie in one page each.
constexpr bool loads_boxes(const KernelSpec& spec) {
  return spec.cache.mla || (spec.arch == 90 && spec.strides.tma && !spec.sharing.decode());
}
/// Rows of a box of keys that TMA loads as fast as a tile of keys is used.
inline constexpr int least_box = 8;
constexpr bool has_small_pages(const KernelSpec& spec) {
  return spec.cache.paged() && spec.cache.page_rows < least_box;
}
/// True for calls whose keys and values a kernel before prepares in memory, unless queries are few: on Hopper it splits
/// f32, and copies keys and values out of small pages.
constexpr bool may_prepare(const KernelSpec& spec) {
  return loads_boxes(spec) && !spec.cache.mla && (spec.dtype == DType::f32 || has_small_pages(spec));
}
/// QueryRows::few for `rows`, queries times heads, that share keys: preparing keys would take longer than it saves. A
/// copy out of pages is three times the traffic, and fewer boxes are lost the larger they are.
constexpr bool are_few(const KernelSpec& spec, std::int64_t rows) {
  return may_prepare(spec) && rows < 256 * (has_small_pages(spec) ? std::int64_t{spec.cache.page_rows} : 1);
}
/// Into how many parts Hopper's blocks split the keys of each of `tiles` tiles of queries, which visit up to `steps`
/// tiles of keys. 1: not at all.
constexpr int parts_of_keys(std::int64_t tiles, std::int64_t blocks, std::int64_t steps) {
  // `of_part` and `of_call` count the time of a tile of keys. A part writes and reads results of 128 queries, as many
  // bytes as two tiles of 128 keys, and fills its pipeline; a call with parts has one more kernel.
  constexpr std::int64_t least = 8, of_part = 4, of_call = 4, most_rounds = 4;  // so that what they leave stays in L2
  if (tiles == 0 || tiles >= blocks) return 1;
  const std::int64_t most = std::min({std::int64_t{most_key_parts}, steps / least, most_rounds * blocks / tiles});
  std::int64_t best = 1, time = steps * 9 / 10;
  for (std::int64_t parts = 2; parts <= most; ++parts) {
    const std::int64_t rounds = (tiles * parts + blocks - 1) / blocks,
                       its = rounds * ((steps + parts - 1) / parts + of_part) + of_call;
    if (its < time) best = parts, time = its;
  }
  return static_cast<int>(best);
}
/// The rows of a tile by which Sharing::few_tiles is known before the tile is.
inline constexpr int few_rows = 128;
/// True for calls whose Sharing::few_tiles says whether blocks share the keys of tiles.
constexpr bool may_split_keys(const KernelSpec& spec) {
  return spec.arch == 90 && (spec.dtype == DType::bf16 || spec.dtype == DType::f16) && spec.cache.per_entry &&
         spec.strides.tma && !spec.sharing.decode() && !spec.cache.mla && !spec.cache.fp8 && !spec.fixed_split;
}

/// Of a backward: only Hopper's kernels ask whether query heads share keys.
constexpr Sharing sharing_of_backward(int arch, std::int64_t group) { return {.shared_keys = arch == 90 && group > 1}; }

/// Sizes of a call, of which kernels depend on classes alone.
struct Sizes {
  std::int64_t q_len = 1 << 20;  ///< queries of the longest sequence
  std::int64_t group = 1;        ///< query heads of a key head
  std::int64_t page_size = 0;    ///< rows of a page; 0: there are no pages
};
/// Fills in what follows from the sizes of a forward: where its keys are, and how its queries share them.
constexpr void settle(KernelSpec& spec, const Sizes& of) {
  Sharing& by = spec.sharing;
  by.heads = spec.cache.mla ? mla_heads_to_share(of.group) : heads_to_share(of.q_len, of.group);
  if (spec.cache.mla) by.row_blocks = row_blocks(of.q_len * of.group, spec.packed);
  const auto set_rows = [&](QueryRows rows) {
    by.rows = rows;
    const int box = loads_boxes(spec) ? static_cast<int>(std::gcd(of.page_size, std::int64_t{64})) : 64;
    spec.cache.page_rows = of.page_size > 0 ? box : 0;
  };
  // Whether preparing keys pays depends on the boxes that a call other than decode would load.
  set_rows(QueryRows::many);
  const bool few = are_few(spec, of.q_len * of.group);
  // No decode kernel computes f32: one query of enough heads is worth keys that are prepared.
  const bool prepares = spec.dtype == DType::f32 && may_prepare(spec) && !few;
  if (!spec.cache.mla && !prepares && is_decode(of.q_len, of.group))
    set_rows(QueryRows::decode);
  else if (few)
    by.rows = QueryRows::few;
  spec.cache.per_entry |= spec.cache.mla || spec.cache.paged();
}
/// Kernels for a call, in the order to try. `preference` may be null. `among`: the kernels to choose from; the last one
/// takes any call.
KernelChoices choose(const KernelSpec& spec, const Traits& facts, const CallKind& kind = {},
                     const Preference* preference = nullptr, Kernels among = kernels());

// ---- for measurements ----

/// The ways that together make a backward for such calls: one kernel for all gradients, or one for q and one for k and
/// v.
std::vector<Way> ways_of_backward(const KernelSpec& spec, const Traits& facts);
/// True if the preferred kernel computes this way. If it computes none of them, every way gets it and refuses.
bool takes(const Preference& preference, Way way);

/// The plan's kernel with all members of its tile.
Variant variant_of(const KernelPlan& plan);
/// Legal variants of the same kernel with other tiles; other members change only as far as memory requires.
std::vector<Variant> other_tiles(const KernelSpec& spec, const Traits& facts, const Variant& from,
                                 Kernels among = kernels());
/// Legal variants that differ in one member other than the sides of the tile.
std::vector<Variant> other_ways(const KernelSpec& spec, const Traits& facts, const Variant& from,
                                Kernels among = kernels());

}  // namespace attune::codegen
