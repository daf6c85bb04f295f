// include/attune/expr.h — values known only inside the kernel: Float, Int, Bool, At, their operators and functions
#pragma once

#include <attune/cxx20.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

namespace attune {

namespace ir {
struct Node;
}
struct Tensor;

/// The line a piece of an expression was written on.
struct Line {
  const char* file = nullptr;
  int number = 0;
  static constexpr Line here(const char* file = __builtin_FILE(), int number = __builtin_LINE()) {
    return {file, number};
  }
};

namespace detail {
using Handle = std::shared_ptr<const ir::Node>;
Handle literal(double value, Line at);
Handle literal(long long value, Line at);
Handle literal(bool value, Line at);
/// The operation with this spelling; see ir/ops.def.
Handle apply(std::string_view spelling, std::initializer_list<const Handle*> arguments, Line at);
Handle sum(int count, const std::function<Handle(Handle)>& body, Line at);

template <class>
inline constexpr bool never = false;

template <class N, class T>
concept LiteralOf = (std::same_as<T, float> && std::is_arithmetic_v<N> && !std::same_as<N, bool>) ||
                    (std::same_as<T, int> && std::integral<N> && !std::same_as<N, bool>) ||
                    (std::same_as<T, bool> && std::same_as<N, bool>);
}  // namespace detail

/// A Float, Int or Bool at one (batch, head, q, kv). A C++ number becomes a literal of the kernel, a Param an argument.
template <class T>
class Value {
 public:
  template <class N>
  requires detail::LiteralOf<N, T> Value(N number, Line at = Line::here()) {
    if constexpr (std::same_as<N, bool>)
      node_ = detail::literal(number, at);
    else if constexpr (std::same_as<T, int>)
      node_ = detail::literal(static_cast<long long>(number), at);
    else
      node_ = detail::literal(static_cast<double>(number), at);
  }

  /// An Int widens to Float; nothing narrows.
  template <class W>
  requires std::same_as<W, int> && std::same_as<T, float> Value(const Value<W>& wide, Line at = Line::here())
      : node_(detail::apply("f32", {&wide.node()}, at)) {}

  template <class W>
  requires std::same_as<W, float> && std::same_as<T, int> Value(const Value<W>&)  // attune: write i32(x), it truncates
  = delete;

  explicit Value(detail::Handle node) : node_(std::move(node)) {}

  /// A Value does not convert to a C++ number: this exists to say so in one readable error.
  template <class N>
  requires std::is_arithmetic_v<N>
  explicit operator N() const {
    static_assert(detail::never<N>,
                  "attune: a value of the kernel is no C++ number or condition: write where(condition, a, b) for if, "
                  "&& and || for logic, f32(i) and i32(x) to convert");
    return {};
  }

  const detail::Handle& node() const { return node_; }

 private:
  detail::Handle node_;
};

using Float = Value<float>;
using Int = Value<int>;
using Bool = Value<bool>;

/// The right-hand side of an operator, remembering the line it was written on.
template <class T>
struct Rhs {
  Value<T> value;
  Line at;
  template <class U>
  requires std::convertible_to<U, Value<T>> Rhs(const U& from, Line here = Line::here()) : value(from), at(here) {}
};

namespace detail {
struct ParamCell {
  std::string name;
  bool is_float;
  double value;
};
Handle param(const std::shared_ptr<ParamCell>& cell, Line at);
}  // namespace detail

/// A scalar argument of the kernel: set it between calls without recompiling. Copies share the value.
template <class T>
requires std::same_as<T, float> || std::same_as<T, int>
class Param {
 public:
  Param(std::string name, T value)
      : cell_(std::make_shared<detail::ParamCell>(
            detail::ParamCell{std::move(name), std::same_as<T, float>, static_cast<double>(value)})) {}
  Param& operator=(T value) {
    cell_->value = static_cast<double>(value);
    return *this;
  }
  template <class U>
  requires std::same_as<U, T> || std::same_as<U, float>
  operator Value<U>() const {
    const Value<T> own(detail::param(cell_, {}));
    return own;
  }
  /// A Param has no gradient: this exists to say so in one readable error.
  template <class U>
  requires std::same_as<U, Tensor>
  operator U() const {
    static_assert(detail::never<U>,
                  "attune: a Param is no tensor and has no gradient: capture a tensor of one value, and read it as "
                  "one()");
    return {};
  }

