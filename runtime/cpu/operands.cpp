// runtime/cpu/operands.cpp — what both directions share: captures, fields and packed keys as kernels read them
#include "runtime/cpu/operands.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/tensor.h"

namespace attune::runtime::cpu {

Slots::Slots(const compiler::BoundMod& bound) {
  for (const Tensor& t : bound.slots.captures) {
    codegen::CaptureArg arg{t.data, {1, 1, 1, 1}, {0, 0, 0, 0}};
    std::copy_n(t.shape.begin(), t.rank, arg.extent);
    std::copy_n(t.strides.begin(), t.rank, arg.stride);
    captures_.push_back(arg);
  }
  for (std::size_t i = 0; i < bound.slots.params.size(); ++i) {
    const double value = bound.slots.params[i]->value;
    switch (bound.mod.params[i].type) {
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

bool load_rows(const Kit& kit, const Tensor& t, const MatrixLayout& at, std::int64_t first, std::int64_t rows,
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

TensorRows::TensorRows(Isa isa, Unit unit, DType type) : kit_(type == DType::f64 ? nullptr : kit(isa, unit, type)) {}

bool TensorRows::load(const Tensor& t, const MatrixLayout& at, codegen::LoadRows args) const {
  args.from = element(t, at.origin);
  args.row = at.row;
  args.column = at.column;
  if (kit_) return kit_->load_rows(&args);
  bool bad = false;
  for (std::int64_t r = 0; r < args.rows; ++r) {
    float* into = static_cast<float*>(args.into) + r * args.into_row;
    for (std::int64_t c = 0; c < args.columns; ++c) {
      into[c] = static_cast<float>(runtime::load(t, at.origin + r * at.row + c * at.column)) * args.factor;
      bad = bad || !std::isfinite(into[c]);
    }
    std::fill(into + args.columns, into + args.padded, 0.0f);
  }
  return bad;
}

void TensorRows::store(const Tensor& t, const MatrixLayout& at, codegen::StoreRows args) const {
  args.into = element_of(t, at.origin);
  args.row = at.row;
  args.column = at.column;
  if (kit_) return kit_->store_rows(&args);
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const double factor = static_cast<double>(args.scale * (args.factor ? args.factor[r] : 1));
    for (std::int64_t c = 0; c < args.columns; ++c)
      runtime::store(t, at.origin + r * at.row + c * at.column,
                     static_cast<double>(args.from[r * args.from_row + c]) * factor);
  }
}

}  // namespace attune::runtime::cpu
