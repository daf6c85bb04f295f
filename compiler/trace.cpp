// compiler/trace.cpp — the DSL's operators and functions make nodes; a running trace assigns slots to captures and
// parameters
#include "compiler/trace.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include <attune/expr.h>
#include <attune/mods.h>

#include "ir/named.h"
#include "ir/parse.h"
#include "ir/print.h"

namespace attune {
namespace {

using compiler::BoundMod;

/// The trace running on this thread; it numbers and names captures and parameters when it is done.
thread_local BoundMod* tracing = nullptr;

struct Tracing {
  explicit Tracing(BoundMod& traced) : before(tracing) { tracing = &traced; }
  ~Tracing() { tracing = before; }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;
  BoundMod* before;
};

Place place(Line at) { return {.name = at.file ? at.file : "", .line = at.file ? at.number : 0}; }

ir::Written written(Line at) { return {.file = at.file, .line = static_cast<std::uint32_t>(at.number)}; }

BoundMod& current(const std::string& what, Line at) {
  if (tracing) return *tracing;
  throw Error("outside-trace", what + " is read outside of a score, mask, prob mod or sink", place(at),
              "its value is known only inside the kernel",
              "read it in the lambda that you pass to Score, Mask, Prob or Sink");
}

std::string free_name(const BoundMod& traced, std::string wanted, std::string_view fallback) {
  const auto taken = [&](const std::string& name) {
    for (const auto& c : traced.mod.captures)
      if (c.name == name) return true;
    for (const auto& p : traced.mod.params)
      if (p.name == name) return true;
    return false;
  };
  const bool usable = ir::is_name(wanted) && !ir::is_reserved(wanted);
  const std::string stem = usable ? wanted : std::string(fallback);
  std::string name = usable ? stem : stem + "0";
  for (int i = 1; taken(name); ++i) name = stem + std::to_string(i);
  return name;
}

}  // namespace

namespace detail {

Handle literal(double value, Line at) { return ir::real(static_cast<float>(value), written(at)); }

Handle literal(long long value, Line at) {
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
    throw Error("bad-number", "the literal " + std::to_string(value) + " is no Int", place(at),
                "an Int holds -2147483648 to 2147483647", "use a Float, or a number in range");
  return ir::integer(static_cast<std::int32_t>(value), written(at));
}

Handle literal(bool value, Line at) { return ir::boolean(value, written(at)); }

Handle apply(std::string_view spelling, std::initializer_list<const Handle*> arguments, Line at) {
  const auto named = ir::op_named(spelling), op = named ? named : ir::op_signed(spelling, arguments.size());
  if (!op) throw Bug("the language has no operation spelt " + std::string(spelling));
  const auto a = [&](std::size_t i) -> const Handle& { return *arguments.begin()[i]; };
  // An Int literal that widens becomes a Float literal.
  if (*op == ir::Op::F32 && ir::is_literal(a(0)) && a(0)->type == ir::Type::I32)
    return ir::real(static_cast<float>(ir::literal_value(*a(0))), written(at));
  if (arguments.size() == 1) return ir::op(*op, a(0), written(at));
  if (arguments.size() == 2) return ir::op(*op, a(0), a(1), written(at));
  return ir::op(*op, a(0), a(1), a(2), written(at));
}

Handle sum(int count, const std::function<Handle(Handle)>& body, Line at) {
  if (count < 0 || count > static_cast<int>(ir::max_sum_count))
    throw Error("bad-sum", "a sum over " + std::to_string(count) + " terms", place(at), "a sum has 0 to 1024 terms",
                "sum fewer terms, or split the sum");
  const Handle variable = ir::fresh_bound(written(at));
  const Handle term = body(variable);
  if (term->binder >= ir::max_binders)
    throw Error("bad-sum", "sums nest too deep", place(at), "they nest at most 31 deep",
                "compute the inner sums outside of the kernel");
  return ir::sum(variable, static_cast<std::uint32_t>(count), term, written(at));
}

Handle param(const std::shared_ptr<ParamCell>& cell, Line at) {
  BoundMod& traced = current("parameter `" + cell->name + "`", at);
  for (std::size_t i = 0; i < traced.slots.params.size(); ++i)
    if (traced.slots.params[i] == cell) return ir::param(static_cast<std::uint32_t>(i), traced.mod.params[i].type);
  const ir::Type type = cell->is_float ? ir::Type::F32 : ir::Type::I32;
  traced.mod.params.push_back({{}, type});
  traced.slots.params.push_back(cell);
  return ir::param(static_cast<std::uint32_t>(traced.slots.params.size() - 1), type);
}

Handle read(const Tensor& tensor, const std::string& name, std::span<const Handle> index, Line at) {
  const std::string called = name.empty() ? "a captured tensor" : "capture `" + name + "`";
  BoundMod& traced = current(called, at);
  if (tensor.rank != static_cast<int>(index.size()))
    throw Error("wrong-rank", called + " is read with " + std::to_string(index.size()) + " indices", place(at),
                "it has " + std::to_string(tensor.rank) + " dimensions",
                "give one index for each dimension: t[i], t(i, j), …");
  if (tensor.declared() && name.empty())
    throw Error("capture-missing", "a captured tensor without memory has no name", place(at),
                "it was declared for calls to bind, and only its name identifies it",
                "name it: Capture<float> slope(Tensor::declared(DType::f32, 1), \"slope\")");
  // Compare names too: two tensors that were declared without data compare equal as Tensors, but are different
  // captures.
  std::uint32_t slot = 0;
  while (slot < traced.slots.captures.size() &&
         !(traced.slots.captures[slot] == tensor && traced.slots.asked[slot] == name))
    ++slot;
  if (slot == traced.slots.captures.size()) {
    traced.mod.captures.push_back({{}, tensor.dtype, tensor.rank});
    traced.slots.captures.push_back(tensor);
    traced.slots.asked.push_back(name);
  }
  return ir::read(slot, compiler::type_of(tensor.dtype), index, written(at));
}

}  // namespace detail

void mods::detail::check_share(std::string_view name, const Float& number, Line at) {
  if (!ir::is_no_share(number.node())) return;
  throw Error("bad-argument", "`" + std::string(name) + "` cannot be " + ir::print(number.node(), {}), place(at),
              ir::why_a_share, ir::fix_of_a_share);
}

namespace compiler {
namespace {

/// The slots of one kind in the order that expressions first use them, then those that were read and dropped.
std::vector<std::uint32_t> met(std::span<const ir::Expr> roots, ir::Op kind, std::size_t count) {
  std::vector<std::uint32_t> order;
  std::vector<bool> seen(count);
  const auto meet = [&](std::uint32_t slot) {
    if (!seen[slot]) order.push_back(slot);
    seen[slot] = true;
  };
  for (const ir::Expr& e : ir::in_order(roots))
    if (e->op == kind) meet(e->bits);
  for (std::uint32_t slot = 0; slot < count; ++slot) meet(slot);
  return order;
}

template <class T>
void reorder(std::vector<T>& values, std::span<const std::uint32_t> order) {
  std::vector<T> now;
  for (const std::uint32_t from : order) now.push_back(std::move(values[from]));
  values = std::move(now);
}

std::vector<std::uint32_t> inverse(std::span<const std::uint32_t> order) {
  std::vector<std::uint32_t> to(order.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) to[order[i]] = i;
  return to;
}

/// C++ does not specify which side of an operator is evaluated first. Slots follow the order in the expressions, so
/// that a Mod does not depend on the C++ compiler.
void number_slots(BoundMod& traced) {
  Mod& mod = traced.mod;
  const std::array roots{mod.score, mod.mask, mod.prob, mod.sink};
  const auto captures = met(roots, ir::Op::Read, traced.slots.captures.size());
  const auto params = met(roots, ir::Op::Param, traced.slots.params.size());
  reorder(traced.slots.captures, captures);
  reorder(traced.slots.asked, captures);
  reorder(mod.captures, captures);
  reorder(traced.slots.params, params);
  reorder(mod.params, params);
  const auto capture_to = inverse(captures), param_to = inverse(params);
  if (!std::ranges::is_sorted(captures) || !std::ranges::is_sorted(params))
    for (ir::Expr* root : {&mod.score, &mod.mask, &mod.prob, &mod.sink})
      if (*root)
        *root = ir::rebuild(*root, [&](const ir::Expr& e, std::span<const ir::Expr> args) -> ir::Expr {
          if (e->op == ir::Op::Param) return ir::param(param_to[e->bits], e->type, e->written);
          return e->op == ir::Op::Read ? ir::read(capture_to[e->bits], e->type, args, e->written) : nullptr;
        });
  for (CaptureSlot& c : mod.captures) c.name.clear();
  for (ir::Signature::Param& p : mod.params) p.name.clear();
  for (std::size_t i = 0; i < traced.slots.captures.size(); ++i)
    mod.captures[i].name = free_name(traced, traced.slots.asked[i], "t");
  for (std::size_t i = 0; i < traced.slots.params.size(); ++i)
    mod.params[i].name = free_name(traced, traced.slots.params[i]->name, "c");
}

}  // namespace

BoundMod trace(const Attention& attention) {
  BoundMod traced;
  const Tracing scope(traced);
  const auto in = [](ir::Input which) { return Int(ir::input(which)); };
  const At at{.batch = in(ir::Input::B),
              .head = in(ir::Input::H),
              .q = in(ir::Input::Q),
              .kv = in(ir::Input::KV),
              .q_len = in(ir::Input::QLen),
              .kv_len = in(ir::Input::KVLen)};
  traced.mod.score = attention.score(Float(ir::input(ir::Input::S)), at).node();
  traced.mod.mask = attention.mask(at).node();
  traced.mod.prob = attention.prob(Float(ir::input(ir::Input::P)), at).node();
  if (attention.sink) traced.mod.sink = attention.sink({.batch = at.batch, .head = at.head}).node();
  for (const ir::Expr& root : {traced.mod.score, traced.mod.mask, traced.mod.prob, traced.mod.sink})
    if (root && root->free)
      throw Error("escaped-variable", "the variable of a sum is used outside of it", {},
                  "it has a value only inside the sum's body", "return what you need from the body of the sum");
  number_slots(traced);
  return traced;
}

}  // namespace compiler
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
