// runtime/engines/cpu/query_tiles.h — tiles of queries and of grad_o, in the layouts of the backward's products
#pragma once

#include <vector>

#include "runtime/engines/cpu/operands.h"
#include "runtime/engines/cpu/visits.h"

namespace attune::runtime::cpu {

/// The tiling and the layouts of the backward's operands.
struct BackwardSizes {
  BackwardSizes(const compiler::Problem& problem, const codegen::Tiling& of, Unit u);

  Unit unit;
  codegen::Tiling tiling;
  Cut cut;
  Widths d, dv;

  std::int64_t per_unit() const { return codegen::per_unit(unit); }
  std::int64_t element_size() const { return cpu::element_size(unit); }
  /// Elements of a row of q or k, or of grad_o or v.
  std::int64_t row(const Widths& w) const { return round_up(w.as_k * per_unit(), 16); }
  /// For k, which is a factor of two products.
  std::int64_t k_row() const { return std::max(row(d), d.as_n); }
  /// Units in a panel of all rows of p or ds.
  std::int64_t panel_of_rows() const { return cut.tile_q / per_unit() * tiling.nr; }
  /// Rows and columns that products sum over come in multiples of this.
  std::int64_t step() const { return per_unit() * tiling.k; }
  /// Rows of a transposed tile of queries, and of the sums of dk or dv: as many as products read and write.
  std::int64_t rows_of_transposed(const Widths& w) const { return std::max(row(w), rows_of_sums(w)); }
  std::int64_t rows_of_sums(const Widths& w) const { return round_up(w.columns, tiling.mr); }

  // Elements between rows. They include a gap of one cache line: rows a power of two apart would fall into the same few
  // sets.
  std::int64_t transposed_row() const { return cut.tile_q + gap(); }
  std::int64_t score_row() const { return cut.tile_kv + gap(); }

 private:
  std::int64_t gap() const { return 16 * per_unit(); }
};

/// A tile of q or of grad_o, loaded.
struct LoadedRows {
  std::uint32_t* rows = nullptr;        ///< [tile_q][row]
  std::uint32_t* transposed = nullptr;  ///< [rows_of_transposed][transposed_row]
  /// Rows that hold an infinity or a NaN. They are 0 in the transposed copy, since removed pairs must not meet them.
  std::vector<std::int32_t> bad{};
};

/// A tile of queries, loaded.
struct QueryTile : TileRows {
  LoadedRows q{}, grad_o{};
  float *lse = nullptr, *delta = nullptr;  ///< see Differentiate
  std::uint32_t* fields = nullptr;         ///< for the rows
  bool ready = false;
};

QueryTile lay_out_query_tile(Workspace& memory, const BackwardSizes& sizes, std::int64_t fields);
/// Clears the elements that products read but that are never written.
void clear_margins(const QueryTile& tile, const BackwardSizes& sizes);

/// Loads and transposes q or grad_o, one tile after another.
class QueryLoader {
 public:
  QueryLoader(const Kit& kit, const BackwardSizes& sizes, const compiler::Problem& problem)
      : kit_(kit), sizes_(sizes), problem_(problem) {}

  /// A tensor shaped like q, and how it is loaded.
  struct Operand {
    const Tensor& tensor;
    const TensorRows& rows;
    const Widths& width;
    float factor;
  };
  void operator()(const Operand& from, const Sequence& seq, std::int64_t h, const TileRows& tile,
                  LoadedRows& into) const;

 private:
  /// Finds the rows that are not finite, and clears them in the transposed copy.
  void clear_bad(const Widths& width, std::int64_t rows, LoadedRows& of) const;

  const Kit& kit_;
  const BackwardSizes& sizes_;
  const compiler::Problem& problem_;
};

/// An element of an operand as f32.
inline float operand(Unit unit, const void* matrix, std::int64_t i) {
  if (unit == Unit::f32) return static_cast<const float*>(matrix)[i];
  return static_cast<float>(static_cast<const bf16*>(matrix)[i]);
}

}  // namespace attune::runtime::cpu
