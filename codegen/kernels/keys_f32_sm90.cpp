// codegen/kernels/keys_f32_sm90.cpp — the backward of k and v on Hopper where operands are f32,
// codegen/cuda/backward_wide_sm90/keys_f32_sm90.cuh: its calls, its tiles
#include "codegen/cuda/backward_wide_sm90/layout.cuh"
#include "codegen/kernels/backward_f32_sm90.h"

namespace attune::codegen {

extern const KernelDescriptor keys_f32_sm90;

namespace {

struct Keys {
  static constexpr std::string_view name = "keys_f32_sm90", staged = "stages",
                                    one_part = "one product has one part of queries";
  static constexpr Way way = Way::keys;
  static constexpr int m = 64, least = 2, most = 3;  // stages of queries; grad_o has two
  static const KernelDescriptor& kernel() { return keys_f32_sm90; }

  static int choose(KernelPlan& plan, int stages) {
    Tile& tile = plan.tile;
    tile.stages = stages;
    return keys_layout_f32(tile.m, tile.n, tile.parts * tile.d, tile.parts * tile.dv, stages).bytes;
  }
};

}  // namespace

constinit const KernelDescriptor keys_f32_sm90 = BackwardF32Sm90<Keys>::descriptor();

}  // namespace attune::codegen
