// codegen/kernels/queries_f32_sm90.cpp — the backward of q on Hopper where operands are f32,
// codegen/cuda/backward_wide_sm90/queries_f32_sm90.cuh: its calls, its tiles
#include "codegen/cuda/backward_wide_sm90/layout.cuh"
#include "codegen/kernels/backward_f32_sm90.h"

namespace attune::codegen {

extern const KernelDescriptor queries_f32_sm90;

namespace {

struct Queries {
  static constexpr std::string_view name = "queries_f32_sm90", staged = "v_stages",
                                    one_part = "one product has one part of keys";
  static constexpr Way way = Way::queries;
  static constexpr int m = 128, least = 1, most = 2;  // stages of values; keys have two
  static const KernelDescriptor& kernel() { return queries_f32_sm90; }

  static int choose(KernelPlan& plan, int stages) {
    Tile& tile = plan.tile;
    tile.stages = 2;
    tile.own.emplace_back("v_stages", stages);
    return queries_layout_f32(tile.m, tile.n, tile.parts * tile.d, tile.parts * tile.dv, tile.stages, stages).bytes;
  }
};

}  // namespace

constinit const KernelDescriptor queries_f32_sm90 = BackwardF32Sm90<Queries>::descriptor();

}  // namespace attune::codegen
