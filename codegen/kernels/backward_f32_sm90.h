// codegen/kernels/backward_f32_sm90.h — the description of the two kernels of Hopper's backward where operands are f32
#pragma once

#include <array>
#include <string>
#include <vector>

#include "codegen/ceil_div.h"
#include "codegen/choose/kernel.h"
#include "codegen/kernels/refusals.h"

namespace attune::codegen {

// ---- operands that are split into numbers of f16 --------------------------------------------------------------------

inline bool is_f32(const KernelSpec& spec) { return spec.dtype == DType::f32; }

/// A plan whose operands are two numbers of f16 each, or one; columns of each come in chunks of 64.
inline KernelPlan split_plan(const KernelDescriptor& kernel, const KernelSpec& spec, const Variant& variant, int m,
                             int n) {
  KernelPlan plan = plan_of(kernel, spec, variant, m, n);
  Tile& tile = plan.tile;
  const int chunk = gpu_element(DType::f16).chunk();
  tile.d = static_cast<int>(round_up(spec.d, std::int64_t{chunk}));
  tile.dv = static_cast<int>(round_up(spec.dv, std::int64_t{chunk}));
  tile.parts = spec.exact ? 2 : 1;
  tile.own = {{"parts", tile.parts}, {"width", static_cast<int>(spec.d)}, {"width_v", static_cast<int>(spec.dv)}};
  return plan;
}

// ---- the kernels ----------------------------------------------------------------------------------------------------

/// `Of` describes one of them: its `name` and `way`; `m`, queries of a tile; `staged`, the member that counts tiles in
/// shared memory, which `attune tune` varies from `least` to `most`; `choose(plan, stages)`, which sets the rest of the
/// plan and returns the bytes of shared memory; and `one_part`, why a tile of one product cannot be wide.
template <class Of>
struct BackwardF32Sm90 {
  struct Tile {
    int m = Of::m;           ///< queries
    int n = 64;              ///< keys
    int stages = Of::least;  ///< as `Of::staged`
    int wide = 1;            ///< 1: products of S and dP read one operand once for both parts of the other one
  };
  static constexpr std::array members{
      TileMember<Tile>{{.name = "m", .least = Of::m, .most = Of::m}, &Tile::m},
      TileMember<Tile>{{.name = "n", .least = 64, .most = 64}, &Tile::n},
      TileMember<Tile>{{.name = Of::staged, .least = Of::least, .most = Of::most}, &Tile::stages},
      TileMember<Tile>{{.name = "wide", .least = 0, .most = 1}, &Tile::wide},
  };
  static constexpr auto erased_members = members_of(members);
  static constexpr const Companion* companions[] = {&split_rows, &repair_part};
  static constexpr Search searches[] = {{.member = Of::staged, .least = Of::least, .most = Of::most},
                                        {.member = "wide", .least = 0, .most = 1}};

  static KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
    const Tile tile = tile_of(variant, members);
    KernelPlan plan = split_plan(Of::kernel(), spec, variant, tile.m, tile.n);
    const int shared_bytes = Of::choose(plan, tile.stages);
    plan.tile.own.emplace_back("wide", tile.wide);
    return {.plan = std::move(plan),
            .threads = wide_block.threads,
            .shared_bytes = shared_bytes,
            .boxes = BoxRows{.q = tile.m, .k = tile.n, .v = tile.n, .o = tile.m}};
  }

  static std::string why_illegal(const KernelSpec& spec, const Variant& variant) {
    return tile_of(variant, members).wide && !spec.exact ? std::string(Of::one_part) : "";
  }

  /// As many stages as memory allows.
  static std::vector<Variant> tiles(const KernelSpec& spec, const Traits&, const CallKind&) {
    std::vector<Variant> out;
    for (int wide = spec.exact ? 1 : 0; wide >= 0; --wide)
      for (int stages = Of::most; stages >= Of::least; --stages) {
        Variant one = variant_of(Of::name, Tile{.stages = stages, .wide = wide}, members);
        if (choice(spec, one).shared_bytes <= most_shared(spec.arch)) out.push_back(std::move(one));
      }
    return out;
  }

  static std::string preamble(const KernelPlan& plan) { return ask_for_products({64, 64 * plan.tile.parts}); }

  static constexpr KernelDescriptor descriptor() {
    return {.name = Of::name,
            .way = Of::way,
            .members = erased_members,
            .searches = searches,
            .args = ArgsKind::backward,
            .companions = companions,
            .products = Products::wgmma,
            .spills_well = 64,
            .is_for = is_f32,
            .why_not = why_not_f32_backward90,
            .tiles = tiles,
            .why_illegal = why_illegal,
            .choice = choice,
            .preamble = preamble};
  }
};

}  // namespace attune::codegen
