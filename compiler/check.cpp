// compiler/check.cpp — refuses expressions that read a variable they may not read, and indices outside of tensors where
// a pair needs them
#include "compiler/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <unordered_set>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/tile.h"
#include "ir/eval.h"
#include "ir/print.h"

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

namespace {

using ir::bit, ir::Input;

/// One of a Mod's expressions, with the words messages use for it.
struct Component {
  std::string_view name;
  const ir::Expr& root;
  std::uint32_t may_read;
  std::string_view because;  ///< the reason why it may not read the others
};

constexpr std::uint32_t per_head = bit(Input::B) | bit(Input::H);
constexpr std::uint32_t per_pair = per_head | bit(Input::Q) | bit(Input::KV) | bit(Input::QLen) | bit(Input::KVLen);

std::array<Component, 4> parts(const Mod& mod) {
  return {Component{"score", mod.score, per_pair | bit(Input::S), "a score is computed before probabilities exist"},
          Component{"mask", mod.mask, per_pair, "a mask removes pairs before scores are computed"},
          Component{"prob mod", mod.prob, per_pair | bit(Input::P), "a prob mod reads probabilities, not scores"},
          Component{"sink", mod.sink, per_head, "a sink is one logit per batch entry and head"}};
}

/// The user's text with a caret under the node, or the user's line.
Place place_of(const ir::Expr& node, const Component& part, const ir::Signature& names) {
  const ir::Written& at = node->written;
  if (at.text) return {.name = at.text->name, .line = 0, .text = at.text->body, .begin = at.begin, .end = at.end};
  const ir::Printed printed = ir::print_spans(part.root, names);
  Place place{.name = at.file ? at.file : std::string(part.name), .line = static_cast<int>(at.line)};
  place.text = printed.text;
  if (const auto span = printed.spans.find(node->digest); span != printed.spans.end()) {
    place.begin = span->second.begin;
    place.end = span->second.end;
  }
  return place;
}

std::uint32_t own_inputs(const ir::Node& node) {
  if (node.op == ir::Op::Input) return bit(static_cast<Input>(node.bits));
  return ir::draws(node.op) ? node.uses & (bit(Input::Q) | bit(Input::KV)) : 0;
}

[[noreturn]] void refuse_input(const ir::Expr& node, const Component& part, const ir::Signature& names) {
  const bool random = ir::draws(node->op);
  const std::string_view read = random ? ir::row(node->op).spelling : ir::input_names[node->bits];
  throw Error("wrong-input", fmt::format("a {} reads `{}`", part.name, read), place_of(node, part, names),
              fmt::format("{}{}", part.because, random ? fmt::format(", and {} differs for every q and kv", read) : ""),
              part.name == "sink"
                  ? "use b, h, captures and parameters alone"
                  : fmt::format("leave `{}` out, or move this into {}", read, read == "p" ? "a prob mod" : "a score"));
}

/// The bounds on coordinates and lengths that follow from the problem, and on captured values from their types.
ir::Bounds bounds_of(const Mod& mod, const Problem& p) {
  ir::Bounds bounds;
  const auto range = [](std::int64_t low, std::int64_t high) {
    return ir::Interval{static_cast<double>(low), static_cast<double>(high), false};
  };
  bounds[Input::B] = range(0, p.batch - 1);
  bounds[Input::H] = range(0, p.q_heads - 1);
  std::int64_t first = p.q_offset, last = p.q_offset;
  if (p.has_q_offsets()) {
    const auto offsets = std::ranges::minmax_element(p.per_entry->q_offsets);
    first = *offsets.min, last = *offsets.max;
  }
  bounds[Input::Q] = range(first, last + p.q.length - 1);
  bounds[Input::KV] = range(p.kv_offset, p.kv_offset + p.kv.length - 1);
  // A sequence with a pair is not empty; the shortest non-empty one is the lower bound.
  const auto shortest = [](const Positions& of) {
    std::int64_t least = of.starts_on_device() ? std::min<std::int64_t>(of.length, 1) : of.length;
    for (std::size_t i = 1; i < of.starts.size(); ++i)
      if (of.starts[i] > of.starts[i - 1]) least = std::min(least, of.starts[i] - of.starts[i - 1]);
    return least;
  };
  const auto shortest_told = [&] {
    std::int64_t least = p.kv.length;
    for (const std::int64_t n : p.per_entry->kv_lens)
      if (n > 0) least = std::min(least, n);
    return least;
  };
  bounds[Input::QLen] = range(shortest(p.q), p.q.length);
  bounds[Input::KVLen] = range(p.kv_offset + (p.has_kv_lens() ? shortest_told() : shortest(p.kv)),
                               p.kv_offset + p.kv.length);
  for (const CaptureSlot& c : mod.captures) {
    ir::Interval values = ir::Interval::all(type_of(c.dtype));
    if (c.dtype == DType::u8) values = range(0, 255);
    if (c.dtype == DType::i8) values = range(-128, 127);
    if (c.dtype == DType::i16) values = range(-32768, 32767);
    bounds.captures.push_back(values);
  }
  return bounds;
}

/// "h (0..15)": the coordinates that would be in range, for the fix.
std::string coordinates_within(const Component& part, const ir::Bounds& bounds, std::int64_t extent) {
  std::string out;
  for (const Input which : {Input::B, Input::H, Input::Q, Input::KV}) {
    if (!(part.may_read & bit(which)) || bounds[which].hi >= static_cast<double>(extent)) continue;
    out += fmt::format("{}{} ({}..{})", out.empty() ? "" : " or ", ir::input_names[static_cast<std::size_t>(which)],
                       bounds[which].lo, bounds[which].hi);
  }
  return out;
}

std::string runs_over(const std::string& index, const ir::Interval& range) {
  if (index == fmt::format("{}", range.lo)) return fmt::format("the index is {}", range.lo);
  return range.lo == range.hi ? fmt::format("{} is {}", index, range.lo)
                              : fmt::format("{} runs over {}..{}", index, range.lo, range.hi);
}

/// The advice for an index that is in range at some of its coordinates.
std::string fix_of_some(const std::string& index, const ir::Interval& range, std::int64_t extent,
                        const std::string& along) {
  const std::string ends = fmt::format("write clamp({}, 0, {}) to stay at the ends", index, extent - 1);
  if (range.lo < 0) return fmt::format("keep the index at 0 or above, or {}", ends);
  return fmt::format("pass a tensor of at least {} values{}, or {}", range.hi + 1, along, ends);
}

/// Throws the Error for a read whose index at `dimension` takes the values `range`, some or all outside the tensor.
[[noreturn]] void refuse_read(const ir::Expr& read, std::size_t dimension, const ir::Interval& range,
                              const Tensor& tensor, const Component& part, const Mod& mod, const ir::Bounds& bounds) {
  const ir::Signature names = mod.signature();
  const std::string& name = mod.captures[read->bits].name;
  const std::int64_t extent = tensor.shape[dimension];
  const std::string along = tensor.rank > 1 ? fmt::format(" along dimension {}", dimension) : "";
  const std::string holds = fmt::format("{} holds {} value{}{}", name, extent, extent == 1 ? "" : "s", along);
  if (extent == 0)
    throw Error("capture-empty", fmt::format("capture `{}` is read but is empty", name), place_of(read, part, names),
                fmt::format("{} is {}", name, tensor.describe()), "pass a tensor with values, or leave the read out");
  const std::string index = ir::print(read->args[dimension], names);
  std::string fix = fmt::format("index it within 0..{}", extent - 1);
  if (const std::string fits = coordinates_within(part, bounds, extent); !fits.empty()) fix += ", e.g. by " + fits;
  if (range.hi >= static_cast<double>(extent) && range.hi < std::numeric_limits<std::int32_t>::max())
    fix += fmt::format(", or pass a tensor of at least {} values{}", range.hi + 1, along);
  if (range.lo < static_cast<double>(extent) && range.hi >= 0) fix = fix_of_some(index, range, extent, along);
  throw Error("capture-range", fmt::format("capture `{}` is read out of range", name), place_of(read, part, names),
              fmt::format("{}, and {}", runs_over(index, range), holds), fix);
}

/// True if the expression is evaluated at any coordinates.
bool has_coordinates(const Component& part, const Problem& p) {
  const bool rows = p.batch > 0 && p.q_heads > 0 && p.q.length > 0;
  return part.root && rows && (part.name == "sink" || p.kv.length > 0);
}

}  // namespace

