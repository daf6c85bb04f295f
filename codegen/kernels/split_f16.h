// codegen/kernels/split_f16.h — tiles of kernels whose f32 operands are split into numbers of f16
#pragma once

#include "codegen/ceil_div.h"
#include "codegen/choose/kernel.h"

namespace attune::codegen {

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

}  // namespace attune::codegen
