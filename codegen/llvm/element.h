// codegen/llvm/element.h — elements of tensors as f32 in registers, and back; elements of captured tensors, clamped and
// converted
#pragma once

#include <span>

#include <attune/tensor.h>

#include "codegen/isa.h"
#include "codegen/llvm/vec.h"
#include "compiler/mod.h"

namespace attune::codegen {

/// f32, f16 or bf16 in memory.
llvm::Type* element_type(Code& code, DType type);

/// Raw elements (f32, or the bits of f16 and bf16) converted to f32, exactly.
Val widened(Isa isa, DType type, Val raw);
/// Loads elements as f32, exactly.
Val load_f32(Code& code, Isa isa, DType type, Val pointer, unsigned lanes);
/// Loads the first `count` lanes; the other lanes are 0, and their memory is not touched.
Val load_some_f32(Code& code, Isa isa, DType type, Val pointer, Val count, unsigned lanes);
/// Rounded to nearest even; NaN stays NaN.
void store_f32(Code& code, Isa isa, DType type, Val value, Val pointer);

/// Detects infinities and NaN from the bits of elements, with a running maximum per lane.
class NotFinite {
 public:
  NotFinite(Code& code, DType type);
  llvm::Type* bits() const { return none_.type(); }
  Val none() const { return none_; }
  Val worse(Val before, Val bits) const;
  Val found(Val worst) const;

 private:
  Val none_, magnitude_, infinity_;
};

/// 16 bits to 32, the upper ones 0.
Val zero_extended(Val a);

/// Visits begin to end in whole vectors, then one by one: body(i, lanes).
void each(Code& code, Val begin, Val end, unsigned width, const std::function<void(Val i, unsigned lanes)>& body);

// ---- elements of captured tensors: clamped, converted, and never from outside the tensor ----------------------------

/// One index of a read.
struct ReadIndex {
  Val value;     ///< i32; unclamped
  int step = 0;  ///< 1 or -1: it rises or falls by one per lane, except where it wraps; 0: unknown
};

/// An element of the captured tensor (one per lane if an index is a vector): f32, i32 or i1.
/// `captures` points to the Frame's.
Val read_capture(Isa isa, Val captures, std::uint32_t slot, DType type, std::span<const ReadIndex> index);

}  // namespace attune::codegen
