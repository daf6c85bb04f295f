// codegen/kernels/latent_sm90.cpp — the forward of latent heads on Hopper, codegen/cuda/kernels/latent_sm90.cuh: its
// calls, its tiles
#include <fmt/format.h>

#include "codegen/choose.h"
#include "codegen/cuda/layout/latent_sm90.cuh"
#include "codegen/gpu_element.h"
#include "codegen/kernel.h"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor latent_sm90;

namespace {

struct Tile {
  int cluster = 1;  ///< blocks that have other rows of the same keys, at the same time
  int turns = 0;    ///< what the groups' products wait for
};
constexpr std::array members{
    TileMember<Tile>{{.name = "cluster", .least = 1, .most = 2}, &Tile::cluster},
    TileMember<Tile>{{.name = "turns", .least = 0, .most = 3}, &Tile::turns},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&join_latent};
constexpr Search searches[] = {{.member = "cluster", .least = 1, .most = 2},
                               {.member = "turns", .least = 0, .most = 3}};

constexpr int keys = 64, stages = 2, least_box = 8;

std::string why_not(const KernelSpec& spec, const ModFacts& facts) {
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (spec.d != latent_d || spec.dv != latent_dv)
    return fmt::format("its heads have {} columns, of which values are the first {}", latent_d, latent_dv);
  if (std::string why = why_not_16_bits(spec); !why.empty()) return why;
  if (spec.narrow) return "it reads k and v in the type of q";
  if (std::string why = why_no_boxes(spec); !why.empty()) return why;
  if (spec.paged && spec.page_rows < least_box) return fmt::format("its pages have a multiple of {} rows", least_box);
  if (spec.pieces) return "it does not sum keys in pieces";
  return why_not_prob(facts);
}

bool may_pair(const KernelSpec& spec) { return spec.pairs && spec.heads > 1; }

std::vector<Variant> tiles(const KernelSpec& spec, const ModFacts&, const CallKind&) {
  const Tile tile = may_pair(spec) ? Tile{.cluster = 2} : Tile{.turns = 2};
  return {variant_of(latent_sm90.name, tile, members)};
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  // Rows of one head may visit other keys than those of another.
  if (tile_of(variant, members).cluster > 1 && !may_pair(spec)) return "no more than 64 rows share keys";
  return {};
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(latent_sm90, spec, variant, latent_rows, keys);
  plan.tile.stages = stages;
  const int box = spec.paged ? spec.page_rows : keys;
  plan.tile.cluster = tile.cluster;
  plan.tile.own = {
      {"cluster", tile.cluster}, {"turns", tile.turns}, {"box", box}, {"store", spec.store}, {"paged", spec.paged}};
  const LatentLayout90 shared{.m = latent_rows,
                              .n = keys,
                              .d = plan.tile.d,
                              .dv = plan.tile.dv,
                              .stages = stages,
                              .element = gpu_element(plan.spec.dtype).bytes};
  return {.plan = std::move(plan),
          .threads = 384,
          .shared_bytes = shared.bytes + chunk_alignment,
          .boxes = BoxRows{.q = latent_rows, .k = box}};
}

std::string preamble(const KernelPlan& plan) { return ask_for_products({plan.tile.n, plan.tile.dv / 2}); }

}  // namespace

constinit const KernelDescriptor latent_sm90{
    .name = "latent_sm90",
    .way = Way::forward,
    .members = erased_members,
    .searches = searches,
    .most_heads = latent_rows,
    .persistent = true,
    .args = ArgsKind::mla,
    .companions = companions,
    .products = Products::wgmma,
    .spills_well =
        192,  // results take 128 registers of a thread, and heavy mods are faster so than with tiles of 32 keys
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .choice = choice,
    .preamble = preamble,
};

}  // namespace attune::codegen