 private:
  std::shared_ptr<detail::ParamCell> cell_;
};

/// The coordinates of a score. Passed as one struct, so that a new coordinate breaks no lambda.
struct At {
  Int batch, head, q, kv;  ///< head is the query head; positions are logical (within the sequence of a packed batch)
  Int q_len, kv_len;       ///< of this batch entry
};

// Operators and functions are defined in compiler/trace.cpp: in a header they would take half of the compile time
// of a file with one mod. The Float forms are templates only so that the Int ones win when both sides are Ints or
// integer literals.
#define ATTUNE_ARITHMETIC(symbol)         \
  Int operator symbol(Int a, Rhs<int> b); \
  template <class = void>                 \
  Float operator symbol(Float a, Rhs<float> b);
ATTUNE_ARITHMETIC(+)
ATTUNE_ARITHMETIC(-)
ATTUNE_ARITHMETIC(*)
ATTUNE_ARITHMETIC(/)
#undef ATTUNE_ARITHMETIC

// Both sides convert, so that C++20's reversed candidates are the same function.
#define ATTUNE_COMPARISON(symbol)               \
  Bool operator symbol(Rhs<int> a, Rhs<int> b); \
  template <class = void>                       \
  Bool operator symbol(Rhs<float> a, Rhs<float> b);
ATTUNE_COMPARISON(==)
ATTUNE_COMPARISON(!=)
ATTUNE_COMPARISON(<)
ATTUNE_COMPARISON(<=)
ATTUNE_COMPARISON(>)
ATTUNE_COMPARISON(>=)
#undef ATTUNE_COMPARISON
Bool operator==(Rhs<bool> a, Rhs<bool> b);
Bool operator!=(Rhs<bool> a, Rhs<bool> b);

// Int only; for a Float the compiler's error says what to write instead.
#define ATTUNE_WHOLE(symbol, advice)                                            \
  Int operator symbol(Int a, Rhs<int> b);                                       \
  template <class T = void>                                                     \
  Float operator symbol(Float a, Rhs<float>) {                                  \
    static_assert(detail::never<T>, "attune: " #symbol " takes Ints: " advice); \
    return a;                                                                   \
  }
ATTUNE_WHOLE(%, "for Floats write x - y * floor(x / y)")
ATTUNE_WHOLE(&, "convert a Float with i32(x)")
ATTUNE_WHOLE(|, "convert a Float with i32(x)")
ATTUNE_WHOLE(^, "for a power write pow(x, y)")
ATTUNE_WHOLE(<<, "scale a Float by a power of two instead")
ATTUNE_WHOLE(>>, "scale a Float by a power of two instead")
#undef ATTUNE_WHOLE

/// Always evaluates both sides; there are no side effects.
Bool operator&&(Bool a, Rhs<bool> b);
Bool operator||(Bool a, Rhs<bool> b);
Bool operator!(Bool a);
Int operator-(Int a);
Float operator-(Float a);
Int operator~(Int a);

// Mistakes for which C++ would print a page of candidates.
namespace detail {
template <class T>
concept Number = std::convertible_to<const T&, Float>;  // Int, Float, their literals and Params
template <class T>
concept Condition = std::convertible_to<const T&, Bool>;
template <class T>
concept NumberValue = std::same_as<T, Int> || std::same_as<T, Float>;

template <class A, class B>
concept Chained = (std::same_as<A, Bool> && Number<B>) || (Number<A> && std::same_as<B, Bool>);
template <class A, class B>
concept WithBool = Chained<A, B> ||(std::same_as<A, Bool>&& Condition<B>) || (Condition<A> && std::same_as<B, Bool>);
template <class A, class B>
concept WithNumber = (NumberValue<A> && (Number<B> || Condition<B>)) || ((Number<A> || Condition<A>)&&NumberValue<B>);
}  // namespace detail

#define ATTUNE_SLIP(symbol, slip, advice)                                \
  template <class A, class B>                                            \
  requires detail::slip<A, B> Bool operator symbol(const A&, const B&) { \
    static_assert(detail::never<A>, "attune: " advice);                  \
    return true;                                                         \
  }
ATTUNE_SLIP(<, Chained, "a comparison cannot be chained: write a < b && b < c")
ATTUNE_SLIP(<=, Chained, "a comparison cannot be chained: write a <= b && b <= c")
ATTUNE_SLIP(>, Chained, "a comparison cannot be chained: write a > b && b > c")
ATTUNE_SLIP(>=, Chained, "a comparison cannot be chained: write a >= b && b >= c")
ATTUNE_SLIP(==, Chained, "a comparison cannot be chained: write a == b && b == c")
ATTUNE_SLIP(!=, Chained, "a comparison cannot be chained: write a != b && b != c")
ATTUNE_SLIP(&, WithBool,
            "& is for the bits of Ints: join conditions with &&, and write (i & 1) == 0, since == binds tighter")
ATTUNE_SLIP(|, WithBool, "| is for the bits of Ints: join conditions with ||")
ATTUNE_SLIP(^, WithBool, "^ is for the bits of Ints: write != between conditions")
ATTUNE_SLIP(+, WithBool, "+ takes numbers: convert a Bool with f32(b) or i32(b)")
ATTUNE_SLIP(-, WithBool, "- takes numbers: convert a Bool with f32(b) or i32(b)")
ATTUNE_SLIP(*, WithBool, "* takes numbers: convert a Bool with f32(b) or i32(b), or write where(b, x, 0)")
ATTUNE_SLIP(/, WithBool, "/ takes numbers: convert a Bool with f32(b) or i32(b)")
ATTUNE_SLIP(&&, WithNumber, "&& joins Bools: compare a number first, e.g. i != 0")
ATTUNE_SLIP(||, WithNumber, "|| joins Bools: compare a number first, e.g. i != 0")
#undef ATTUNE_SLIP
#define ATTUNE_BINDS(symbol)                                                                                    \
  template <class B>                                                                                            \
  requires std::same_as<B, bool> Int operator symbol(const Int& a, B) {                                         \
    static_assert(detail::never<B>, "attune: == binds tighter than " #symbol ": write (i " #symbol " 1) == 0"); \
    return a;                                                                                                   \
  }
ATTUNE_BINDS(&)
ATTUNE_BINDS(|)
ATTUNE_BINDS(^)
#undef ATTUNE_BINDS
template <detail::NumberValue A>
Bool operator!(const A&) {
  static_assert(detail::never<A>, "attune: ! takes a Bool: for a number write i == 0");
  return true;
}

// Functions: one declaration each.
#define ATTUNE_OF_FLOAT(name) Float name(Float x, Line at = Line::here());
ATTUNE_OF_FLOAT(floor)
ATTUNE_OF_FLOAT(ceil)
ATTUNE_OF_FLOAT(round)  // halves away from zero
ATTUNE_OF_FLOAT(trunc)
ATTUNE_OF_FLOAT(sqrt)
ATTUNE_OF_FLOAT(rsqrt)
ATTUNE_OF_FLOAT(exp)
ATTUNE_OF_FLOAT(exp2)
ATTUNE_OF_FLOAT(log)
ATTUNE_OF_FLOAT(log2)
ATTUNE_OF_FLOAT(sin)
ATTUNE_OF_FLOAT(cos)
ATTUNE_OF_FLOAT(tan)
ATTUNE_OF_FLOAT(tanh)
ATTUNE_OF_FLOAT(sigmoid)
ATTUNE_OF_FLOAT(erf)
#undef ATTUNE_OF_FLOAT

Int abs(Int x, Line at = Line::here());
Float abs(Float x, Line at = Line::here());

#define ATTUNE_OF_PAIR(name)                      \
  Int name(Int a, Int b, Line at = Line::here()); \
  template <class = void>                         \
  Float name(Float a, Float b, Line at = Line::here());
ATTUNE_OF_PAIR(min)  // if one operand is NaN, the result is the other
ATTUNE_OF_PAIR(max)
#undef ATTUNE_OF_PAIR

Int clamp(Int x, Int low, Int high, Line at = Line::here());
template <class = void>
Float clamp(Float x, Float low, Float high, Line at = Line::here());
Float pow(Float x, Float y, Line at = Line::here());
/// Division that rounds down, and its remainder; `/` and `%` round toward zero. Division by 0 gives 0.
Int floordiv(Int a, Int b, Line at = Line::here());
Int floormod(Int a, Int b, Line at = Line::here());

Float f32(Int i, Line at = Line::here());
Float f32(Bool b, Line at = Line::here());
Int i32(Float x, Line at = Line::here());
Int i32(Bool b, Line at = Line::here());

/// a where the condition holds, else b; both are evaluated.
Int where(Bool condition, Int a, Int b, Line at = Line::here());
Bool where(Bool condition, Bool a, Bool b, Line at = Line::here());
template <class = void>
Float where(Bool condition, Float a, Float b, Line at = Line::here());
template <detail::NumberValue C, class A, class B>
Float where(const C&, const A&, const B&) {
  static_assert(detail::never<C>, "attune: where(...) starts with a Bool: compare something, e.g. i != 0");
  return 0;
}
template <class A, class B>
requires detail::Chained<A, B> Float where(const Bool&, const A&, const B&) {
  static_assert(detail::never<A>, "attune: the two values of where(...) have one type: convert a Bool with f32(b)");
  return 0;
}

/// body(0) + … + body(count - 1). The count is a C++ number, at most 1024.
template <class Body>
auto sum(int count, Body body, Line at = Line::here()) {
  static_assert(std::invocable<Body, Int>, "attune: the body of a sum is called with (Int i)");
  if constexpr (std::invocable<Body, Int>) {
    using Term = std::remove_cvref_t<std::invoke_result_t<Body, Int>>;
    static_assert(detail::NumberValue<Term>, "attune: the body of a sum returns Float or Int");
    return Term(detail::sum(
        count, [&](detail::Handle i) { return body(Int(std::move(i))).node(); }, at));
  } else {
    return Float(0);
  }
}
template <detail::NumberValue Count, class Body>
Float sum(const Count&, Body) {
  static_assert(detail::never<Count>,
                "attune: the count of a sum is a C++ number, known when the kernel is made: sum to the largest count "
                "and add 0 past the end");
  return 0;
}

/// Uniform in [0, 1): the same number for the same (seed, batch, head, q, kv) on every engine and in the backward.
Float random(Int seed, Line at = Line::here());
/// True for n of 65536 pairs: the same for equal (seed, batch, head, q, kv) on every engine and in the backward.
Bool kept(Int seed, Int n, Line at = Line::here());

/// `value`, with `derivative` used as its derivative by s (in a score) or p (in a prob mod). Gradients of captured
/// tensors still come from `value`.
Float custom(Float value, Float derivative, Line at = Line::here());

}  // namespace attune
