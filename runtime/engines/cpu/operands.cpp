// runtime/engines/cpu/operands.cpp — code of both directions: captures and fields as kernels read them, loading and
// storing rows
#include "runtime/engines/cpu/operands.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/machine/tensor.h"

namespace attune::runtime::cpu {

SlotArgs::SlotArgs(const Call& call) {
  for (const Tensor& t : call.args.captures) {
    codegen::CaptureArg arg{t.data, {1, 1, 1, 1}, {0, 0, 0, 0}};
    std::copy_n(t.shape.begin(), t.rank, arg.extent);
    std::copy_n(t.strides.begin(), t.rank, arg.stride);
    captures_.push_back(arg);
  }
  for (std::size_t i = 0; i < call.args.params.size(); ++i) {
    const double value = call.args.params[i];
    switch (call.mod.mod.params[i].type) {
      case ir::Type::F32: params_.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(value))); break;
      case ir::Type::I32: params_.push_back(static_cast<std::uint32_t>(static_cast<std::int32_t>(value))); break;
      case ir::Type::Bool: params_.push_back(value != 0); break;
    }
  }
}

codegen::Frame SlotArgs::frame(const Sequence& seq, std::int64_t h, std::int64_t first,
                               const std::uint32_t* head) const {
  return {.captures = captures_.data(),
          .params = params_.data(),
          .head = head,
          .b = static_cast<std::int32_t>(seq.b),
          .h = static_cast<std::int32_t>(h),
          .q_len = static_cast<std::int32_t>(seq.q_len),
          .kv_len = seq.kv_end(),
          .origin = static_cast<std::int32_t>(seq.q_offset + first)};
}

TileRows tile_rows(const SlotArgs& slots, const Cut& cut, const Sequence& seq, std::int64_t h, std::int64_t t,
                   const std::uint32_t* head) {
  const std::int64_t first = t * cut.tile_q, rows = std::min<std::int64_t>(cut.tile_q, seq.q_len - first);
  const std::int64_t around = rows_of_origin(cut.group);
  return {.frame = slots.frame(seq, h, first / around * around, head),
          .first = first,
          .rows = rows,
          .position = static_cast<std::int32_t>(seq.q_offset + first),
          .groups = static_cast<std::int32_t>(ceil_div(rows, cut.group))};
}

Fields::Fields(Workspace& memory, const codegen::ForwardParts& parts, const Cut& cut)
    : row_ld(field_row(cut.tile_q)), col_ld(cut.tile_kv) {
  head = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.head_fields()));
  row = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.row_fields()) * row_ld);
  col = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.col_fields()) * col_ld);
}

void Fields::compute(const ForwardKernel& kernel, const TileRows& tile) const {
  kernel.head_fields(&tile.frame, head);
  kernel.row_fields(&tile.frame, tile.position, static_cast<std::int32_t>(row_ld), row, row_ld);
}

TensorRows::TensorRows(const KernelsFor& what, Unit unit, DType type)
    : kit_(type == DType::f64 ? Held<Kit>() : kit(what, unit, type)) {}

bool TensorRows::load(const Tensor& t, const MatrixLayout& at, const Into& into) const {
  if (kit_) {
    const codegen::LoadRows args{.from = element(t, at.origin),
                                 .row = at.row,
                                 .column = at.column,
                                 .rows = into.rows,
                                 .columns = into.columns,
                                 .padded = into.row,
                                 .factor = into.factor,
                                 .into = into.into,
                                 .into_row = into.row};
    return kit_->load_rows(&args);
  }
  bool bad = false;
  for (std::int64_t r = 0; r < into.rows; ++r) {
    float* row = static_cast<float*>(into.into) + r * into.row;
    for (std::int64_t c = 0; c < into.columns; ++c) {
      row[c] = static_cast<float>(runtime::load(t, at.origin + r * at.row + c * at.column)) * into.factor;
      bad = bad || !std::isfinite(row[c]);
    }
    std::fill(row + into.columns, row + into.row, 0.0f);
  }
  return bad;
}

void TensorRows::store(const Tensor& t, const MatrixLayout& at, const From& from) const {
  if (kit_) {
    const codegen::StoreRows args{.from = from.from,
                                  .from_row = from.row,
                                  .rows = from.rows,
                                  .columns = from.columns,
                                  .factor = from.factor,
                                  .scale = from.scale,
                                  .into = element(t, at.origin),
                                  .row = at.row,
                                  .column = at.column};
    return kit_->store_rows(&args);
  }
  for (std::int64_t r = 0; r < from.rows; ++r) {
    const double factor = static_cast<double>(from.scale * (from.factor ? from.factor[r] : 1));
    for (std::int64_t c = 0; c < from.columns; ++c)
      runtime::store(t, at.origin + r * at.row + c * at.column,
                     static_cast<double>(from.from[r * from.row + c]) * factor);
  }
}

}  // namespace attune::runtime::cpu
