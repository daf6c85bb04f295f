// ir/eval.cpp — the meaning of each op, random numbers by Philox 4x32, and expressions flattened into steps
#include "ir/eval.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_set>

#include <attune/error.h>

namespace attune::ir {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key,
                                    int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(even)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

float random(std::int32_t seed, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv) {
  const auto u = [](std::int32_t x) { return static_cast<std::uint32_t>(x); };
  const auto block = philox({u(kv) >> 2, u(q), u(head), u(batch)}, {u(seed), 0}, 10);
  return static_cast<float>(block[u(kv) & 3] >> 8) * 0x1p-24f;
}

bool kept(std::int32_t seed, std::int32_t n, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv) {
  const auto bits = [](std::int32_t x) { return static_cast<std::uint32_t>(x); };
  const auto block = philox({bits(kv) >> 4, bits(q), bits(head), bits(batch)}, {bits(seed), 1}, kept_rounds);
  std::uint32_t own = 0, shared = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto two = [&](std::uint32_t x) { return (x >> (bits(kv) & 15) & 0x10001u) << i; };
    own |= two(block[i]);
    shared |= two(std::rotr(block[i], 5) ^ std::rotr(block[i], 11));
  }
  // The bits from 16 on follow the four lowest.
  const auto byte = [](std::uint32_t x) { return (x | x >> 12) & 0xff; };
  return static_cast<std::int32_t>(byte(own) << 8 | byte(shared)) < n;
}

namespace {

constexpr std::int32_t int_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t int_max = std::numeric_limits<std::int32_t>::max();

std::int32_t whole(double x) { return static_cast<std::int32_t>(x); }
std::uint32_t word(double x) { return static_cast<std::uint32_t>(whole(x)); }
double wrapped(std::uint32_t x) { return static_cast<std::int32_t>(x); }

// INT_MIN / -1 does not fit: it wraps to INT_MIN, and its remainder is 0.
std::int32_t quotient(std::int32_t x, std::int32_t y) {
  if (y == 0) return 0;
  return y == -1 ? static_cast<std::int32_t>(-static_cast<std::uint32_t>(x)) : x / y;
}
std::int32_t remainder(std::int32_t x, std::int32_t y) { return y == 0 || y == -1 ? 0 : x % y; }

bool rounds_down(std::int32_t x, std::int32_t y) { return remainder(x, y) != 0 && (x < 0) != (y < 0); }

std::int32_t saturated(double x) {
  if (std::isnan(x)) return 0;
  if (x <= int_min) return int_min;
  return x >= int_max ? int_max : static_cast<std::int32_t>(x);
}

// If one operand is NaN, returns the other; -0 is below 0.
double lesser(double x, double y) { return y < x || std::isnan(x) || (y == x && std::signbit(y)) ? y : x; }
double greater(double x, double y) { return y > x || std::isnan(x) || (y == x && std::signbit(x)) ? y : x; }

// The meaning of every operation, one case each. Real is the type in which Floats are computed; doubles hold its values
// exactly.
template <class Real>
double calculate(Op op, Type of_args, double x, double y, double z) {
  const bool ints = of_args == Type::I32;
  const Real a = static_cast<Real>(x);
  const Real b = static_cast<Real>(y);
  switch (op) {
    case Op::Literal:
    case Op::Input:
    case Op::Param:
    case Op::Read:
    case Op::Bound:
    case Op::Field:
    case Op::Sum:
    case Op::Random:
    case Op::Kept: break;
    case Op::Custom: return x;
    case Op::Where: return x != 0 ? y : z;
    case Op::Or: return x != 0 || y != 0;
    case Op::And: return x != 0 && y != 0;
    case Op::BitOr: return wrapped(word(x) | word(y));
    case Op::BitXor: return wrapped(word(x) ^ word(y));
    case Op::BitAnd: return wrapped(word(x) & word(y));
    case Op::Eq: return x == y;
    case Op::Ne: return x != y;
    case Op::Lt: return x < y;
    case Op::Le: return x <= y;
    case Op::Gt: return x > y;
    case Op::Ge: return x >= y;
    case Op::Shl: return wrapped(word(x) << (word(y) & 31));
    case Op::Shr: return whole(x) >> (word(y) & 31);
    case Op::Add: return ints ? wrapped(word(x) + word(y)) : static_cast<double>(a + b);
    case Op::Sub: return ints ? wrapped(word(x) - word(y)) : static_cast<double>(a - b);
    case Op::Mul: return ints ? wrapped(word(x) * word(y)) : static_cast<double>(a * b);
    case Op::Div: return ints ? quotient(whole(x), whole(y)) : static_cast<double>(a / b);
    case Op::Rem: return remainder(whole(x), whole(y));
    case Op::Neg: return ints ? wrapped(-word(x)) : -x;
    case Op::Not: return x == 0;
    case Op::BitNot: return wrapped(~word(x));
    case Op::F32: return static_cast<double>(a);
    case Op::I32: return of_args == Type::F32 ? saturated(x) : x;
    case Op::FloorDiv: return quotient(whole(x), whole(y)) - rounds_down(whole(x), whole(y));
    case Op::FloorMod: return remainder(whole(x), whole(y)) + (rounds_down(whole(x), whole(y)) ? whole(y) : 0);
    case Op::Min: return lesser(x, y);
    case Op::Max: return greater(x, y);
    case Op::Clamp: return lesser(greater(x, y), z);
    case Op::Abs: return ints && whole(x) == int_min ? x : std::fabs(x);
    case Op::Floor: return std::floor(x);
    case Op::Ceil: return std::ceil(x);
    case Op::Round: return std::round(x);
    case Op::Trunc: return std::trunc(x);
    case Op::Sqrt: return std::sqrt(a);
    case Op::Rsqrt: return Real{1} / std::sqrt(a);
    case Op::Exp: return std::exp(a);
    case Op::Exp2: return std::exp2(a);
    case Op::Log: return std::log(a);
    case Op::Log2: return std::log2(a);
    case Op::Pow: return std::pow(a, b);
    case Op::Sin: return std::sin(a);
    case Op::Cos: return std::cos(a);
    case Op::Tan: return std::tan(a);
    case Op::Tanh: return std::tanh(a);
    case Op::Sigmoid: return Real{1} / (Real{1} + std::exp(-a));
    case Op::Erf: return std::erf(a);
  }
  throw Bug("this cannot be evaluated without an Env: " + std::string(row(op).name));
}

std::size_t innermost(const Node& n) { return static_cast<std::size_t>(std::countr_zero(n.free)); }

double at(std::span<const double> values, std::uint32_t index) {
  if (index >= values.size()) throw Bug("an expression was evaluated without one of its parameters or fields");
  return values[index];
}

double input_value(Input which, const Env& env) {
  switch (which) {
    case Input::S: return env.s;
    case Input::P: return env.p;
    case Input::B: return env.b;
    case Input::H: return env.h;
    case Input::Q: return env.q;
    case Input::KV: return env.kv;
    case Input::QLen: return env.q_len;
    case Input::KVLen: return env.kv_len;
    case Input::Origin: return env.origin;
    case Input::QBegin: return env.q_begin;
    case Input::QEnd: return env.q_end;
    case Input::KVBegin: return env.kv_begin;
    case Input::KVEnd: return env.kv_end;
  }
  throw Bug("an input does not exist");
}

std::span<const double> fields_of(Level level, const Env& env) {
  switch (level) {
    case Level::Head: return env.head;
    case Level::Row: return env.row;
    case Level::Col: return env.col;
  }
  throw Bug("a level does not exist");
}

}  // namespace

