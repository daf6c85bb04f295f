// codegen/kernels/mla_sm90.cpp — the forward of MLA on Hopper, codegen/cuda/mla_sm90/mla_sm90.cuh: its calls, its tiles
#include <fmt/format.h>

#include "codegen/choose/choose.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/cuda/mla_sm90/layout.cuh"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor mla_sm90;

namespace {

struct Tile {
  int cluster = 1;      ///< blocks that have different rows of the same keys at the same time
  int issue_order = 0;  ///< what the warpgroups' products wait for
};
constexpr std::array members{
    TileMember<Tile>{{.name = "cluster", .least = 1, .most = 4}, &Tile::cluster},
    TileMember<Tile>{{.name = "issue_order", .least = 0, .most = 3}, &Tile::issue_order},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&combine_mla};
constexpr Search searches[] = {{.member = "cluster", .least = 1, .most = 4},
                               {.member = "issue_order", .least = 0, .most = 3}};

constexpr int keys = 64, stages = 2;

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (spec.d != mla_d || spec.dv != mla_dv)
    return fmt::format("it is for MLA: keys of {} columns whose first {} are the values", mla_d, mla_dv);
  if (std::string why = why_not_16_bits(spec); !why.empty()) return why;
  if (std::string why = why_not_fp8_kv(spec); !why.empty()) return why;
  if (std::string why = why_no_tma(spec); !why.empty()) return why;
  if (spec.cache.paged() && spec.cache.page_rows < least_box)
    return fmt::format("it needs pages of a multiple of {} rows", least_box);
  if (spec.fixed_split) return "it has no fixed split size";
  return why_not_prob(facts);
}

/// The most blocks that may have different rows of the same keys. Rows of one head may visit other keys than rows of
/// another head.
int most_blocks(const KernelSpec& spec) { return spec.sharing.heads == 1 ? 1 : spec.sharing.row_blocks; }

std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
  const int blocks = most_blocks(spec);
  const Tile tile = blocks > 1 ? Tile{.cluster = blocks} : Tile{.issue_order = 2};
  return {variant_of(mla_sm90.name, tile, members)};
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  const int blocks = tile_of(variant, members).cluster;
  if (blocks == 3) return "a cluster has 1, 2 or 4 blocks";
  if (blocks > most_blocks(spec)) return "too few rows share keys";
  return {};
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(mla_sm90, spec, variant, mla_rows, keys);
  plan.tile.stages = stages;
  const int box = spec.cache.paged() ? spec.cache.page_rows : keys;
  plan.tile.cluster = tile.cluster;
  plan.tile.own = {{"cluster", tile.cluster},
                   {"issue_order", tile.issue_order},
                   {"box", box},
                   {"store", spec.strides.store},
                   {"paged", spec.cache.paged()}};
  const int shared_bytes = layout_of<MlaLayout90>(plan).bytes;
  return {.plan = std::move(plan),
          .threads = MlaLayout90::block.threads,
          .shared_bytes = shared_bytes + chunk_alignment,
          .boxes = BoxRows{.q = mla_rows, .k = box}};
}

std::string preamble(const KernelPlan& plan) { return ask_for_products({plan.tile.n, plan.tile.dv / 2}); }

}  // namespace

constinit const KernelDescriptor mla_sm90{
    .name = "mla_sm90",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .most_heads = mla_rows,
    .persistent = true,
    .args = ArgsKind::mla,
    .companions = companions,
    .products = Products::wgmma,
    // Results take 128 registers of a thread; heavy mods are faster this way than with tiles of 32 keys.
    .spills_well = 192,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .preamble = preamble,
};

}  // namespace attune::codegen
