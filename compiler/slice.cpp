// compiler/slice.cpp — a Mod for calls that are parts of a larger one: some of its batch entries, heads and queries
#include "compiler/slice.h"

#include <algorithm>

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

}  // namespace attune::compiler
