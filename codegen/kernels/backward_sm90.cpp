// codegen/kernels/backward_sm90.cpp — the backward on Hopper, codegen/cuda/backward_sm90/backward_sm90.cuh: its calls,
// its tiles
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/cuda/backward_sm90/layout.cuh"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

extern const KernelDescriptor backward_sm90;

namespace {

struct Tile {
  int m = 64;         ///< queries
  int n = 128;        ///< keys
  int order = 2;      ///< of a step's products: backward_sm90/consumer.cuh
  int ordered = 1;    ///< tiles of keys are added to dq in a fixed order
  int alone = 0;      ///< 1: for sequences of one tile of keys, whose dq needs no adding
  int completes = 0;  ///< 1: the item that visits queries last adds up and stores their dq, and no kernel converts it
  int path = 0;       ///< of an item through its heads' queries: path_of in backward_sm90/tile_scheduler.cuh
  /// Not 0: elements of copied_reads() are copied to shared memory, tile by tile. 1: of one, 16 bits; 2: of two, or
  /// f32.
  int copies = 0;
  int diagonals = 0;  ///< 1: a further warpgroup sums dS along diagonals
};
constexpr std::array members{
    TileMember<Tile>{{.name = "m", .least = 64, .most = 128, .step = 16}, &Tile::m},
    TileMember<Tile>{{.name = "n", .least = 128, .most = 128}, &Tile::n},
    TileMember<Tile>{{.name = "order", .least = 0, .most = 3}, &Tile::order},
    TileMember<Tile>{{.name = "ordered", .least = 0, .most = 1}, &Tile::ordered},
    TileMember<Tile>{{.name = "alone", .least = 0, .most = 1, .yields = true}, &Tile::alone},
    TileMember<Tile>{{.name = "completes", .least = 0, .most = 1, .yields = true}, &Tile::completes},
    TileMember<Tile>{{.name = "path", .least = 0, .most = 2, .yields = true}, &Tile::path},
    TileMember<Tile>{{.name = "copies", .least = 0, .most = 2, .yields = true}, &Tile::copies},
    TileMember<Tile>{{.name = "diagonals", .least = 0, .most = 1}, &Tile::diagonals},
};
constexpr auto erased_members = members_of(members);
constexpr const Companion* companions[] = {&sum_deltas,       &table_of_visits, &end_queries, &repair_whole,
                                           &spread_diagonals, &sum_sinks,       &sum_pairs,   &sum_ds};
constexpr Search searches[] = {{.member = "order", .least = 0, .most = 3}};

/// True if sums go on from one step to the next, so that an item's heads have to follow one another.
bool sums_steps(const Traits& facts) { return facts.sums_items || facts.sums_diagonals; }
/// True if the kernel takes part in the sums of captured tensors' gradients: others are added up after it.
bool sums_terms(const Traits& facts) { return sums_steps(facts) || facts.stores_ds; }

std::string why_not(const KernelSpec& spec, const Traits&) {
  if (std::string why = why_not_backward90(spec); !why.empty()) return why;
  if (spec.d > 128 || spec.dv > 128) return "it is for heads up to 128 wide";
  if (spec.d <= 64 && spec.dv > 64) return "values are wider than keys";
  return {};
}

/// Why steps need order 0, which has S and P when it computes dS; others have P times the slope of the score. Empty:
/// they do not.
std::string why_order0(const Traits& facts) {
  if (facts.items_ask_s) return "a captured tensor's gradient is a sum of more than P, dP and delta";
  return facts.has_prob && facts.degree != 1 && facts.has_slope ? "the prob mod's derivative reads p" : "";
}

/// Each of two warpgroups has 64 x 64 numbers of dQ: half of 128 columns, or half of 128 queries.
int queries_of(const KernelSpec& spec) { return spec.d > 64 ? 64 : 128; }
/// Or, transposed, 64 columns of 80 queries. Kernels that sum diagonals do not have these, because tiles of 80 queries
/// do not end with a band (diagonals.cuh).
constexpr int most_queries = turned_queries;

/// 80 queries leave room for one tile of dQ, so a block waits longer for its turn: they are faster where items have
/// many steps. Under a causal mask and at D=128 they had 0.94 of the rate of 64 queries at 2048 positions, 0.98 at
/// 4096, 1.00 at 8192 and 1.02 at 16384.
bool has_many_steps(const KernelSpec& spec, const CallKind& kind) {
  if (spec.packed || kind.length <= Length::to_1k) return false;
  return kind.cover == CoverKind::full ||
         (kind.cover == CoverKind::causal && (spec.d <= 96 || kind.length == Length::longer));
}

/// Where items have few steps, a kernel that converts dq takes a tenth to a sixth of the time; where they have many,
/// completing dq makes the steps of other blocks wait longer than that. An item has the steps of all heads that share
/// its keys.
bool has_few_steps(const KernelSpec& spec, const CallKind& kind) {
  if (spec.packed || kind.cover == CoverKind::window || kind.cover == CoverKind::listed) return true;
  if (kind.length <= Length::to_1k) return kind.cover != CoverKind::full || !spec.sharing.shared_keys;
  // At D=128, completing dq gained 3 to 7 % up to 3072 positions, and lost 1 to 2 % at 4096.
  return kind.cover == CoverKind::causal && kind.length == Length::to_4k && spec.d <= 64 && !spec.sharing.shared_keys;
}

/// Without a mask, and in windows, neighbouring items are equally long, so items that visit head after head do not
/// wait. Tile lists may be of either kind. Path 2 gained nothing for packed heads of more than 64 columns.
int path_of(const KernelSpec& spec, const CallKind& kind) {
  if (kind.cover != CoverKind::causal) return 0;
  return !spec.packed ? 1 : spec.d <= 64 ? 2 : 0;
}

std::vector<Variant> tiles(const KernelSpec& spec, const Traits& facts, const CallKind& kind) {
  std::vector<Variant> out;
  const int alone = kind.length <= Length::to_128;
  const auto add = [&](int m, int order, int copies = 0) {
    const int completes = order == 3 && !alone && !copies && !sums_terms(facts) && m != most_queries &&
                          has_few_steps(spec, kind);
    const Tile tile{.m = m,
                    .order = order,
                    .alone = alone,
                    .completes = completes,
                    .path = sums_steps(facts) ? 0 : path_of(spec, kind),
                    .copies = copies,
                    .diagonals = facts.sums_diagonals};
    out.push_back(variant_of(backward_sm90.name, tile, members));
  };
  const bool only_order0 = !why_order0(facts).empty();
  // A bias would be copied to where diagonals are summed.
  const bool may_copy = !facts.sums_diagonals && !only_order0 && !spec.strides.unaligned_captures;
  const int copies = !may_copy ? 0 : facts.copies_f32 ? 2 : spec.strides.unaligned_second ? 1 : facts.copied_reads;
  // For heads of 65 to 80 columns order 3 was 1 to 2 % slower, and for a softcap, where it spilled, 4 %.
  const bool has_order3 = facts.scaled && (spec.d > 80 || (spec.d > 32 && spec.d <= 64));
  if (only_order0) {
    add(queries_of(spec), 0);
    return out;
  }
  // Orders 1 and 2 draw twice for each pair. With a random number they took twice the time of order 3, though order 3
  // spills more (D=128: 14.8 ms, order 3 7.3, order 0 8.9, 80 queries 9.9; D=64: 17.6, order 3 7.3, order 0 8.3).
  if (facts.draws) {
    if (copies) add(queries_of(spec), 3, copies);
    add(queries_of(spec), has_order3 ? 3 : 0);
    return out;
  }
  for (int reads = copies; reads > (facts.copies_f32 ? 1 : 0); --reads)
    for (const int order : {3, 2, 1}) add(queries_of(spec), order, reads);
  // With dropout 80 queries draw 128 decisions for each key: 2.98 ms, and 2.83 with 64 (D=128, causal, 8192).
  const bool has_80 = spec.d > 80 && facts.scaled && !facts.drops && !sums_terms(facts) && has_many_steps(spec, kind);
  if (has_80) add(most_queries, 3);
  for (const int order : {3, 2, 1, 0}) {
    // At D=64, sums by head or key spill 104 to 344 bytes in orders 2 and 3; in order 1 none, but 136 with a prob mod.
    const bool spills = facts.sums_items && spec.d <= 64 && order > 1;
    if ((order < 3 || has_order3) && !spills) add(queries_of(spec), order);
  }
  return out;
}

std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  const int m = tile.m;
  if (tile.copies && spec.strides.unaligned_captures)
    return "copies must be 0: the rows of the bias are not aligned to 16 bytes, or shorter than the keys";
  if (tile.copies == 2 && spec.strides.unaligned_second)
    return "copies is 0 or 1: the rows of the second bias are not aligned to 16 bytes, or shorter than the keys";
  if (tile.completes && (tile.alone || tile.copies || !tile.ordered || m == most_queries))
    return "completes=1 needs ordered=1, alone=0, copies=0, and memory for two tiles of dq, which 80 queries do not "
           "leave";
  if (tile.alone && m == most_queries) return "a tile of 80 queries adds up dq: alone must be 0";
  return m == queries_of(spec) || (m == most_queries && spec.d > 64)
             ? ""
             : "m is 128 for heads up to 64 wide, else 64 or 80";
}

