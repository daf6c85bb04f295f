// codegen/llvm/mod.cpp — the user's expressions as vector code: ir::eval in f32, for many lanes at once, with the
// language's random numbers
#include "codegen/llvm/mod.h"

#include <array>
#include <bit>
#include <numeric>
#include <unordered_set>
#include <utility>

#include <attune/error.h>

#include "codegen/llvm/element.h"
#include "codegen/llvm/math.h"
#include "ir/eval.h"

namespace attune::codegen {
namespace {

// ---- random numbers (ir/eval.h) -------------------------------------------------------------------------------------

using FourWords = std::array<Val, 4>;

/// ir::philox with key = {seed, second}. A loop: unrolled, it would take most of the compile time of a kernel with
/// dropout.
FourWords philox(const FourWords& counter, Val seed, std::uint32_t second, int rounds) {
  Code& code = seed.code();
  const auto times = [&](std::uint32_t by, Val a) { return to_u64(a) * code.index(by); };
  const auto high = [](Val product) { return to_i32(shift_right_logical(product, 32)); };
  const auto round = [&](Val, const Code::Carried& c) {
    const Val even = times(0xD2511F53u, c[0]), odd = times(0xCD9E8D57u, c[2]);
    return Code::Carried{high(odd) ^ c[1] ^ c[4],          to_i32(odd),
                         high(even) ^ c[3] ^ c[5],         to_i32(even),
                         c[4] + code.integer(0x9E3779B9u), c[5] + code.integer(0xBB67AE85u)};
  };
  const auto out = code.loop(code.integer(0), code.integer(rounds), 1,
                             {counter[0], counter[1], counter[2], counter[3], seed, code.integer(second)}, round);
  return {out[0], out[1], out[2], out[3]};
}

/// The four words of each block, one block after the other.
Val in_order(const FourWords& words) {
  Code& code = words[0].code();
  if (!words[0].is_vector()) {
    Val all{code, llvm::PoisonValue::get(Code::vector(code.i32(), 4))};
    for (unsigned i = 0; i < 4; ++i) all = with_lane(all, i, words[i]);
    return all;
  }
  const std::size_t n = words[0].lanes();
  std::vector<int> both(2 * n), order(4 * n);
  std::iota(both.begin(), both.end(), 0);
  for (std::size_t i = 0; i < 4 * n; ++i) order[i] = static_cast<int>(i % 4 * n + i / 4);
  return codegen::shuffle(codegen::shuffle(words[0], words[1], both), codegen::shuffle(words[2], words[3], both),
                          order);
}

Val every_fourth(Val a) {
  std::vector<int> lanes(a.lanes() / 4);
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<int>(4 * i);
  return lanes.size() == 1 ? lane(a, 0) : codegen::shuffle(a, lanes);
}

/// Philox's words of each `block`, with the other coordinates of `at`.
FourWords words_of(Val seed, const Coordinates& at, Val block, std::uint32_t second, int rounds) {
  // Widen everything to the same lanes, since a value carried by a loop keeps its type.
  const Val all = like(seed, like(at.q, block));
  const auto wide = [&](Val x) { return like(all, x); };
  return philox({wide(block), wide(at.q), wide(at.head), wide(at.batch)}, seed, second, rounds);
}
/// The words of random() at positions `kv`.
FourWords words_of_random(Val seed, const Coordinates& at, Val kv) {
  return words_of(seed, at, shift_right_logical(kv, 2), 0, 10);
}

Val one_by_one(Val seed, const Coordinates& at) {
  const FourWords words = words_of_random(seed, at, at.kv);
  const Val which = at.kv & 3;
  return select(which < 2, select(which == 0, words[0], words[1]), select(which == 2, words[2], words[3]));
}

/// The 16 bits of positions `kv`, one block of words for each or for all of them.
Val sixteen_bits(Val seed, const Coordinates& at, Val block) {
  const FourWords words = words_of(seed, at, block, 1, ir::kept_rounds);
  const Val lane = at.kv & 15;
  const auto rotated = [](Val x, int by) { return shift_right_logical(x, by) | x << (32 - by); };
  const auto byte = [&](const auto& of_word) {
    Val all = of_word(words[0]);
    for (unsigned i = 1; i < 4; ++i) all = all | of_word(words[i]) << i;
    return (all | shift_right_logical(all, 12)) & 0xff;
  };
  const auto two = [&](Val x) { return shift_right_logical(like(lane, x), like(x, lane)) & 0x10001; };
  return byte(two) << 8 | byte([&](Val x) { return two(rotated(x, 5) ^ rotated(x, 11)); });
}

}  // namespace

Val random(Val seed, const Coordinates& at) {
  Code& code = seed.code();
  Val word;
  if (at.kv.is_vector() && !seed.is_vector() && !at.q.is_vector())
    word = code.branch((lane(at.kv, 0) & 3) == 0,
                       [&] { return Code::Carried{in_order(words_of_random(seed, at, every_fourth(at.kv)))}; },
                       [&] { return Code::Carried{one_by_one(seed, at)}; })[0];
  else
    word = one_by_one(seed, at);
  return to_float(shift_right_logical(word, 8)) * 0x1p-24;
}

Val kept(Val seed, Val n, const Coordinates& at) {
  Code& code = seed.code();
  const auto bits_of = [&](Val kv) { return sixteen_bits(seed, at, shift_right_logical(kv, 4)); };
  const unsigned lanes = at.kv.lanes();
  if (lanes == 1 || lanes > 16 || seed.is_vector() || at.q.is_vector()) return bits_of(at.kv) < n;
  const Val first = lane(at.kv, 0);
  return code.branch((first & (lanes - 1)) == 0, [&] { return Code::Carried{bits_of(first)}; },
                     [&] { return Code::Carried{bits_of(at.kv)}; })[0] < n;
}

namespace {

// ---- expressions ----------------------------------------------------------------------------------------------------

using ir::Expr, ir::Input, ir::Node, ir::Op, ir::Type;

constexpr std::size_t closed = 32;

std::size_t innermost(const Node& n) { return static_cast<std::size_t>(std::countr_zero(n.free)); }

llvm::Type* type_of(Code& code, Type type) {
  switch (type) {
    case Type::Bool: return code.i1();
    case Type::I32: return code.i32();
    case Type::F32: return code.f32();
  }
  return nullptr;
}

Val literal(Code& code, const Node& n) {
  llvm::Type* type = type_of(code, n.type);
  if (n.type != Type::F32) return {code, llvm::ConstantInt::get(type, n.bits)};
  return {code, llvm::ConstantFP::get(type, llvm::APFloat(llvm::APFloat::IEEEsingle(), llvm::APInt(32, n.bits)))};
}

/// A literal, unless it is NaN.
const llvm::ConstantFP* number(const Val& x) {
  const auto* constant = llvm::dyn_cast<llvm::ConstantFP>(x.get());
  return constant && !constant->isNaN() ? constant : nullptr;
}

// A literal operand takes one instruction, min or max, which returns its second operand if the first is NaN or both are
// equal: right for min(x, -0) and max(x, 0). The other zeros take a comparison and a choice. Two unknown operands take
// six instructions; one would be enough if NaN or a tie could give either operand.
Val lesser(Val a, Val b) {
  if (!a.is_float()) return select(b < a, b, a);
  if (number(a)) std::swap(a, b);
  if (const auto* limit = number(b)) return limit->isZero() && !limit->isNegative() ? select(a <= b, a, b) : min(a, b);
  return select(a == b, as_float(as_int(a) | as_int(b)), select(is_nan(a), b, min(b, a)));
}
Val greater(Val a, Val b) {
  if (!a.is_float()) return select(b > a, b, a);
  if (number(a)) std::swap(a, b);
  if (const auto* limit = number(b)) return limit->isZero() && limit->isNegative() ? select(a >= b, a, b) : max(a, b);
  return select(a == b, as_float(as_int(a) & as_int(b)), select(is_nan(a), b, max(b, a)));
}

/// True if argument i must be emitted before n. False for a sum's body, which is emitted inside its loop, and for the
/// derivative of a custom, which is not part of its value.
bool has_operand(const Node& n, std::size_t i) {
  return i < n.arity && n.op != Op::Sum && !(n.op == Op::Custom && i == 1);
}

Val to_f32(Val x) {
  if (x.is_float()) return x;
  const bool is_bool = x.type()->getScalarSizeInBits() == 1;
  return is_bool ? select(x, x.code().real(1), x.code().real(0)) : to_float(x);
}

Val to_int_of_any(Val x) {
  if (x.is_float()) return to_int_saturating(x);
  return x.type()->getScalarSizeInBits() == 1 ? zero_one(x) : x;
}

}  // namespace

Expressions::Expressions(Isa isa, std::span<const compiler::CaptureSlot> captures, At at)
    : isa_(isa), captures_(captures), at_(std::move(at)), code_(at_.captures.code()) {}

void Expressions::bind(std::uint32_t binder, Val value) { bound_[binder - 1] = value; }

void Expressions::before_loops(const Expr& e) { emit_below(*e, closed); }

Val Expressions::value(const Node& n) const { return values_[innermost(n)].at(n.digest); }

Val Expressions::operator()(const Expr& e) {
  // Emit closed nodes first, wherever they stand: a loop then holds only nodes that depend on its variable.
  emit_below(*e, closed);
  // Next, emit the nodes that depend on an enclosing sum's variable, outermost variable first.
  for (std::size_t variable = ir::max_binders; variable-- > 0;) {
    if (!(e->free >> variable & 1)) continue;
    if (!bound_[variable].get()) throw Bug("an expression is compiled outside of the sum that binds its variable");
    values_[variable][ir::bound(static_cast<std::uint32_t>(variable) + 1)->digest] = bound_[variable];
    emit_below(*e, variable);
  }
  return value(*e);
}

void Expressions::emit_below(const Node& root, std::size_t variable) {
  struct Visit {
    const Node* node;
    std::uint8_t next;
  };
  std::unordered_set<ir::Digest, ir::DigestHash> seen;
  std::vector<Visit> stack;
  const auto visit = [&](const Node& n) {
    const bool concerned = variable == closed ? !(n.free == 0 && values_[closed].count(n.digest))
                                              : n.free >> variable & 1 && n.op != Op::Bound;
    if (concerned && seen.insert(n.digest).second) stack.push_back({&n, 0});
  };
  visit(root);
  while (!stack.empty()) {
    const Node& n = *stack.back().node;
    // The derivative of a custom is not part of its value.
    const std::uint8_t arity = n.op == Op::Custom ? 1 : n.arity;
    if (stack.back().next < arity) {
      visit(*n.args[stack.back().next++]);
      continue;
    }
    stack.pop_back();
    if (innermost(n) == variable) emit(n);
  }
}

void Expressions::emit(const Node& n) { values_[innermost(n)].insert_or_assign(n.digest, computed(n)); }

// A switch over every operation, and therefore long.
Val Expressions::computed(const Node& n) {
  const auto arg = [&](std::size_t i) { return has_operand(n, i) ? value(*n.args[i]) : Val(); };
  const Val x = arg(0), y = arg(1);
  switch (n.op) {
    case Op::Literal: return literal(code_, n);
    case Op::Input: return input(static_cast<Input>(n.bits));
    case Op::Param: return param(n);
    case Op::Field: return at_.field(ir::field_level(n), ir::field_index(n), n.type);
    case Op::Read: return read(n);
    case Op::Sum: return sum(n);
    case Op::Random: return random(x, drawn_at());
    case Op::Kept: return kept(x, y, drawn_at());
    case Op::Bound: break;
    case Op::Custom: return x;
    case Op::Where: return select(x, y, arg(2));
    case Op::BitOr:
    case Op::Or: return x | y;
    case Op::BitAnd:
    case Op::And: return x & y;
    case Op::BitXor: return x ^ y;
    case Op::Eq: return x == y;
    case Op::Ne: return x != y;
    case Op::Lt: return x < y;
    case Op::Le: return x <= y;
    case Op::Gt: return x > y;
    case Op::Ge: return x >= y;
    case Op::Shl: return x << (y & 31);
    case Op::Shr: return x >> (y & 31);
    case Op::Add: return x + y;
    case Op::Sub: return x - y;
    case Op::Mul: return x * y;
    case Op::Div: return x.is_float() ? x / y : quotient(x, y);
    case Op::Rem: return remainder(x, y);
    case Op::FloorDiv: return floor_quotient(x, y);
    case Op::FloorMod: return floor_remainder(x, y);
    case Op::Neg: return -x;
    case Op::Not:
    case Op::BitNot: return !x;
    case Op::F32: return to_f32(x);
    case Op::I32: return to_int_of_any(x);
    case Op::Min: return lesser(x, y);
    case Op::Max: return greater(x, y);
    case Op::Clamp: return lesser(greater(x, y), arg(2));
    case Op::Abs: return absolute(x);
    case Op::Floor: return floor(isa_, x);
    case Op::Ceil: return ceil(isa_, x);
    case Op::Round: return round(isa_, x);
    case Op::Trunc: return trunc(isa_, x);
    case Op::Sqrt: return sqrt(x);
    case Op::Rsqrt: return rsqrt(x);
    case Op::Exp: return exp(isa_, x);
    case Op::Exp2: return exp2(isa_, x);
    case Op::Log: return log(x);
    case Op::Log2: return log2(x);
    case Op::Pow: return pow(isa_, x, y);
    case Op::Sin: return sin(x);
    case Op::Cos: return cos(x);
    case Op::Tan: return tan(x);
    case Op::Tanh: return tanh(x);
    case Op::Sigmoid: return sigmoid(isa_, x);
    case Op::Erf: return erf(isa_, x);
  }
  throw Bug("a variable is compiled outside of its sum");
}

Val Expressions::input(Input which) const {
  const auto given = [&](const Val& x) {
    if (x) return x;
    throw Bug("an expression reads an input that its kernel does not give");
  };
  switch (which) {
    case Input::S: return given(at_.s);
    case Input::P: return given(at_.p);
    case Input::B: return given(at_.b);
    case Input::H: return given(at_.h);
    case Input::Q: return given(at_.q);
    case Input::KV: return given(at_.kv);
    case Input::QLen: return given(at_.q_len);
    case Input::KVLen: return given(at_.kv_len);
    case Input::Origin: return given(at_.origin);
    case Input::QBegin:
    case Input::QEnd:
    case Input::KVBegin:
    case Input::KVEnd: break;
  }
  throw Bug("a tile's bounds are read in a kernel");
}

Val Expressions::param(const Node& n) const {
  llvm::Type* stored = n.type == Type::F32 ? code_.f32() : code_.i32();
  const Val word = steady(code_.member(stored, at_.params, n.bits * sizeof(std::uint32_t)));
  return n.type == Type::Bool ? word != 0 : word;
}

Coordinates Expressions::drawn_at() const {
  return {input(Input::KV), input(Input::Q), input(Input::H), input(Input::B)};
}

Val Expressions::read(const Node& n) const {
  std::array<ReadIndex, ir::max_args> index;
  for (std::size_t i = 0; i < n.arity; ++i) index[i] = {value(*n.args[i]), step(*n.args[i]).value_or(0)};
  for (ReadIndex& i : index)
    if (i.step != 1 && i.step != -1) i.step = 0;
  return read_capture(isa_, at_.captures, n.bits, captures_[n.bits].dtype, std::span(index.data(), n.arity));
}

std::optional<int> Expressions::step(const Node& n, int depth) const {
  // Indices are short sums; the step of a deeper expression counts as unknown.
  constexpr int deepest = 16;
  if (!value(n).is_vector()) return 0;
  if (n.op == Op::Input) return 1;
  const bool adds = n.op == Op::Add || n.op == Op::Sub;
  if (depth == deepest || !(adds || n.op == Op::Neg)) return std::nullopt;
  const auto a = step(*n.args[0], depth + 1), b = adds ? step(*n.args[1], depth + 1) : a;
  if (!a || !b) return std::nullopt;
  return n.op == Op::Neg ? -*a : n.op == Op::Add ? *a + *b : *a - *b;
}

// Only the emitted body shows whether the total is a vector, so its phi is made last.
Val Expressions::sum(const Node& n) {
  const Val zero{code_, llvm::Constant::getNullValue(type_of(code_, n.type))};
  if (ir::sum_count(n) == 0) return zero;
  llvm::IRBuilder<>& ir = code_.ir();
  auto* before = ir.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(ir.getContext(), "sum", code_.function());
  auto* after = llvm::BasicBlock::Create(ir.getContext(), "summed", code_.function());
  ir.CreateBr(loop);
  ir.SetInsertPoint(loop);
  llvm::PHINode* i = ir.CreatePHI(code_.i32(), 2);

  const std::uint32_t binder = ir::sum_binder(n);
  values_[binder - 1][ir::bound(binder)->digest] = {code_, i};
  emit_below(*n.args[0], binder - 1);
  const Val term = value(*n.args[0]), start = like(term, zero);
  auto* last = ir.GetInsertBlock();
  ir.SetInsertPoint(loop, loop->begin());
  llvm::PHINode* total = ir.CreatePHI(start.type(), 2);
  ir.SetInsertPoint(last);
  const Val next = Val(code_, total) + term, stepped = Val(code_, i) + 1;

  i->addIncoming(code_.integer(0).get(), before);
  i->addIncoming(stepped.get(), last);
  total->addIncoming(start.get(), before);
  total->addIncoming(next.get(), last);
  ir.CreateCondBr((stepped < ir::sum_count(n)).get(), loop, after);
  ir.SetInsertPoint(after);
  return next;
}

}  // namespace attune::codegen