double apply(Op op, Type of_args, std::span<const double> args, Precision precision) {
  std::array<double, max_args> x{};
  std::copy(args.begin(), args.end(), x.begin());
  return precision == Precision::f32 ? calculate<float>(op, of_args, x[0], x[1], x[2])
                                     : calculate<double>(op, of_args, x[0], x[1], x[2]);
}

Program::Program(std::span<const Expr> roots) {
  Slots slots;
  const std::vector<Expr> nodes = in_order(roots);
  for (const Expr& e : nodes)
    if (is_literal(e)) {
      slots.back().emplace(e->digest, slots_++);
      literals_.push_back(literal_value(*e));
    }
  // Emit closed nodes first and once, wherever they stand: a loop then holds only nodes that depend on its variable.
  for (const Expr& e : nodes)
    if (!e->free && !is_literal(e)) emit(*e, slots);
  // Next, emit the nodes that depend on an enclosing sum's variable, outermost variable first.
  std::uint32_t outer = 0;
  for (const Expr& root : roots) outer |= root->free;
  if (outer >> max_binders) throw Bug("a sum under construction was evaluated");
  for (std::uint32_t variable = max_binders; variable-- > 0;)
    if (outer >> variable & 1) free_.push_back({variable + 1, emit_loop(variable, roots, slots)});
  for (const Expr& root : roots) results_.push_back(slots[innermost(*root)].at(root->digest));
}

void Program::emit(const Node& n, Slots& slots) {
  const auto slot_of = [&](const Node& a) { return slots[innermost(a)].at(a.digest); };
  const std::size_t here = steps_.size();
  const bool needs_env = row(n.op).gives == Gives::Own || n.op == Op::Sum || draws(n.op);
  steps_.push_back({n.op, n.type, n.arity ? n.args[n.arity - 1u]->type : n.type, needs_env, n.arity, n.bits, 0, {}, 0});
  if (n.op == Op::Sum) {
    steps_[here].bits = sum_count(n);
    steps_[here].from[1] = emit_loop(sum_binder(n) - 1, n.arguments(), slots);
    steps_[here].from[0] = slot_of(*n.args[0]);
    steps_[here].loop_end = static_cast<std::uint32_t>(steps_.size());
  } else {
    for (std::size_t i = 0; i < n.arity; ++i) steps_[here].from[i] = slot_of(*n.args[i]);
  }
  steps_[here].into = slots_;
  slots[innermost(n)].emplace(n.digest, slots_++);
}

