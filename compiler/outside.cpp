// compiler/outside.cpp — an index at the values of its one coordinate, and the conditions on the way to its read
#include "compiler/outside.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <unordered_set>

#include "compiler/tile.h"
#include "ir/eval.h"

namespace attune::compiler {
namespace {

using ir::Bounds, ir::Expr, ir::Input, ir::Interval, ir::Node, ir::Op;

/// An index with more values than this is tried at only this many of them, including both ends.
constexpr std::int64_t most_tried = 256;
/// Nodes to visit between a root and a read. Beyond it nothing is proven.
constexpr int most_steps = 1000;

/// The one coordinate, length or variable of a sum that an index is a function of.
struct Sole {
  Input input = Input::S;
  std::uint32_t binder = 0;  ///< the binder of the sum; 0: it is the input
};

std::optional<Sole> sole_of(const Expr& index) {
  constexpr std::array places{Input::B, Input::H, Input::Q, Input::KV, Input::QLen, Input::KVLen};
  if (std::popcount(index->uses) + std::popcount(index->free) != 1 || index->reads || index->random ||
      index->binder > 0)
    return std::nullopt;
  for (const Expr& node : ir::in_order(index))
    if (node->op == Op::Param) return std::nullopt;
  if (index->free) return Sole{.binder = static_cast<std::uint32_t>(std::countr_zero(index->free)) + 1};
  for (const Input one : places)
    if (ir::uses(index, one)) return Sole{.input = one};
  return std::nullopt;
}

/// An index, evaluated at one value of the variable that it depends on.
class Index {
 public:
  Index(const Expr& e, const Sole& of) : program_(e), of_(of), bound_(ir::max_binders + 1) {}
  double at(std::int32_t value) {
    ir::Env env;
    if (of_.binder) bound_[of_.binder] = value;
    env.bound = bound_;
    switch (of_.input) {
      case Input::B: env.b = value; break;
      case Input::H: env.h = value; break;
      case Input::Q: env.q = value; break;
      case Input::KV: env.kv = value; break;
      case Input::QLen: env.q_len = value; break;
      case Input::KVLen: env.kv_len = value; break;
      default: break;
    }
    program_.run(env, memory_);
    return program_.result(0, memory_);
  }

 private:
  ir::Program program_;
  Sole of_;
  std::vector<std::int32_t> bound_;
  ir::Program::Memory memory_;
};

bool contradictory(const Bounds& bounds) {
  return std::ranges::any_of(bounds.inputs, [](const Interval& one) { return one.empty(); }) ||
         std::ranges::any_of(bounds.facts, [](const auto& fact) { return fact.second.empty(); });
}

/// The bounds that follow from a condition being true, or being false; none if that is impossible.
std::optional<Bounds> known_where(const Expr& condition, bool truth, const Bounds& bounds) {
  const Interval range = ir::range(condition, bounds);
  if (range.empty() || range.is(truth ? 0 : 1)) return std::nullopt;
  Bounds known = ir::assume(condition, truth, bounds);
  if (contradictory(known)) return std::nullopt;
  return known;
}

/// Paths from a root to a read on which no condition drops the value that is read.
class Ways {
 public:
  Ways(const Expr& root, const Expr& read, const Sole& of, std::int32_t value) : read_(read), of_(of), value_(value) {
    above_.insert(read->digest);
    for (const Expr& node : ir::in_order(root))
      if (std::ranges::any_of(node->arguments(), [&](const Expr& a) { return above_.contains(a->digest); }))
        above_.insert(node->digest);
  }
  bool lead(const Expr& from, const Bounds& bounds) {
    if (!above_.contains(from->digest) || ++steps_ > most_steps) return false;
    if (ir::same(from, read_)) return true;
    const auto& args = from->args;
    const auto leads_if = [&](const Expr& condition, bool truth, const Expr& to) {
      if (!above_.contains(to->digest)) return false;
      const auto known = known_where(condition, truth, bounds);
      return known && lead(to, *known);
    };
    switch (from->op) {
      case Op::Where:
        return lead(args[0], bounds) || leads_if(args[0], true, args[1]) || leads_if(args[0], false, args[2]);
      case Op::And:
      case Op::Or: {
        const bool open = from->op == Op::And;
        return leads_if(args[1], open, args[0]) || leads_if(args[0], open, args[1]);
      }
      case Op::Sum:
        if (of_.binder && ir::sum_binder(*from) == of_.binder &&
            value_ >= static_cast<std::int32_t>(ir::sum_count(*from)))
          return false;
        [[fallthrough]];
      default: return std::ranges::any_of(from->arguments(), [&](const Expr& to) { return lead(to, bounds); });
    }
  }

