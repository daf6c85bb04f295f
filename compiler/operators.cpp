// compiler/operators.cpp — the operators and functions of attune/expr.h: each applies the operation spelt like it
#include <attune/expr.h>

namespace attune {
namespace {

template <class... A>
detail::Handle applied(std::string_view spelling, Line at, const A&... of) {
  return detail::apply(spelling, {&of.node()...}, at);
}

}  // namespace

#define ATTUNE_ARITHMETIC(symbol)                                                            \
  Int operator symbol(Int a, Rhs<int> b) { return Int(applied(#symbol, b.at, a, b.value)); } \
  template <class>                                                                           \
  Float operator symbol(Float a, Rhs<float> b) {                                             \
    return Float(applied(#symbol, b.at, a, b.value));                                        \
  }                                                                                          \
  template Float operator symbol<void>(Float, Rhs<float>);
ATTUNE_ARITHMETIC(+)
ATTUNE_ARITHMETIC(-)
ATTUNE_ARITHMETIC(*)
ATTUNE_ARITHMETIC(/)

#define ATTUNE_COMPARISON(symbol)                                                                         \
  Bool operator symbol(Rhs<int> a, Rhs<int> b) { return Bool(applied(#symbol, b.at, a.value, b.value)); } \
  template <class>                                                                                        \
  Bool operator symbol(Rhs<float> a, Rhs<float> b) {                                                      \
    return Bool(applied(#symbol, b.at, a.value, b.value));                                                \
  }                                                                                                       \
  template Bool operator symbol<void>(Rhs<float>, Rhs<float>);
ATTUNE_COMPARISON(==)
ATTUNE_COMPARISON(!=)
ATTUNE_COMPARISON(<)
ATTUNE_COMPARISON(<=)
ATTUNE_COMPARISON(>)
ATTUNE_COMPARISON(>=)
Bool operator==(Rhs<bool> a, Rhs<bool> b) { return Bool(applied("==", b.at, a.value, b.value)); }
Bool operator!=(Rhs<bool> a, Rhs<bool> b) { return Bool(applied("!=", b.at, a.value, b.value)); }

#define ATTUNE_WHOLE(symbol) \
  Int operator symbol(Int a, Rhs<int> b) { return Int(applied(#symbol, b.at, a, b.value)); }
ATTUNE_WHOLE(%)
ATTUNE_WHOLE(&)
ATTUNE_WHOLE(|)
ATTUNE_WHOLE(^)
ATTUNE_WHOLE(<<)
ATTUNE_WHOLE(>>)

Bool operator&&(Bool a, Rhs<bool> b) { return Bool(applied("&&", b.at, a, b.value)); }
Bool operator||(Bool a, Rhs<bool> b) { return Bool(applied("||", b.at, a, b.value)); }
Bool operator!(Bool a) { return Bool(applied("!", {}, a)); }
Int operator-(Int a) { return Int(applied("-", {}, a)); }
Float operator-(Float a) { return Float(applied("-", {}, a)); }
Int operator~(Int a) { return Int(applied("~", {}, a)); }

#define ATTUNE_OF_FLOAT(name) \
  Float name(Float x, Line at) { return Float(applied(#name, at, x)); }
ATTUNE_OF_FLOAT(floor)
ATTUNE_OF_FLOAT(ceil)
ATTUNE_OF_FLOAT(round)
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

Int abs(Int x, Line at) { return Int(applied("abs", at, x)); }
Float abs(Float x, Line at) { return Float(applied("abs", at, x)); }

#define ATTUNE_OF_PAIR(name)                                                \
  Int name(Int a, Int b, Line at) { return Int(applied(#name, at, a, b)); } \
  template <class>                                                          \
  Float name(Float a, Float b, Line at) {                                   \
    return Float(applied(#name, at, a, b));                                 \
  }                                                                         \
  template Float name<void>(Float, Float, Line);
ATTUNE_OF_PAIR(min)
ATTUNE_OF_PAIR(max)

Int clamp(Int x, Int low, Int high, Line at) { return Int(applied("clamp", at, x, low, high)); }
template <class>
Float clamp(Float x, Float low, Float high, Line at) {
  return Float(applied("clamp", at, x, low, high));
}
template Float clamp<void>(Float, Float, Float, Line);
Float pow(Float x, Float y, Line at) { return Float(applied("pow", at, x, y)); }
Int floordiv(Int a, Int b, Line at) { return Int(applied("floordiv", at, a, b)); }
Int floormod(Int a, Int b, Line at) { return Int(applied("floormod", at, a, b)); }

Float f32(Int i, Line at) { return Float(applied("f32", at, i)); }
Float f32(Bool b, Line at) { return Float(applied("f32", at, b)); }
Int i32(Float x, Line at) { return Int(applied("i32", at, x)); }
Int i32(Bool b, Line at) { return Int(applied("i32", at, b)); }

Int where(Bool condition, Int a, Int b, Line at) { return Int(applied("where", at, condition, a, b)); }
Bool where(Bool condition, Bool a, Bool b, Line at) { return Bool(applied("where", at, condition, a, b)); }
template <class>
Float where(Bool condition, Float a, Float b, Line at) {
  return Float(applied("where", at, condition, a, b));
}
template Float where<void>(Bool, Float, Float, Line);

Float random(Int seed, Line at) { return Float(applied("random", at, seed)); }
Bool kept(Int seed, Int n, Line at) { return Bool(applied("kept", at, seed, n)); }
Float custom(Float value, Float derivative, Line at) { return Float(applied("custom", at, value, derivative)); }

}  // namespace attune
