// runtime/cpu/operands.h — what both directions share: captures, fields and packed keys as kernels read them
#pragma once

#include <cstring>

#include "ir/eval.h"
#include "runtime/cpu/engine.h"
#include "runtime/cpu/kernels.h"
#include "runtime/layout.h"
#include "runtime/workspace.h"

namespace attune::runtime::cpu {

constexpr std::int64_t up_to(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr std::int64_t pieces(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }

/// Byte address of an element.
inline const void* element(const Tensor& t, std::int64_t offset) {
  return static_cast<const char*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}
inline void* element_of(const Tensor& t, std::int64_t offset) {
  return static_cast<char*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}

/// Captures and parameters of a Mod, for its frames.
class Slots {
 public:
  explicit Slots(const compiler::BoundMod& bound);
  codegen::Frame frame(const compiler::Problem& problem, const Sequence& seq, std::int64_t h) const;

 private:
  std::vector<codegen::CaptureArg> captures_;
  std::vector<std::uint32_t> params_;
};

/// The unit of products on tensors of a type.
inline Unit unit_for(Isa isa, DType type) {
  return type == DType::bf16 && codegen::has_bf16(isa) ? Unit::bf16 : Unit::f32;
}

/// Widths of a head in units and elements, padded as products need them.
struct Widths {
  Widths(std::int64_t given, const codegen::Tiling& tiling, Unit unit)
      : columns(given), as_k(up_to(pieces(given, codegen::per_unit(unit)), tiling.k)), as_n(up_to(given, tiling.nr)) {}
  std::int64_t columns;  ///< as given
  std::int64_t as_k;     ///< units, where products sum over it
  std::int64_t as_n;     ///< elements, where it is a product's columns
};

/// Loads a caller's matrix as rows of operands. Returns whether any of it is infinite or NaN.
bool load_rows(const Kit& kit, const Tensor& t, const MatrixLayout& at, std::int64_t first, std::int64_t rows,
               std::int64_t columns, std::int64_t padded, float factor, void* into, std::int64_t into_row);

/// Moves rows of tensors of one type into and out of scratch. f64, which no kernel takes, is moved element by element.
class TensorRows {
 public:
  /// Rows are read as the Unit, and written from f32.
  TensorRows(Isa isa, Unit unit, DType type);
  /// Fills the tensor's side of `args` from `at`. Returns whether any of it is infinite or NaN.
  bool load(const Tensor& t, const MatrixLayout& at, codegen::LoadRows args) const;
  void store(const Tensor& t, const MatrixLayout& at, codegen::StoreRows args) const;

 private:
  std::shared_ptr<const Kit> kit_;  ///< null for f64
};

}  // namespace attune::runtime::cpu
