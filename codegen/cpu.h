// codegen/cpu.h — the interface of the CPU's kernels: tilings, arguments, signatures, symbols
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/isa.h"

namespace attune::codegen {

/// The unit that a product multiplies: a float, or a pair of bf16 next to each other along the summed axis. In both
/// cases packed operands are counted in units of four bytes, and sums are f32.
enum class Unit : std::uint8_t { f32, bf16 };
inline constexpr std::int64_t per_unit(Unit unit) { return unit == Unit::f32 ? 1 : 2; }

/// The blocking of a product: `width` f32 lanes per register, and a block of mr rows by nr columns held in registers.
struct Tiling {
  int width, mr, nr;
  int k = 1;  ///< k must be a multiple of this many units
};
Tiling tiling(Isa isa, Unit unit);
/// True if this instruction set multiplies bf16. If not, packing widens bf16 to f32.
inline constexpr bool has_bf16(Isa isa) { return isa >= Isa::avx512bf16; }

// The kit: kernels that do not depend on the user's expressions. Compiled once per (Isa, Unit, type of the tensors).

/// C (rows x columns) from A (rows x k) times B (k x columns).
/// A is row-major; B lies in panels of nr columns. Reads and writes whole blocks: A and C have groups * mr rows,
/// C has panels * nr columns.
struct Product {
  const void* a;
  std::int64_t a_row;  ///< units from one row of A to the next
  const void* b;
  std::int64_t b_k;      ///< units from one k of B to the next
  std::int64_t b_panel;  ///< units from one panel of B to the next
  float* c;
  std::int64_t c_row;              ///< floats
  std::int64_t groups, panels, k;  ///< k in units
  /// Null: C = A B, or C = C + A B if `add`. Else scales row r of C by keep[r] first: C = keep C + A B.
  const float* keep;
  bool add = false;
};
using ProductFn = void(const Product*);

/// Rows of a tensor of any strides, widened to f32 (times `factor`) or kept as bf16, row-major and padded with zeros up
/// to `padded` columns. Returns whether any element is infinite or NaN.
struct LoadRows {
  const void* from;
  std::int64_t row, column;  ///< strides, in elements
  std::int64_t rows, columns, padded;
  float factor;  ///< f32 only
  void* into;
  std::int64_t into_row;  ///< elements
};
using LoadRowsFn = bool(const LoadRows*);

/// Packs a row-major matrix as a B operand whose k runs along the columns (K for q . k): panels of nr rows, [k][nr].
/// Rows beyond `rows` are zero.
struct PackColumns {
  const void* from;
  std::int64_t from_row;  ///< units
  std::int64_t rows, k;   ///< k in units
  void* into;
  std::int64_t panel;  ///< units from one panel to the next
};
using PackColumnsFn = void(const PackColumns*);

/// Packs a row-major matrix as a B operand whose k runs along the rows (V for p . v): panels of nr columns, [k][nr];
/// bf16: two rows per unit. Rows beyond `rows` up to a whole unit are zero; `columns` is a multiple of nr.
struct PackRows {
  const void* from;
  std::int64_t from_row;  ///< elements
  std::int64_t rows, columns;
  void* into;
  std::int64_t panel;  ///< units
};
using PackRowsFn = void(const PackRows*);

/// into[r] = row r of a times row r of b, summed as a product's elements are: one multiply-add after the other.
struct RowDots {
  const float *a, *b;
  std::int64_t row;  ///< elements from one row to the next, of both
  std::int64_t rows, columns;
  float* into;
};
using RowDotsFn = void(const RowDots*);

/// Transposes a row-major matrix of elements (f32 or bf16, as the Unit); both counts are multiples of 16 and `into` has
/// columns x rows.
struct Transpose {
  const void* from;
  std::int64_t from_row;  ///< elements
  std::int64_t rows, columns;
  void* into;
  std::int64_t into_row;  ///< elements
};
using TransposeFn = void(const Transpose*);

/// Stores rows of f32, each times its factor (null: 1) and `scale`, rounded to the tensor's type, with any strides.
struct StoreRows {
  const float* from;
  std::int64_t from_row;
  std::int64_t rows, columns;
  const float* factor;
  float scale;
  void* into;
  std::int64_t row, column;  ///< strides, in elements
};
using StoreRowsFn = void(const StoreRows*);

/// Few queries against unpacked keys (columns contiguous): s[r][j] = scale * (q[r] . k[j]), f32.
struct Dots {
  const void* q;  ///< f32; bf16 for dots_of_pairs
  std::int64_t q_row;
  std::int64_t rows;
  const void* k;
  std::int64_t k_row;  ///< elements
  std::int64_t count, d;
  float* s;
  std::int64_t s_row;
  float scale;       ///< multiplies each score
  const void* next;  ///< prefetched after the last key, with the same row stride; may be any address
};
using DotsFn = void(const Dots*);
inline constexpr int dots_columns = 32;

/// o[r] = keep[r] o[r] + sum over j of p[r][j] v[j], with v unpacked; where p = 0 nothing is added, whatever v is.
struct Weigh {
  const float* p;
  std::int64_t p_row;
  std::int64_t rows;
  const void* v;
  std::int64_t v_row;  ///< elements
  std::int64_t count, dv;
  float* o;
  std::int64_t o_row;
  const float* keep;
  const void* next;  ///< prefetched after the last value, with the same row stride; may be any address
};
using WeighFn = void(const Weigh*);

/// Like Product with panels of B and keep, but a unit of A that is 0 adds nothing, whatever B is: for operands that
/// hold infinities or NaN where pairs were masked out. Slow: one row at a time.
using GuardedProductFn = void(const Product*);

namespace kit_symbol {
inline constexpr const char* product = "product";
/// The product with panels half as wide; every kit has it except amx with Unit::bf16.
inline constexpr const char* half_product = "half_product";
inline constexpr const char* guarded_product = "guarded_product";
inline constexpr const char* load_rows = "load_rows";
inline constexpr const char* pack_columns = "pack_columns";
inline constexpr const char* pack_rows = "pack_rows";
inline constexpr const char* transpose = "transpose";
inline constexpr const char* store_rows = "store_rows";
inline constexpr const char* row_dots = "row_dots";
inline constexpr const char* dots = "dots";
/// Dots where q and k are bf16, and d is a multiple of dots_columns. Kits of bf16 have it where has_bf16(isa).
inline constexpr const char* dots_of_pairs = "dots_of_pairs";
inline constexpr const char* weigh = "weigh";
// void(), called once per task before and after its products; only in amx with Unit::bf16.
inline constexpr const char* tiles_begin = "tiles_begin";
inline constexpr const char* tiles_end = "tiles_end";
}  // namespace kit_symbol

// Kernels made from the user's expressions.

/// A captured tensor as kernels read it.
struct CaptureArg {
  const void* data;
  std::int64_t extent[4], stride[4];  ///< stride in elements
};

/// Values that are constant for one (batch entry, head) and tile.
struct Frame {
  const CaptureArg* captures;
  const std::uint32_t* params;  ///< the bits of an f32 or an i32, or 0 or 1
  const std::uint32_t* head;    ///< fields of the head, as params
  std::int32_t b, h, q_len, kv_len;
  std::int32_t origin;  ///< see compiler::Fold
};

/// Fields of a (batch entry, head).
using HeadFieldsFn = void(const Frame*, std::uint32_t* into);
/// Fields of rows or columns: writes field f of position first + i to into[f * ld + i], for whole registers of
/// positions.
using LineFieldsFn = void(const Frame*, std::int32_t first, std::int32_t count, std::uint32_t* into, std::int64_t ld);

/// The online softmax of a few rows against the columns [first, last) of a tile of keys.
/// first and last are multiples of 2 * width; p is 0 for masked-out pairs.
struct Attend {
  const Frame* frame;
  const float* s;  ///< scores, at column 0 of the tile
  std::int64_t s_row;
  void* p;             ///< out: probabilities, f32 or bf16 as the Unit: row-major, at column 0
  std::int64_t p_row;  ///< elements
  std::int32_t rows;
  std::int32_t q, kv;        ///< positions of the first row and of column 0
  std::int32_t first, last;  ///< columns
  std::int32_t kv_end;       ///< position: columns from here on are no pairs (only attend_some checks)
  float scale;               ///< multiplies s
  const std::uint32_t* row;  ///< fields of the rows: [field][row_ld]
  std::int64_t row_ld;
  const std::uint32_t* col;  ///< fields of the columns, at column 0
  std::int64_t col_ld;
  float* m;      ///< per row: the largest score so far; attend_known reads lse (less the row term) here
  float* l;      ///< per row: sum of exp(score - m) so far
  float* alpha;  ///< out, per row: the factor for earlier sums
};
using AttendFn = void(const Attend*);

/// The gradients of a few rows' scores against the columns [first, last) of a tile of keys, once lse is known.
/// first and last are multiples of 2 * width.
struct Differentiate {
  const Frame* frame;
  const float* s;   ///< scores, at column 0 of the tile
  const float* dp;  ///< gradients of prob's result: dO . V, laid out like s
  std::int64_t s_row;
  void* p;             ///< out: prob's result, f32 (may be s) or bf16 as the Unit: row-major, at column 0
  void* ds;            ///< out: gradients of s / scale, laid out like p (may be dp); masked-out pairs have 0 in both
  std::int64_t p_row;  ///< elements
  std::int32_t rows;
  std::int32_t q, kv;        ///< positions of the first row and of column 0
  std::int32_t first, last;  ///< columns
  std::int32_t kv_end;       ///< position: columns from here on are no pairs (differentiate_all does not check)
  float scale;               ///< multiplies s
  const std::uint32_t* row;  ///< fields of the rows: [field][row_ld]
  std::int64_t row_ld;
  const std::uint32_t* col;  ///< fields of the columns, at column 0
  std::int64_t col_ld;
  const float* lse;         ///< per row, less the row term; +inf if the row keeps nothing
  const float* delta;       ///< per row: the sum of p dp, less the gradient of lse
  float* sum;               ///< per row, for sum_rows: += p dp
  float* const* gradients;  ///< by capture slot: contiguous sums; null if not wanted
};
using DifferentiateFn = void(const Differentiate*);

namespace mod_symbol {
inline constexpr const char* head_fields = "head_fields";
inline constexpr const char* row_fields = "row_fields";
inline constexpr const char* col_fields = "col_fields";
inline constexpr const char* attend_all = "attend_all";    ///< no pair of the tile is masked out
inline constexpr const char* attend_some = "attend_some";  ///< the mask decides
/// With a known lse, for a prob mod that is not linear in p.
inline constexpr const char* attend_known = "attend_known";
inline constexpr const char* differentiate_all = "differentiate_all";    ///< no pair of the tile is masked out
inline constexpr const char* differentiate_some = "differentiate_some";  ///< the mask decides
/// Computes the sum in `delta` for a prob mod that is not linear in p; otherwise delta is dO . O.
inline constexpr const char* sum_rows = "sum_rows";
}  // namespace mod_symbol

}  // namespace attune::codegen
