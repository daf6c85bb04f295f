// codegen/llvm/vec.h — LLVM values, scalars and vectors, with operators that read as arithmetic; loops and branches;
// operations across lanes; members of structs
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <llvm/IR/IRBuilder.h>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace attune::codegen {

class Code;

/// An LLVM value. If one side of an operation is a vector, a scalar on the other side is splatted. A C++ number takes
/// the type of the other side. Int is i32 or i64 and wraps; Float comparisons are false on NaN, except !=.
class Val {
 public:
  Val() = default;
  Val(Code& code, llvm::Value* value) : code_(&code), value_(value) {}

  Code& code() const { return *code_; }
  llvm::Value* get() const { return value_; }
  llvm::Type* type() const { return value_->getType(); }
  explicit operator bool() const { return value_ != nullptr; }
  bool is_vector() const { return type()->isVectorTy(); }
  bool is_float() const { return type()->isFPOrFPVectorTy(); }
  /// 1 for a scalar.
  unsigned lanes() const;

 private:
  Code* code_ = nullptr;
  llvm::Value* value_ = nullptr;
};

/// A C++ number on one side of an operator; the other side is a Val.
template <class T>
concept Number = std::integral<T> || std::floating_point<T>;

/// Converts `x` for an operation with `model`: a number becomes a constant, a scalar next to a vector a splat.
Val like(const Val& model, Val x);
Val like(const Val& model, double x);

#define ATTUNE_VAL_BINARY(name)                      \
  Val name(Val a, Val b);                            \
  template <Number T>                                \
  Val name(Val a, T b) {                             \
    return name(a, like(a, static_cast<double>(b))); \
  }                                                  \
  template <Number T>                                \
  Val name(T a, Val b) {                             \
    return name(like(b, static_cast<double>(a)), b); \
  }
ATTUNE_VAL_BINARY(operator+)
ATTUNE_VAL_BINARY(operator-)
ATTUNE_VAL_BINARY(operator*)
ATTUNE_VAL_BINARY(operator/)  // Float; Int: truncates, the divisor must never be 0
ATTUNE_VAL_BINARY(operator%)  // Int, likewise
ATTUNE_VAL_BINARY(operator&)
ATTUNE_VAL_BINARY(operator|)
ATTUNE_VAL_BINARY(operator^)
ATTUNE_VAL_BINARY(operator<<)
ATTUNE_VAL_BINARY(operator>>)  // arithmetic
ATTUNE_VAL_BINARY(shift_right_logical)
ATTUNE_VAL_BINARY(operator==)
ATTUNE_VAL_BINARY(operator!=)
ATTUNE_VAL_BINARY(operator<)  // Int: signed
ATTUNE_VAL_BINARY(operator<=)
ATTUNE_VAL_BINARY(operator>)
ATTUNE_VAL_BINARY(operator>=)
ATTUNE_VAL_BINARY(min)  // as x86's: b if either is NaN
ATTUNE_VAL_BINARY(max)
#undef ATTUNE_VAL_BINARY
Val operator-(Val a);
/// Logical not for i1, bitwise not for Int.
Val operator!(Val a);

/// a * b + c, in one rounding where the machine has FMA, in two where it does not.
Val fma(Val a, Val b, Val c);
Val select(Val condition, Val a, Val b);
template <Number T>
Val select(Val condition, T a, Val b) {
  return select(condition, like(b, static_cast<double>(a)), b);
}
template <Number T>
Val select(Val condition, Val a, T b) {
  return select(condition, a, like(a, static_cast<double>(b)));
}
Val is_nan(Val a);
Val floor(Val a);
Val round_even(Val a);

/// Reinterprets the bits: f32 <-> i32.
Val as_int(Val a);
Val as_float(Val a);
/// i32 to f32.
Val to_float(Val a);
/// f32 to i32, truncating; the value must fit.
Val to_int(Val a);
/// Any integer to i64, sign extended; any to i32, truncated or extended.
Val to_i64(Val a);
Val to_i32(Val a);
/// i1 to i32: 0 or 1.
Val zero_one(Val a);

/// Marks a load: what it reads stays the same while the function runs, so LLVM may move it over stores.
Val steady(Val load);

Val splat(Val scalar, unsigned lanes);  ///< for one lane, the scalar itself
Val lane(Val vector, unsigned i);
Val with_lane(Val vector, unsigned i, Val scalar);
Val shuffle(Val a, Val b, std::span<const int> lanes);
Val shuffle(Val a, std::span<const int> lanes);
/// Horizontal sum, in a tree of fixed shape.
Val sum_of_lanes(Val a);
Val max_of_lanes(Val a);  ///< as `max`
Val any(Val condition);   ///< i1

/// A function under construction.
class Code {
 public:
  explicit Code(llvm::Function* function);
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  llvm::IRBuilder<>& ir() { return ir_; }
  llvm::Function* function() { return function_; }
  Val arg(unsigned i) { return {*this, function_->getArg(i)}; }

  llvm::Type* f32() { return ir_.getFloatTy(); }
  llvm::Type* f64() { return ir_.getDoubleTy(); }
  llvm::Type* bf16() { return ir_.getBFloatTy(); }
  llvm::Type* f16() { return ir_.getHalfTy(); }
  llvm::Type* i1() { return ir_.getInt1Ty(); }
  llvm::Type* i8() { return ir_.getInt8Ty(); }
  llvm::Type* i16() { return ir_.getInt16Ty(); }
  llvm::Type* i32() { return ir_.getInt32Ty(); }
  llvm::Type* i64() { return ir_.getInt64Ty(); }
  llvm::Type* pointer() { return ir_.getPtrTy(); }
  static llvm::Type* vector(llvm::Type* of, unsigned lanes);

  Val real(double x) { return {*this, llvm::ConstantFP::get(f32(), x)}; }
  Val integer(std::int64_t x) { return {*this, ir_.getInt32(static_cast<std::uint32_t>(x))}; }
  Val index(std::int64_t x) { return {*this, ir_.getInt64(static_cast<std::uint64_t>(x))}; }
  Val boolean(bool x) { return {*this, ir_.getInt1(x)}; }
  /// 0, 1, 2 … as i32.
  Val iota(unsigned lanes);

  /// pointer + count elements of `type`; a vector of counts gives a vector of pointers.
  Val at(Val pointer, llvm::Type* type, Val count);
  Val at(Val pointer, llvm::Type* type, std::int64_t count) { return at(pointer, type, index(count)); }
  /// Assumes alignment only to the element's size.
  Val load(llvm::Type* type, Val pointer);
  void store(Val value, Val pointer);
  /// A member of a C++ struct at `pointer`.
  Val member(llvm::Type* type, Val pointer, std::size_t offset) {
    return load(type, at(pointer, i8(), static_cast<std::int64_t>(offset)));
  }
  /// One element per lane, from a vector of pointers; `mask` null: all lanes.
  Val gather(llvm::Type* element, Val pointers, Val mask = {});

  Val call(llvm::Function* callee, std::initializer_list<Val> args);
  Val intrinsic(llvm::Intrinsic::ID id, std::initializer_list<llvm::Type*> types, std::initializer_list<Val> args);

  using Carried = std::vector<Val>;
  /// for (i = begin; i < end; i += step) carried = body(i, carried). Returns the final values, or `carried` if the loop
  /// never ran.
  Carried loop(Val begin, Val end, std::int64_t step, Carried carried,
               const std::function<Carried(Val i, const Carried& carried)>& body);
  void loop(Val begin, Val end, std::int64_t step, const std::function<void(Val i)>& body);
  /// if (condition) then() else otherwise(). Returns the values of the branch taken.
  Carried branch(Val condition, const std::function<Carried()>& then, const std::function<Carried()>& otherwise);
  void when(Val condition, const std::function<void()>& then);
  void done() { ir_.CreateRetVoid(); }

 private:
  llvm::Function* function_;
  llvm::IRBuilder<> ir_;
};

// ---- across lanes of several registers ------------------------------------------------------------------------------

/// Transposes 4, 8 or 16 vectors of 4 lanes: lane j of vector i becomes lane i of vector j.
std::array<Val, 4> transposed(const std::vector<Val>& rows);

/// Lane i is the sum of vector i's lanes. Takes as many f32 vectors as each has lanes.
Val sums_of_lanes(const std::vector<Val>& vectors);

// ---- members of the C++ structs that kernels are called with --------------------------------------------------------

/// args(&Product::k) is the code that reads it.
template <class Struct>
class Args {
 public:
  Args(Code& code, Val pointer) : code_(code), pointer_(pointer) {}

  template <class T>
  Val operator()(T Struct::*member) const {
    static constexpr Struct model{};
    const auto offset = reinterpret_cast<const char*>(&(model.*member)) - reinterpret_cast<const char*>(&model);
    return code_.member(type_of<T>(), pointer_, static_cast<std::size_t>(offset));
  }

 private:
  template <class T>
  llvm::Type* type_of() const {
    if constexpr (std::is_pointer_v<T>) return code_.pointer();
    if constexpr (std::is_same_v<T, float>) return code_.f32();
    if constexpr (std::is_integral_v<T>) return code_.ir().getIntNTy(8 * sizeof(T));
  }

  Code& code_;
  Val pointer_;
};

}  // namespace attune::codegen
