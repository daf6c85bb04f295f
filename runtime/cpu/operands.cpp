// runtime/cpu/operands.cpp — what both directions share: captures as kernels read them, fields, packed keys and values
#include "runtime/cpu/operands.h"

#include <algorithm>
#include <bit>

namespace attune::runtime::cpu {

Slots::Slots(const compiler::Traced& traced) {
  for (const Tensor& t : traced.captures) {
    codegen::CaptureArg arg{t.data, {1, 1, 1, 1}, {0, 0, 0, 0}};
    std::copy_n(t.shape.begin(), t.rank, arg.extent);
    std::copy_n(t.strides.begin(), t.rank, arg.stride);
    captures_.push_back(arg);
  }
  for (std::size_t i = 0; i < traced.params.size(); ++i) {
    const double value = traced.params[i]->value;
    switch (traced.mod.params[i].type) {
      case ir::Type::F32: params_.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(value))); break;
      case ir::Type::I32: params_.push_back(static_cast<std::uint32_t>(static_cast<std::int32_t>(value))); break;
      case ir::Type::Bool: params_.push_back(value != 0); break;
    }
  }
}

codegen::Frame Slots::frame(const compiler::Problem& problem, const Sequence& seq, std::int64_t h) const {
  return {.captures = captures_.data(),
          .params = params_.data(),
          .head = nullptr,
          .b = static_cast<std::int32_t>(seq.b),
          .h = static_cast<std::int32_t>(h),
          .q_len = static_cast<std::int32_t>(seq.q_len),
          .kv_len = static_cast<std::int32_t>(seq.kv_len),
          .origin = problem.q_offset};
}

bool load_rows(const Kit& kit, const Tensor& t, const Strided& at, std::int64_t first, std::int64_t rows,
               std::int64_t columns, std::int64_t padded, float factor, void* into, std::int64_t into_row) {
  const codegen::LoadRows args{.from = element(t, at.origin + first * at.row),
                               .row = at.row,
                               .column = at.column,
                               .rows = rows,
                               .columns = columns,
                               .padded = padded,
                               .factor = factor,
                               .into = into,
                               .into_row = into_row};
  return kit.load_rows(&args);
}

}  // namespace attune::runtime::cpu
