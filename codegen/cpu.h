// codegen/cpu.h — the CPU's kernels as their callers see them: tilings, arguments, signatures, symbols
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/isa.h"

namespace attune::codegen {

/// What a product multiplies: floats, or pairs of bf16 that lie next to each other along the summed axis. Packed
/// operands are counted in units of four bytes either way, and sums are f32.
enum class Unit : std::uint8_t { f32, bf16 };
inline constexpr std::int64_t per_unit(Unit unit) { return unit == Unit::f32 ? 1 : 2; }

/// How a product is cut: `width` f32 lanes a register, and a block of mr rows by nr columns held in registers.
struct Tiling {
  int width, mr, nr;
  int k = 1;  ///< products take k in multiples of so many units
};
Tiling tiling(Isa isa, Unit unit);
/// Does this instruction set multiply bf16? Else bf16 is widened to f32 when it is packed.
inline constexpr bool has_bf16(Isa isa) { return isa >= Isa::avx512bf16; }

// The kit: what does not depend on the user's expressions. Compiled once per (Isa, Unit, type of the tensors).

/// C (rows x columns) is made of A (rows x k) and B (k x columns).
/// A is row-major; B lies in panels of nr columns. Reads and writes whole blocks: A and C have groups * mr rows,
/// C panels * nr columns.
struct Product {
  const void* a;
  std::int64_t a_row;  ///< units from one row of A to the next
  const void* b;
  std::int64_t b_k;      ///< units from one k of B to the next
  std::int64_t b_panel;  ///< units from one panel of B to the next
  float* c;
  std::int64_t c_row;              ///< floats
  std::int64_t groups, panels, k;  ///< k in units
  /// Null: C = A B, or C + A B if `add`. Else row r of C is first multiplied by keep[r]: C = keep C + A B.
  const float* keep;
  bool add = false;
};
using ProductFn = void(const Product*);

/// Rows of a tensor of any strides, widened to f32 (times `factor`) or kept as bf16, row-major and padded with zeros up
/// to `padded` columns. Gives whether any of it is infinite or NaN.
struct LoadRows {
  const void* from;
  std::int64_t row, column;  ///< strides, in elements
  std::int64_t rows, columns, padded;
  float factor;  ///< f32 only
  void* into;
  std::int64_t into_row;  ///< elements
};
using LoadRowsFn = bool(const LoadRows*);

/// A row-major matrix as a B operand whose k runs along the columns (K for q . k): panels of nr rows, [k][nr].
/// Rows beyond `rows` are zero.
struct PackColumns {
  const void* from;
  std::int64_t from_row;  ///< units
  std::int64_t rows, k;   ///< k in units
  void* into;
  std::int64_t panel;  ///< units from one panel to the next
};
using PackColumnsFn = void(const PackColumns*);

/// A row-major matrix as a B operand whose k runs along the rows (V for p . v): panels of nr columns, [k][nr]; bf16:
/// two rows a unit. Rows beyond `rows` up to a whole unit are zero; `columns` is a multiple of nr.
struct PackRows {
  const void* from;
  std::int64_t from_row;  ///< elements
  std::int64_t rows, columns;
  void* into;
  std::int64_t panel;  ///< units
};
using PackRowsFn = void(const PackRows*);

/// A row-major matrix of elements (f32 or bf16, as the Unit) with rows and columns swapped; both counts are multiples
/// of 16 and `into` has columns x rows.
struct Transpose {
  const void* from;
  std::int64_t from_row;  ///< elements
  std::int64_t rows, columns;
  void* into;
  std::int64_t into_row;  ///< elements
};
using TransposeFn = void(const Transpose*);

/// Rows of f32, each times its factor (null: 1) and `scale`, rounded to the tensor's type, into any strides.
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

/// Few queries against keys as they lie (columns next to each other): s[r][j] = q[r] . k[j], f32.
struct Dots {
  const float* q;
  std::int64_t q_row;
  std::int64_t rows;
  const void* k;
  std::int64_t k_row;  ///< elements
  std::int64_t count, d;
  float* s;
  std::int64_t s_row;
};
using DotsFn = void(const Dots*);

/// o[r] = keep[r] o[r] + sum over j of p[r][j] v[j], v as it lies; what has p = 0 adds nothing, whatever v is.
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
};
using WeighFn = void(const Weigh*);

/// The same as Product with panels of B and keep, but a unit of A that is 0 adds nothing, whatever B is: for operands
/// that hold infinities or NaN where pairs were removed. Slow: one row at a time.
using GuardedProductFn = void(const Product*);