 private:
  const Expr& read_;
  const Sole& of_;
  std::int32_t value_;
  std::unordered_set<ir::Digest, ir::DigestHash> above_;  ///< the read and the nodes over it
  int steps_ = 0;
};

/// The values that a variable of a sum takes in the longest sum with its binder.
Interval values_of(std::uint32_t binder, const Expr& root) {
  std::uint32_t longest = 0;
  for (const Expr& node : ir::in_order(root))
    if (node->op == Op::Sum && ir::sum_binder(*node) == binder) longest = std::max(longest, ir::sum_count(*node));
  return {0, longest - 1.0, false};
}

}  // namespace

std::optional<Interval> reads_outside(const Expr& root, const Expr& mask, const Expr& read, std::size_t dimension,
                                      std::int64_t extent, const Bounds& bounds) {
  const Expr& e = read->args[dimension];
  const std::optional<Sole> of = sole_of(e);
  if (!of) return std::nullopt;
  const Interval values = of->binder ? values_of(of->binder, root) : bounds[of->input];
  if (!values.numbers()) return std::nullopt;
  const auto first = static_cast<std::int64_t>(values.lo), last = static_cast<std::int64_t>(values.hi);
  const std::int64_t tried = std::min(last - first + 1, most_tried);
  Index index(e, *of);
  const auto counts = [&](std::int64_t value) {
    Bounds here = bounds;
    const Interval point = Interval::point(static_cast<double>(value));
    of->binder ? here.facts[ir::bound(of->binder)->digest] = point : here[of->input] = point;
    if (mask) {
      std::optional<Bounds> kept = known_where(mask, true, here);
      if (!kept) return false;
      here = std::move(*kept);
    }
    return Ways(root, read, *of, static_cast<std::int32_t>(value)).lead(root, here);
  };
  Interval taken = Interval::none();
  bool outside = false;
  for (std::int64_t i = 0; i < tried; ++i) {
    const std::int64_t value = tried == 1 ? last : last - i * (last - first) / (tried - 1);
    const double at = index.at(static_cast<std::int32_t>(value));
    taken = ir::unite(taken, Interval::point(at));
    if (!outside && (at < 0 || at >= static_cast<double>(extent))) outside = counts(value);
  }
  return outside ? std::optional(taken) : std::nullopt;
}

namespace {

/// The conditions under which a node's value decides the root's value.
class Live {
 public:
  explicit Live(const Expr& root) {
    at_[root->digest] = truth(true);
    const std::vector<Expr> nodes = ir::in_order(root);
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) spread(**node);
  }
  const Expr& of(const Expr& node) const { return at_.at(node->digest); }

 private:
  void spread(const Node& node) {
    const Expr& here = at_.at(node.digest);
    const auto give = [&](const Expr& to, const Expr& live) {
      const auto [known, fresh] = at_.emplace(to->digest, live);
      if (!fresh) known->second = either(known->second, live);
    };
    const auto& args = node.args;
    if (node.op == Op::Where) {
      give(args[0], here);
      give(args[1], both(here, args[0]));
      give(args[2], both(here, negated(args[0])));
    } else if (node.op == Op::And || node.op == Op::Or) {
      const bool open = node.op == Op::And;
      give(args[0], both(here, open ? args[1] : negated(args[1])));
      give(args[1], both(here, open ? args[0] : negated(args[0])));
    } else if (node.op == Op::Sum) {
      const Expr variable = ir::bound(ir::sum_binder(node));
      const Expr count = ir::integer(static_cast<std::int32_t>(ir::sum_count(node)));
      give(args[0], both(here, ir::op(Op::Lt, variable, count)));
    } else {
      for (const Expr& to : node.arguments()) give(to, here);
    }
  }

  ir::DigestMap<Expr> at_;
};

/// The sum of a count over the variables that are free in it.
Expr summed(Expr count, const Expr& root) {
  while (count->free) {
    const auto binder = static_cast<std::uint32_t>(std::countr_zero(count->free)) + 1;
    count = ir::sum(ir::bound(binder), static_cast<std::uint32_t>(values_of(binder, root).hi) + 1, count);
  }
  return count;
}

}  // namespace

std::vector<OutsideIndex> outside_indices(const Mod& mod, std::span<const Expr> reads,
                                          std::span<const Tensor> captures) {
  using enum OutsideIndex::At;
  std::vector<OutsideIndex> out;
  for (const auto& [root, at] :
       {std::pair{&mod.mask, pair}, {&mod.score, kept_pair}, {&mod.prob, kept_pair}, {&mod.sink, head}}) {
    if (!*root) continue;
    std::unordered_set<ir::Digest, ir::DigestHash> within;
    for (const Expr& node : ir::in_order(*root)) within.insert(node->digest);
    const Live live(*root);
    for (const Expr& read : reads) {
      if (!within.contains(read->digest)) continue;
      for (std::size_t i = 0; i < read->arity; ++i) {
        const Expr& index = read->args[i];
        constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
        const Expr past = ir::integer(static_cast<std::int32_t>(std::min(captures[read->bits].shape[i], most)));
        const Expr outside = either(ir::op(Op::Lt, index, ir::integer(0)), ir::op(Op::Ge, index, past));
        out.push_back({at, read, i, summed(ir::op(Op::I32, both(live.of(read), outside)), *root)});
      }
    }
  }
  return out;
}

}  // namespace attune::compiler
