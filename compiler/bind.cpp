// compiler/bind.cpp — the tensors and numbers of a Mod's slots in a call: bound by the call, else captured; and the Mod
// of calls that are parts
#include "compiler/bind.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "compiler/requirements.h"

namespace attune::compiler {
namespace {

constexpr std::uint32_t of_whole = ir::bit(ir::Input::B) | ir::bit(ir::Input::H) | ir::bit(ir::Input::QLen) |
                                   ir::bit(ir::Input::KVLen);

bool depends(const Mod& mod) {
  return std::ranges::any_of(std::array{mod.score, mod.mask, mod.prob, mod.sink},
                             [](const ir::Expr& e) { return e && (e->uses & of_whole) != 0; });
}

std::string unused_name(const Mod& mod, std::string name) {
  const auto taken = [&](const auto& slot) { return slot.name == name; };
  while (std::ranges::any_of(mod.captures, taken) || std::ranges::any_of(mod.params, taken)) name += '_';
  return name;
}

}  // namespace

BoundMod part_of(BoundMod traced, PartSink sink) {
  Mod& mod = traced.mod;
  if (sink == PartSink::dropped) mod.sink = nullptr;
  if (!depends(mod)) return traced;
  mod.whole = static_cast<std::uint32_t>(mod.params.size());
  for (const char* name : {"first_b", "first_h", "more_q_len", "more_kv_len"}) {
    mod.params.push_back({unused_name(mod, name), ir::Type::I32});
    traced.slots.params.push_back(
        std::make_shared<detail::ParamCell>(detail::ParamCell{mod.params.back().name, false, 0}));
  }
  return traced;
}

std::vector<double> params_of(const Mod& part, std::vector<double> users, const Slice& values) {
  if (part.whole)
    for (const std::int64_t value : {values.first_batch, values.first_head, values.more_queries, values.more_keys})
      users.push_back(static_cast<double>(value));
  return users;
}

namespace {

/// "2 captures: `slope`, `doc`"
template <class Slot>
std::string listed(std::span<const Slot> slots, const char* one) {
  std::string out = fmt::format("{} {}{}", slots.size(), one, slots.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < slots.size(); ++i) out += fmt::format("{}`{}`", i ? ", " : ": ", slots[i].name);
  return out;
}

template <class Slot>
void check_count(std::size_t bound, std::span<const Slot> slots, const char* one) {
  if (bound == 0 || bound == slots.size()) return;
  throw refuse("bind-count", fmt::format("the call binds {} {}{}", bound, one, bound == 1 ? "" : "s"),
               fmt::format("the attention reads {}", listed(slots, one)),
               fmt::format("pass one for each, in this order, or none to use those given when it was made", one));
}

void check_capture(const CaptureSlot& slot, const Tensor& t) {
  const ir::Type is = type_of(t.dtype), wanted = type_of(slot.dtype);
  if (is == wanted && t.rank == slot.rank) return;
  const std::string name = fmt::format("capture `{}`", slot.name);
  if (is != wanted)
    throw refuse("capture-type", fmt::format("{} holds {}", name, name_of(t.dtype)),
                 fmt::format("expressions read its elements as {}, and elements of {} are read as {}",
                             ir::name_of(wanted), name_of(t.dtype), ir::name_of(is)),
                 "convert the tensor, or make an attention that reads it as it is");
  throw refuse("bind-rank", fmt::format("{} has {} dimension{}", name, t.rank, t.rank == 1 ? "" : "s"),
               fmt::format("{} is {}, and expressions read it with {} {}", name, t.describe(), slot.rank,
                           slot.rank == 1 ? "index" : "indices"),
               "pass a tensor with as many dimensions");
}

void check_param(const ir::Signature::Param& slot, double value) {
  if (slot.type != ir::Type::I32) {
    if (std::isinf(value) || !std::isinf(static_cast<float>(value))) return;
    throw refuse("bind-param", fmt::format("parameter `{}` cannot be {}", slot.name, value),
                 "it is a Float, the largest of which is 3.4028235e+38", "pass infinity, or a smaller number");
  }
  using Int = std::numeric_limits<std::int32_t>;
  if (value == std::trunc(value) && value >= Int::min() && value <= Int::max()) return;
  throw refuse("bind-param", fmt::format("parameter `{}` cannot be {}", slot.name, value),
               "it is an Int: a whole number from -2147483648 to 2147483647", "pass such a number");
}

}  // namespace

Args args(const BoundMod& bound, std::span<const Tensor> captures, std::span<const double> params) {
  Args out{captures.empty() ? std::span<const Tensor>(bound.slots.captures) : captures, {}};
  out.params.reserve(bound.slots.params.size());
  for (std::size_t i = 0; i < bound.slots.params.size(); ++i) {
    const double value = params.empty() ? bound.slots.params[i]->value : params[i];
    const bool is_float = bound.mod.params[i].type == ir::Type::F32;
    out.params.push_back(is_float ? static_cast<double>(static_cast<float>(value)) : value);
  }
  return out;
}

bool check_bound(const BoundMod& bound, std::span<const Tensor> captures, std::span<const double> params) {
  const std::span<const CaptureSlot> slots(bound.mod.captures);
  const std::span<const ir::Signature::Param> numbers(bound.mod.params);
  check_count(captures.size(), slots, "capture");
  check_count(params.size(), numbers, "parameter");
  bool open = false;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!captures.empty() && captures[i].given()) {
      check_capture(slots[i], captures[i]);
      continue;
    }
    if (bound.slots.captures[i].declared())
      throw refuse("capture-missing", fmt::format("the call has no tensor for capture `{}`", slots[i].name),
                   "it was declared without one, and the call binds none",
                   fmt::format("bind it: .captures has an entry for each of {}", listed(slots, "capture")));
    open |= !captures.empty();
  }
  for (std::size_t i = 0; i < numbers.size(); ++i)
    check_param(numbers[i], params.empty() ? bound.slots.params[i]->value : params[i]);
  return open;
}

std::vector<Tensor> filled(const Slots& slots, std::span<const Tensor> captures) {
  std::vector<Tensor> out(captures.begin(), captures.end());
  for (std::size_t i = 0; i < out.size(); ++i)
    if (!out[i].given()) out[i] = slots.captures[i];
  return out;
}

bool is_of(const Backward::Captured& gradient, const Args& args, std::uint32_t slot) {
  if (gradient.slot >= 0) return static_cast<std::uint32_t>(gradient.slot) == slot;
  return args.captures[slot] == gradient.of;
}

}  // namespace attune::compiler
