// codegen/llvm/pairs.h — the code that kernels over a tile's pairs share: fields, coordinates, scores
#pragma once

#include <initializer_list>
#include <limits>
#include <numbers>
#include <span>

#include "codegen/cpu.h"
#include "codegen/facts/parts.h"
#include "codegen/llvm/math.h"
#include "codegen/llvm/mod.h"
#include "codegen/llvm/module.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {

inline constexpr double log2e = std::numbers::log2e, infinity = std::numeric_limits<double>::infinity();

/// A kernel's Frame, as values.
struct FrameCode {
  FrameCode(Code& code, Val frame);
  At at() const;
  Val head_field(std::uint32_t index, ir::Type type) const;

  Code& code;
  Val captures, params, head, b, h, q_len, kv_len, origin;
};

/// The members that Attend and Differentiate share: the rows and columns of a kernel call.
struct PairsCode {
  template <class Struct>
  explicit PairsCode(Code& c, const Args<Struct>& args)
      : code(c), frame(c, args(&Struct::frame)), s(args(&Struct::s)), s_row(args(&Struct::s_row)),
        p_row(args(&Struct::p_row)), rows(to_i64(args(&Struct::rows))), q(args(&Struct::q)), kv(args(&Struct::kv)),
        first(to_i64(args(&Struct::first))), last(to_i64(args(&Struct::last))), kv_end(args(&Struct::kv_end)),
        scale(args(&Struct::scale)), row(args(&Struct::row)), row_ld(args(&Struct::row_ld)), col(args(&Struct::col)),
        col_ld(args(&Struct::col_ld)) {}

  Code& code;
  FrameCode frame;
  Val s, s_row, p_row, rows, q, kv, first, last, kv_end, scale, row, row_ld, col, col_ld;

  /// An element of a matrix laid out as the scores are.
  Val scores_at(Val matrix, Val r, Val c) const { return code.at(matrix, code.f32(), r * s_row + c); }
  Val of_row(Val per_row, Val r) const { return code.at(per_row, code.f32(), r); }
};

/// A module of kernels over pairs, under construction.
struct PairKernels {
  PairKernels(const ForwardParts& of, std::span<const compiler::CaptureSlot> captured, Isa isa, Unit u,
              const char* name);

  unsigned width() const { return static_cast<unsigned>(tiling.width); }
  Isa isa() const { return module.isa(); }
  /// A kernel that takes a pointer to its struct.
  llvm::Function* kernel(const char* symbol);
  /// head_fields, row_fields and col_fields.
  void define_fields();

  /// The inputs of a register of elements: its coordinates, and its fields from where the driver stored them.
  At element(const PairsCode& pairs, Val r, Val c) const;
  /// The same for a whole row.
  At row(const PairsCode& pairs, Val r) const;
  Expressions expressions(At at) const { return {isa(), captures, std::move(at)}; }
  /// The product's q . k, times the scale.
  Val load_s(const PairsCode& pairs, Val r, Val c) const;
  /// Scores at `at`, -inf for masked-out pairs. `some`: the mask and kv_end mask out pairs; otherwise only a score of
  /// -inf does.
  Val score(const PairsCode& pairs, const At& at, Expressions& emit, bool some) const;
  /// Stores probabilities, or values laid out like them, rounded to the Unit's type.
  void store_p(const PairsCode& pairs, Val into, Val r, Val c, Val p) const;
  Degree degree() const { return unit == Unit::bf16 ? Degree::bf16 : Degree::f32; }

  const ForwardParts& parts;
  std::span<const compiler::CaptureSlot> captures;
  Unit unit;
  Tiling tiling;
  Module module;

 private:
  llvm::Function* define(const char* symbol, std::initializer_list<llvm::Type*> args);
  void define_line_fields(const char* symbol, ir::Level level);
};

}  // namespace attune::codegen
