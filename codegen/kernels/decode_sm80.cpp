// codegen/kernels/decode_sm80.cpp — decode, codegen/cuda/decode_sm80/decode_sm80.cuh: its calls, its tiles
#include <algorithm>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/cuda/decode_sm80/layout.cuh"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor decode_sm80;

namespace {

struct Tile {
  int n = 16;        ///< keys per iteration of a warp
  int stages = 5;    ///< slots of each warp's ring, of n keys or n values
  int warps = 8;     ///< warps of a block, which divide the keys
  int clusters = 1;  ///< two blocks that share a tile are a cluster, which counts no arrivals
};
constexpr std::array members{
    TileMember<Tile>{{.name = "n", .least = 16, .most = 32, .step = 16}, &Tile::n},
    TileMember<Tile>{{.name = "stages", .least = 2, .most = 16}, &Tile::stages},
    TileMember<Tile>{{.name = "warps", .least = 1, .most = 8}, &Tile::warps},
    TileMember<Tile>{{.name = "clusters", .least = 0, .most = 1}, &Tile::clusters},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&lists_along_kv, &clear_arrivals};
constexpr Search searches[] = {{.member = "stages", .least = 2, .most = 10}};

constexpr int rows = 16;

bool is_for(const KernelSpec& spec) { return spec.sharing.decode(); }

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (!is_for(spec)) return fmt::format("it is for at most {} rows (queries times the heads that share keys)", rows);
  if (std::string why = why_not_16_bits(spec); !why.empty()) return why;
  if (spec.strides.load != 16)
    return "it loads 16 bytes at a time, and some rows of q, k and v are not aligned to 16 bytes";
  return why_needs_sum(facts);
}

constexpr int element = 2;  ///< bytes of an element of q
/// Bytes of an element of k and v.
int kept(const KernelSpec& spec) { return spec.cache.fp8 ? 1 : element; }
/// Columns of tiles: FP8 rows are read 32 bytes at a time.
int columns(const KernelSpec& spec, std::int64_t width) {
  return static_cast<int>(round_up(width, std::max(gpu_element(spec.dtype).width_step, 32 / kept(spec))));
}

DecodeLayout80 shared_memory(const KernelSpec& spec, const Tile& tile) {
  return {.m = rows,
          .n = tile.n,
          .d = columns(spec, spec.d),
          .dv = columns(spec, spec.dv),
          .stages = tile.stages,
          .warps = tile.warps,
          .element = element,
          .kept = kept(spec),
          .has_before = spec.before};
}

std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  // More bytes in flight per multiprocessor gain nothing; a slot is 4 KB for usual heads.
  constexpr int most_in_flight = 160 * 1024, short_row = 128, usual_row = 256, most_stages = 10;
  const int row = std::max(columns(spec, spec.d), columns(spec, spec.dv)) * kept(spec);
  const auto with_keys = [&](int n) {
    Tile tile{.n = n};
    for (; tile.warps > 1; tile.warps /= 2) {
      tile.stages = std::min(most_in_flight / (tile.warps * tile.n * row), most_stages);
      while (tile.stages >= 2 && shared_memory(spec, tile).bytes > most_shared(spec.arch)) --tile.stages;
      if (tile.stages >= 2) break;
    }
    return tile;
  };
  // With a fixed split size, 32 widened keys at a time would spill registers.
  if (row <= short_row)
    return {variant_of(decode_sm80.name, with_keys(spec.cache.fp8 && spec.fixed_split ? 16 : 32), members)};
  std::vector<Variant> out;
  // Longer rows with a fixed split size or with results before would spill too. Whether mods spill is known only after
  // compiling.
  const Tile more = with_keys(32);
  if (row <= usual_row && more.warps == Tile{}.warps && !spec.cache.fp8 && !spec.fixed_split && !spec.before)
    out.push_back(variant_of(decode_sm80.name, more, members));
  out.push_back(variant_of(decode_sm80.name, with_keys(16), members));
  return out;
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(decode_sm80, spec, variant, rows, tile.n);
  plan.tile.stages = tile.stages;
  plan.tile.d = columns(spec, spec.d);
  plan.tile.dv = columns(spec, spec.dv);
  const auto width = static_cast<int>(spec.d), width_v = static_cast<int>(spec.dv);
  plan.tile.warps = tile.warps;
  plan.tile.clusters = tile.clusters != 0;
  plan.tile.own = {{"warps", tile.warps},         {"width", width},
                   {"width_v", width_v},          {"store", spec.strides.store},
                   {"paged", spec.cache.paged()}, {"fp8_kv", spec.cache.fp8},
                   {"clusters", tile.clusters}};
  return {.plan = std::move(plan), .threads = 32 * tile.warps, .shared_bytes = shared_memory(spec, tile).bytes};
}

}  // namespace

constinit const KernelDescriptor decode_sm80{
    .name = "decode_sm80",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .most_heads = rows,
    .persistent = true,
    .args = ArgsKind::decode,
    .companions = companions,
    .spills_well = 16,  // 256 columns of results leave few registers
    .is_for = is_for,
    .why_not = why_not,
    .tiles = tiles,
    .choice = choice,
};

}  // namespace attune::codegen