std::string why_unfit(const Traits& facts, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  if (sums_terms(facts) && (tile.completes || tile.m == most_queries))
    return "a kernel that sums a captured tensor's gradient needs completes=0, and m other than 80";
  if (sums_steps(facts) && tile.path)
    return "a kernel that sums a captured tensor's gradient from step to step needs path=0";
  if (facts.sums_diagonals && tile.copies)
    return "a kernel that sums a captured tensor's gradient along diagonals copies nothing: copies must be 0";
  if (tile.diagonals != static_cast<int>(facts.sums_diagonals))
    return facts.sums_diagonals ? "a further warpgroup sums a captured tensor's gradient: diagonals must be 1"
                                : "no captured tensor's gradient is summed along diagonals: diagonals must be 0";
  if (const std::string why = why_order0(facts); !why.empty() && tile.order != 0) return why + ": order must be 0";
  if (tile.copies && !facts.copied_reads) return "copies must be 0: no captured tensor is read at b, h, q and kv alone";
  if (facts.copies_f32 && tile.copies == 1) return "copies is 0 or 2 for a captured tensor of f32";
  if (!facts.copies_f32 && tile.copies > facts.copied_reads)
    return "copies is 0 or 1 for one captured tensor of 16 bits";
  return {};
}

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(backward_sm90, spec, variant, tile.m, tile.n);
  plan.tile.stages = 2;
  plan.tile.own = {{"order", tile.order},
                   {"ordered", tile.ordered},
                   {"width", static_cast<int>(spec.d)},
                   {"width_v", static_cast<int>(spec.dv)}};
  plan.tile.alone = tile.alone != 0;
  plan.tile.completes = tile.completes != 0;
  if (tile.alone) plan.tile.own.emplace_back("alone", 1);
  if (tile.completes) plan.tile.own.emplace_back("completes", 1);
  plan.tile.returns = tile.path == 1;
  if (tile.path) plan.tile.own.emplace_back("path", tile.path);
  if (tile.copies) plan.tile.own.emplace_back("copies", tile.copies);
  const BackwardLayout90 shared{.m = tile.m,
                                .n = tile.n,
                                .d = plan.tile.d,
                                .dv = plan.tile.dv,
                                .stages = plan.tile.stages,
                                .element = gpu_element(spec.dtype).bytes,
                                .wide = tile.copies == 2};
  return {.plan = std::move(plan),
          .threads = (tile.diagonals ? BackwardLayout90::summing : BackwardLayout90::block).threads,
          .shared_bytes = shared.bytes,
          .counts_tiles = true,
          .boxes = BoxRows{.q = tile.m, .k = tile.n, .v = tile.n, .o = tile.m},
          .sums = tile.alone ? 0 : tile.m * shared.d_chunks * shared.chunk};
}

std::string preamble(const KernelPlan& plan) { return ask_for_products({64, plan.tile.m, plan.tile.d, plan.tile.dv}); }

}  // namespace

constinit const KernelDescriptor backward_sm90{
    .name = "backward_sm90",
    .way = Way::backward,
    .members = erased_members,
    .searches = searches,
    .persistent = true,
    .args = ArgsKind::backward,
    .companions = companions,
    .products = Products::wgmma,
    .spills_well = 64,  // softcap spills 60 bytes at D=64, without serialising products
    .spliced = Spliced::always,
    .why_not = why_not,
    .tiles = tiles,
    .why_illegal = why_illegal,
    .why_unfit = why_unfit,
    .choice = choice,
    .preamble = preamble,
};

}  // namespace attune::codegen