void check(const Mod& mod) {
  const ir::Signature names = mod.signature();
  for (const Component& part : parts(mod)) {
    if (!part.root || !(part.root->uses & ~part.may_read)) continue;
    for (const ir::Expr& node : ir::in_order(part.root))
      if (own_inputs(*node) & ~part.may_read) refuse_input(node, part, names);
  }
}

std::vector<ir::Expr> check_reads(const Mod& mod, std::span<const Tensor> captures, const Problem& problem) {
  std::vector<ir::Expr> clamped;
  ir::Ranger ranger(bounds_of(mod, problem));
  for (const Component& part : parts(mod)) {
    if (!has_coordinates(part, problem)) continue;
    const bool of_pairs = part.may_read & bit(Input::KV), masks = &part.root == &mod.mask;
    const ir::Expr removes = of_pairs && !masks ? mod.mask : nullptr;
    for (const ir::Expr& node : ir::in_order(part.root)) {
      if (node->op != ir::Op::Read) continue;
      const Tensor& tensor = captures[node->bits];
      bool inside = true;
      for (std::size_t i = 0; i < node->arity; ++i) {
        const ir::Interval range = ranger(node->args[i]);
        const auto extent = static_cast<double>(tensor.shape[i]);
        if (extent == 0 || (!range.empty() && (range.hi < 0 || range.lo >= extent)))
          refuse_read(node, i, range, tensor, part, mod, ranger.bounds());
        const bool within = range.lo >= 0 && range.hi < extent;
        if (!within)
          if (const auto taken = reads_outside(part.root, removes, node, i, tensor.shape[i], ranger.bounds()))
            refuse_read(node, i, *taken, tensor, part, mod, ranger.bounds());
        inside &= within;
      }
      if (!inside) clamped.push_back(node);
    }
  }
  return clamped;
}

}  // namespace attune::compiler