// Emits the nodes that depend on this variable and on no inner one. An inner sum has a smaller binder than the sums
// around it, so a node belongs to the loop of its smallest free binder. Returns the variable's slot.
std::uint32_t Program::emit_loop(std::uint32_t variable, std::span<const Expr> bodies, Slots& slots) {
  struct Visit {
    const Node* node;
    std::uint8_t next;
  };
  // Another sum with this binder may have left its values under the same digests.
  slots[variable].clear();
  const std::uint32_t own = slots_++;
  slots[variable].emplace(bound(variable + 1)->digest, own);
  std::unordered_set<Digest, DigestHash> seen;
  std::vector<Visit> stack;
  const auto visit = [&](const Node& n) {
    if ((n.free >> variable & 1) && n.op != Op::Bound && seen.insert(n.digest).second) stack.push_back({&n, 0});
  };
  for (const Expr& body : bodies) {
    visit(*body);
    while (!stack.empty()) {
      const Node& n = *stack.back().node;
      if (stack.back().next < n.arity) {
        visit(*n.args[stack.back().next++]);
        continue;
      }
      stack.pop_back();
      if (innermost(n) == variable) emit(n, slots);
    }
  }
  return own;
}

double Program::cost() const {
  struct Loop {
    std::size_t end;
    double times;  ///< runs of its body, including the sums around it
  };
  std::vector<Loop> loops{{steps_.size(), 1}};
  double sum = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    while (i >= loops.back().end) loops.pop_back();
    sum += loops.back().times;
    if (steps_[i].op == Op::Sum) loops.push_back({steps_[i].loop_end, loops.back().times * steps_[i].bits});
  }
  return sum;
}

void Program::run(const Env& env, Memory& memory, Precision precision) const {
  if (memory.size() < slots_) memory.resize(slots_);
  std::copy(literals_.begin(), literals_.end(), memory.begin());
  for (const Free& f : free_) {
    if (f.binder >= env.bound.size())
      throw Bug("an expression was evaluated outside of the sum that binds its variable");
    memory[f.slot] = env.bound[f.binder];
  }
  precision == Precision::f32 ? run<float>(0, steps_.size(), env, memory.data())
                              : run<double>(0, steps_.size(), env, memory.data());
}

template <class Real>
void Program::run(std::size_t begin, std::size_t end, const Env& env, double* memory) const {
  for (std::size_t i = begin; i < end; ++i) {
    const Step& step = steps_[i];
    if (!step.needs_env) {
      // Unused arguments read slot 0, which exists: a step has at least one argument.
      memory[step.into] = calculate<Real>(step.op, step.of_args, memory[step.from[0]], memory[step.from[1]],
                                          memory[step.from[2]]);
    } else if (step.op == Op::Sum) {
      double total = 0;
      for (std::uint32_t n = 0; n < step.bits; ++n) {
        memory[step.from[1]] = n;
        run<Real>(i + 1, step.loop_end, env, memory);
        total = calculate<Real>(Op::Add, step.type, total, memory[step.from[0]], 0);
      }
      memory[step.into] = total;
      i = step.loop_end - 1;
    } else {
      const double value = fetch<Real>(step, env, memory);
      memory[step.into] = step.type == Type::F32 ? static_cast<double>(static_cast<Real>(value)) : value;
    }
  }
}

template <class Real>
double Program::fetch(const Step& step, const Env& env, const double* memory) {
  if (step.op == Op::Input) return input_value(static_cast<Input>(step.bits), env);
  if (step.op == Op::Param) return at(env.params, step.bits);
  if (step.op == Op::Field) return at(fields_of(static_cast<Level>(step.bits >> 24), env), step.bits & 0xffffff);
  if (step.op == Op::Random) return random(whole(memory[step.from[0]]), env.b, env.h, env.q, env.kv);
  if (step.op == Op::Kept)
    return kept(whole(memory[step.from[0]]), whole(memory[step.from[1]]), env.b, env.h, env.q, env.kv);
  if (step.op != Op::Read) throw Bug("a leaf cannot be evaluated: " + std::string(row(step.op).name));
  if (!env.read) throw Bug("an expression that reads was evaluated without its captures");
  std::array<std::int32_t, max_args> index{};
  for (std::size_t i = 0; i < step.arity; ++i) index[i] = whole(memory[step.from[i]]);
  return (*env.read)(step.bits, std::span(index.data(), step.arity));
}

double eval(const Expr& root, const Env& env, Precision precision) {
  Program::Memory memory;
  const Program program(root);
  program.run(env, memory, precision);
  return program.result(0, memory);
}

}  // namespace attune::ir