namespace kit_symbol {
inline constexpr const char* product = "product";
/// Of panels half as wide: of all, but of amx with Unit::bf16.
inline constexpr const char* half_product = "half_product";
inline constexpr const char* guarded_product = "guarded_product";
inline constexpr const char* load_rows = "load_rows";
inline constexpr const char* pack_columns = "pack_columns";
inline constexpr const char* pack_rows = "pack_rows";
inline constexpr const char* transpose = "transpose";
inline constexpr const char* store_rows = "store_rows";
inline constexpr const char* dots = "dots";
inline constexpr const char* weigh = "weigh";
// void(), once per task before and after its products: of amx with Unit::bf16 alone.
inline constexpr const char* tiles_begin = "tiles_begin";
inline constexpr const char* tiles_end = "tiles_end";
}  // namespace kit_symbol

// What is made of the user's expressions.

/// A captured tensor as kernels read it.
struct CaptureArg {
  const void* data;
  std::int64_t extent[4], stride[4];  ///< stride in elements
};

/// What stays the same for one (batch entry, head) and tile.
struct Frame {
  const CaptureArg* captures;
  const std::uint32_t* params;  ///< bits of an f32, an i32, or 0 and 1
  const std::uint32_t* head;    ///< fields of the head, as params
  std::int32_t b, h, q_len, kv_len;
  std::int32_t origin;  ///< see compiler::Fold
};

/// Fields of a (batch entry, head).
using HeadFieldsFn = void(const Frame*, std::uint32_t* into);
/// Fields of rows or columns: field f of position first + i to into[f * ld + i], for whole registers of positions.
using LineFieldsFn = void(const Frame*, std::int32_t first, std::int32_t count, std::uint32_t* into, std::int64_t ld);

/// The softmax of a few rows against the columns [first, last) of a tile of keys, online.
/// first and last are multiples of 2 * width; p is zeroed beyond what is kept.
struct Attend {
  const Frame* frame;
  const float* s;  ///< scores, at column 0 of the tile
  std::int64_t s_row;
  void* p;             ///< probabilities out, f32 or bf16 as the Unit: row-major, at column 0
  std::int64_t p_row;  ///< elements
  std::int32_t rows;
  std::int32_t q, kv;        ///< positions of the first row and of column 0
  std::int32_t first, last;  ///< columns
  std::int32_t kv_end;       ///< position: columns from here on are no pairs (attend_some alone looks)
  float scale;               ///< of s
  const std::uint32_t* row;  ///< fields of the rows: [field][row_ld]
  std::int64_t row_ld;
  const std::uint32_t* col;  ///< fields of the columns, at column 0
  std::int64_t col_ld;
  float* m;      ///< per row: the largest score so far; of attend_known: lse (less the row term), read
  float* l;      ///< per row: sum of exp(score - m) so far
  float* alpha;  ///< per row, out: what earlier sums are to be multiplied by
};
using AttendFn = void(const Attend*);

/// The gradients of a few rows' scores against the columns [first, last) of a tile of keys, once lse is known.
/// first and last are multiples of 2 * width.
struct Differentiate {
  const Frame* frame;
  const float* s;   ///< scores, at column 0 of the tile
  const float* dp;  ///< gradients of what prob gave: dO . V, laid out like s
  std::int64_t s_row;
  void* p;             ///< what prob gives, out, f32 (may be s) or bf16 as the Unit: row-major, at column 0
  void* ds;            ///< gradients of s / scale, out, likewise (may be dp); what is removed has 0 in both
  std::int64_t p_row;  ///< elements
  std::int32_t rows;
  std::int32_t q, kv;        ///< positions of the first row and of column 0
  std::int32_t first, last;  ///< columns
  std::int32_t kv_end;       ///< position: columns from here on are no pairs (differentiate_all does not look)
  float scale;               ///< of s
  const std::uint32_t* row;  ///< fields of the rows: [field][row_ld]
  std::int64_t row_ld;
  const std::uint32_t* col;  ///< fields of the columns, at column 0
  std::int64_t col_ld;
  const float* lse;         ///< per row, less the row term; +inf where nothing of the row is kept
  const float* delta;       ///< per row: the sum of p dp, less the gradient of lse
  float* sum;               ///< per row, of sum_rows: += p dp
  float* const* gradients;  ///< by capture's slot: contiguous sums; null where none is asked for
};
using DifferentiateFn = void(const Differentiate*);

namespace mod_symbol {
inline constexpr const char* head_fields = "head_fields";
inline constexpr const char* row_fields = "row_fields";
inline constexpr const char* col_fields = "col_fields";
inline constexpr const char* attend_all = "attend_all";    ///< no pair of the tile is removed
inline constexpr const char* attend_some = "attend_some";  ///< the mask decides
/// With lse known, for a prob mod that is not linear in p.
inline constexpr const char* attend_known = "attend_known";
inline constexpr const char* differentiate_all = "differentiate_all";    ///< no pair of the tile is removed
inline constexpr const char* differentiate_some = "differentiate_some";  ///< the mask decides
/// What `delta` is made of, for a prob mod that is not linear in p: else it is dO . O.
inline constexpr const char* sum_rows = "sum_rows";
}  // namespace mod_symbol

}  // namespace attune::codegen
