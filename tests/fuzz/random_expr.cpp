// tests/fuzz/random_expr.cpp — seeded random typed expressions, and inputs to evaluate them at
#include "tests/fuzz/random_expr.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "tests/sanitizers.h"

namespace attune::ir {
namespace {

constexpr std::int32_t int_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t int_max = std::numeric_limits<std::int32_t>::max();
constexpr float inf = std::numeric_limits<float>::infinity();

constexpr std::array<std::int32_t, 24> hostile_ints{0,
                                                    1,
                                                    -1,
                                                    2,
                                                    -2,
                                                    3,
                                                    5,
                                                    7,
                                                    16,
                                                    31,
                                                    32,
                                                    33,
                                                    64,
                                                    127,
                                                    128,
                                                    int_min,
                                                    int_min + 1,
                                                    int_max,
                                                    int_max - 1,
                                                    (1 << 24) - 1,
                                                    1 << 24,
                                                    (1 << 24) + 1,
                                                    -(1 << 24) - 1,
                                                    1 << 30};
constexpr std::array<float, 28> hostile_floats{0.0f,
                                               -0.0f,
                                               1.0f,
                                               -1.0f,
                                               0.5f,
                                               -0.5f,
                                               1.5f,
                                               2.5f,
                                               0.1f,
                                               3.0f,
                                               30.0f,
                                               -88.5f,
                                               89.0f,
                                               128.0f,
                                               0x1p24f,
                                               0x1p31f,
                                               -0x1p31f,
                                               0x1p-149f,
                                               -0x1p-149f,
                                               0x1p-127f,
                                               0x1p-126f,
                                               0x1.fffffep127f,
                                               -0x1.fffffep127f,
                                               1e30f,
                                               inf,
                                               -inf,
                                               std::numeric_limits<float>::quiet_NaN(),
                                               1.0000001f};

/// Ops that are differentiable wherever they are defined, and map small values to values small enough for differences.
bool is_smooth(Op op) {
  constexpr std::array ops{Op::Add, Op::Sub,  Op::Mul, Op::Neg,     Op::Exp2, Op::Exp,    Op::Sin,
                           Op::Cos, Op::Tanh, Op::Erf, Op::Sigmoid, Op::F32,  Op::Custom, Op::Where};
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

/// Makes one expression, top down with a budget of nodes.
class Maker {
 public:
  Maker(std::uint64_t seed, const Grammar& grammar) : random_(seed), grammar_(grammar) {}
  Expr make(Type type) {
    return make(type, 1 + static_cast<int>(random_.below(static_cast<std::uint32_t>(grammar_.max_nodes))));
  }

 private:
  Expr make(Type type, int budget) {
    if (budget <= 1) return keep(leaf(type));
    if (grammar_.share && !made_.empty() && random_.chance(0.15)) {
      const Expr again = made_[random_.below(static_cast<std::uint32_t>(made_.size()))];
      if (again->type == type) return again;
    }
    return keep(branch(type, budget));
  }

  Expr keep(Expr e) {
    made_.push_back(e);
    return e;
  }

  Expr leaf(Type type) {
    for (int tries = 0; tries < 4; ++tries) {
      const std::uint32_t kind = random_.below(10);
      if (kind < 4) {
        const auto which = static_cast<Input>(random_.below(input_count));
        if ((grammar_.inputs & bit(which)) && type_of(which) == type) return input(which);
      } else if (kind < 6 && type == Type::I32 && !variables_.empty()) {
        return random_.pick(std::span<const Expr>(variables_));
      } else if (kind < 7 && !grammar_.signature.params.empty()) {
        const std::uint32_t slot = random_.below(static_cast<std::uint32_t>(grammar_.signature.params.size()));
        if (grammar_.signature.params[slot].type == type) return param(slot, type);
      } else if (kind < 8) {
        return literal(type, value(type));
      }
    }
    return literal(type, value(type));
  }

  double value(Type type) { return random_value(random_, type, grammar_.hostile, grammar_.denormals); }

  Expr branch(Type type, int budget) {
    for (int tries = 0; tries < 30; ++tries) {
      const auto op = static_cast<Op>(random_.below(static_cast<std::uint32_t>(op_rows.size())));
      if (const Expr e = of(op, type, budget - 1)) return e;
    }
    return leaf(type);
  }

  /// An expression of this op and type; null if the op cannot have the type.
  Expr of(Op op, Type type, int budget) {
    const OpRow& r = row(op);
    if (op == Op::Read) return read_of(type, budget);
    if (op == Op::Sum) return type == Type::Bool ? nullptr : sum_of(type, budget);
    if (r.gives == Gives::Own || (draws(op) && !grammar_.random) || (op == Op::Custom && !grammar_.custom))
      return nullptr;
    if (grammar_.smooth && type == Type::F32 && !is_smooth(op)) return nullptr;
    if ((r.gives == Gives::Bool && type != Type::Bool) || (r.gives == Gives::I32 && type != Type::I32) ||
        (r.gives == Gives::F32 && type != Type::F32) || (r.gives == Gives::Arg && !takes(r.takes, type)))
      return nullptr;
    Type of_args = type;
    if (r.gives != Gives::Arg) {
      do of_args = static_cast<Type>(random_.below(3));
      while (!takes(r.takes, of_args));
    }
    // A condition on s is a kink that differences cannot follow.
    const bool kink = grammar_.smooth && r.gives != Gives::Arg && op != Op::Custom && of_args == Type::F32 &&
                      type != Type::F32;
    if (kink) return nullptr;
    std::array<Expr, 3> args;
    for (int i = 0; i < r.args; ++i) {
      const int share = i + 1 == r.args ? budget
                                        : static_cast<int>(random_.below(static_cast<std::uint32_t>(budget) + 1));
      budget -= share;
      args[static_cast<std::size_t>(i)] = make(op == Op::Where && i == 0 ? Type::Bool : of_args, share);
    }
    if (r.args == 1) return ir::op(op, args[0]);
    return r.args == 2 ? ir::op(op, args[0], args[1]) : ir::op(op, args[0], args[1], args[2]);
  }

  Expr read_of(Type type, int budget) {
    const auto& captures = grammar_.signature.captures;
    if (captures.empty()) return nullptr;
    const std::uint32_t slot = random_.below(static_cast<std::uint32_t>(captures.size()));
    if (captures[slot].type != type) return nullptr;
    std::array<Expr, max_args> index;
    const auto rank = static_cast<std::size_t>(captures[slot].rank);
    for (std::size_t i = 0; i < rank; ++i) index[i] = make(Type::I32, budget / captures[slot].rank);
    return read(slot, type, std::span(index.data(), rank));
  }

  Expr sum_of(Type type, int budget) {
    if (static_cast<int>(variables_.size()) >= grammar_.max_sums) return nullptr;
    const Expr variable = fresh_bound();
    variables_.push_back(variable);
    const std::size_t before = made_.size();
    const Expr body = make(type, budget);
    variables_.pop_back();
    // An open expression made here may contain the variable, which has no meaning outside of the sum.
    made_.erase(std::remove_if(made_.begin() + static_cast<std::ptrdiff_t>(before), made_.end(),
                               [](const Expr& e) { return e->free != 0; }),
                made_.end());
    return sum(variable, random_.below(grammar_.max_count + 1), body);
  }

  Random random_;
  const Grammar& grammar_;
  std::vector<Expr> variables_, made_;
};

}  // namespace

// SplitMix64.
std::uint64_t Random::next() {
  std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

double random_value(Random& random, Type type, bool hostile, bool denormals) {
  switch (type) {
    case Type::Bool: return random.below(2);
    case Type::I32:
      if (hostile && random.chance(0.5)) return random.pick(std::span<const std::int32_t>(hostile_ints));
      return static_cast<double>(random.below(20)) - 5;
    case Type::F32:
      if (hostile && random.chance(0.5)) {
        const float x = random.pick(std::span<const float>(hostile_floats));
        return denormals || std::fpclassify(x) != FP_SUBNORMAL ? x : std::copysign(0.0f, x);
      }
      return static_cast<float>(random.between(-2, 2));
  }
  return 0;
}

Grammar Grammar::ordinary() {
  Grammar g;
  g.signature.captures = {{"slope", Type::F32, 1}, {"doc", Type::I32, 1},   {"bias", Type::F32, 2},
                          {"block", Type::I32, 3}, {"keep", Type::Bool, 4}, {"scalar", Type::F32, 0}};
  g.signature.params = {{"cap", Type::F32}, {"width", Type::I32}, {"on", Type::Bool}};
  for (const Input i : {Input::S, Input::P, Input::B, Input::H, Input::Q, Input::KV, Input::QLen, Input::KVLen})
    g.inputs |= bit(i);
  return g;
}

Grammar Grammar::differentiable() {
  Grammar g = ordinary();
  g.inputs &= ~bit(Input::P);
  g.hostile = false;
  g.smooth = true;
  g.random = false;
  g.custom = false;
  return g;
}

Expr random_expr(std::uint64_t seed, Type type, const Grammar& grammar) { return Maker(seed, grammar).make(type); }

double RandomEnv::Tensor::at(std::span<const std::int32_t> index) const {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < extents.size(); ++i)
    offset = offset * static_cast<std::size_t>(extents[i]) +
             static_cast<std::size_t>(std::clamp(index[i], 0, extents[i] - 1));
  return values[offset];
}

RandomEnv::RandomEnv(std::uint64_t seed, const Grammar& grammar) {
  Random random(seed ^ 0xe4f);
  const auto coordinate = [&]() -> std::int32_t {
    if (grammar.hostile && random.chance(0.1)) return int_max - static_cast<std::int32_t>(random.below(3));
    return static_cast<std::int32_t>(random.below(random.chance(0.5) ? 8 : 300));
  };
  env_.s = random_value(random, Type::F32, grammar.hostile);
  env_.p = grammar.hostile && random.chance(0.1) ? std::numeric_limits<double>::quiet_NaN()
                                                 : static_cast<float>(random.unit());
  env_.b = coordinate();
  env_.h = coordinate();
  env_.q = coordinate();
  env_.kv_len = std::max(coordinate(), 1);
  env_.kv = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(env_.kv_len)));
  env_.q_len = coordinate();
  env_.origin = coordinate();
  for (const auto& p : grammar.signature.params) params_.push_back(random_value(random, p.type, grammar.hostile));
  for (const auto& c : grammar.signature.captures) {
    Tensor t{c.type, {}, {}};
    std::size_t elements = 1;
    for (int i = 0; i < c.rank; ++i) {
      t.extents.push_back(1 + static_cast<std::int32_t>(random.below(4)));
      elements *= static_cast<std::size_t>(t.extents.back());
    }
    for (std::size_t i = 0; i < elements; ++i) t.values.push_back(random_value(random, c.type, grammar.hostile));
    tensors_.push_back(std::move(t));
  }
  read_ = [this](std::uint32_t slot, std::span<const std::int32_t> index) { return tensors_[slot].at(index); };
  env_.params = params_;
  env_.read = &read_;
}

