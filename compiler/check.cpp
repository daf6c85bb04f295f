// compiler/check.cpp — refuse expressions that read a variable they may not read, and indices outside of tensors
#include "compiler/check.h"

#include <algorithm>
#include <array>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/outside.h"
#include "ir/print.h"

namespace attune::compiler {
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
