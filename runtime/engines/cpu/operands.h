// runtime/engines/cpu/operands.h — code of both directions: captures and fields as kernels read them, loading and
// storing rows
#pragma once

#include <cstring>
#include <numeric>

#include "codegen/ceil_div.h"
#include "compiler/bind.h"
#include "ir/eval.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/kernels.h"
#include "runtime/engines/cpu/visits.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cpu {

/// Bytes of an element.
constexpr std::int64_t element_size(Unit unit) { return 4 / codegen::per_unit(unit); }

/// Address of an element.
inline void* element(const Tensor& t, std::int64_t offset) {
  return static_cast<char*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}
/// The same matrix without its first `rows` rows.
inline MatrixLayout shifted(MatrixLayout at, std::int64_t rows) {
  at.origin += rows * at.row;
  return at;
}

/// Captures and parameters of a call as kernels read them.
class SlotArgs {
 public:
  explicit SlotArgs(const Call& call);
  /// The frame of rows whose origin is row `first`. `head`: where the fields of the (batch entry, head) are.
  codegen::Frame frame(const Sequence& seq, std::int64_t h, std::int64_t first = 0,
                       const std::uint32_t* head = nullptr) const;

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
      : columns(given), as_k(round_up(ceil_div(given, codegen::per_unit(unit)), tiling.k)),
        as_n(round_up(given, tiling.nr)) {}
  std::int64_t columns;  ///< as given
  std::int64_t as_k;     ///< units, if products sum over the width
  std::int64_t as_n;     ///< elements, if the width is the columns of a product
};

/// The rows of one tile of queries.
struct TileRows {
  codegen::Frame frame{};
  std::int64_t first = 0, rows = 0;  ///< within the sequence
  std::int32_t position = 0;         ///< of the first row
  std::int32_t groups = 0;
};
/// The number of rows of a tile of queries is a multiple of this, in both directions. `group`: rows of a group of the
/// call's products.
constexpr std::int64_t whole_rows(std::int64_t group) { return std::lcm(group, std::int64_t{16}); }
/// The number of rows with the same origin, a multiple of the rows of any tile. A score that reads positions is rounded
/// relative to its row's origin. It therefore has the same bits in both directions, although their tiles differ, and a
/// row's p matches its delta.
constexpr std::int64_t rows_of_origin(std::int64_t group) { return round_up(256, whole_rows(group)); }
/// The t-th tile of queries. `head`: where the fields of the (batch entry, head) are.
TileRows tile_rows(const SlotArgs& slots, const Cut& cut, const Sequence& seq, std::int64_t h, std::int64_t t,
                   const std::uint32_t* head);

/// Elements from one field of rows to the next: fields are computed for whole registers of rows.
constexpr std::int64_t field_row(std::int64_t rows) { return round_up(rows, 16); }

/// One worker's memory for the fields of a (batch entry, head), of a tile's rows, and of its columns.
struct Fields {
  Fields(Workspace& memory, const codegen::ForwardParts& parts, const Cut& cut);
  /// Computes the fields of the head and of the rows.
  void compute(const ForwardKernel& kernel, const TileRows& tile) const;

  std::uint32_t *head, *row, *col;
  std::int64_t row_ld, col_ld;
};

/// The row terms (see compiler::Fold) among the fields of rows; null if there are none.
inline const float* row_terms(const codegen::ForwardParts& parts, const std::uint32_t* fields, std::int64_t ld) {
  if (!parts.has_row_term) return nullptr;
  return reinterpret_cast<const float*>(fields) + (static_cast<std::int64_t>(parts.row_fields()) - 1) * ld;
}

/// Moves rows of tensors of one type into and out of scratch. f64, which no kernel takes, is moved element by element.
class TensorRows {
 public:
  /// Rows are read as the Unit, and written from f32.
  TensorRows(const KernelsFor& what, Unit unit, DType type);
  explicit TensorRows(Held<Kit> kit) : kit_(std::move(kit)) {}

  struct Into {
    std::int64_t rows, columns;
    float factor = 1;
    void* into;
    std::int64_t row;  ///< elements between rows in scratch; those past the columns become 0
  };
  /// Returns true if any element is infinite or NaN.
  bool load(const Tensor& t, const MatrixLayout& at, const Into& into) const;

  struct From {
    const float* from;
    std::int64_t row;  ///< elements between rows in scratch
    std::int64_t rows, columns;
    const float* factor = nullptr;  ///< of each row; null: 1
    float scale = 1;                ///< of all rows
  };
  void store(const Tensor& t, const MatrixLayout& at, const From& from) const;

 private:
  Held<Kit> kit_;  ///< null for f64
};

}  // namespace attune::runtime::cpu