Bounds RandomEnv::bounds(std::uint64_t seed) const {
  Random random(seed ^ 0xb0);
  Bounds bounds;
  if (random.chance(0.5)) {
    for (const double p : params_) bounds.params.push_back(Interval::point(p));
    for (const Tensor& t : tensors_) {
      Interval held = Interval::none();
      for (const double v : t.values) held = unite(held, Interval::point(v));
      bounds.captures.push_back(held);
    }
  }
  if (random.chance(0.5)) {
    const auto around = [&](Input which, double value) {
      const double least = std::floor(value - random.below(20)), most = value + random.below(20);
      bounds[which] = intersect(bounds[which], {least, most, which == Input::S});
    };
    if (!std::isnan(env_.s)) around(Input::S, env_.s);
    around(Input::B, env_.b);
    around(Input::H, env_.h);
    around(Input::Q, env_.q);
    around(Input::KV, env_.kv);
    around(Input::QLen, env_.q_len);
    around(Input::KVLen, env_.kv_len);
  }
  return bounds;
}

std::uint64_t fuzz_count() {
  const char* count = std::getenv("ATTUNE_FUZZ");
  if (count) return std::strtoull(count, nullptr, 10);
  return tests::sanitized ? 3'000 : tests::turn() ? 12'000 : 100'000;
}

}  // namespace attune::ir
