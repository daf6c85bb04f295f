// ir/op.cpp — look-ups over the table of operations
#include "ir/op.h"

#include <unordered_map>

namespace attune::ir {

std::optional<Op> op_named(std::string_view name) {
  static const auto& table = *[] {
    auto* made = new std::unordered_map<std::string_view, Op>;
    for (std::size_t i = 0; i < op_rows.size(); ++i)
      if (op_rows[i].bind == 0 && !op_rows[i].spelling.empty()) made->emplace(op_rows[i].spelling, static_cast<Op>(i));
    return made;
  }();
  const auto found = table.find(name);
  if (found == table.end()) return std::nullopt;
  return found->second;
}

std::string_view name_of(Type type) {
  switch (type) {
    case Type::Bool: return "Bool";
    case Type::I32: return "Int";
    case Type::F32: return "Float";
  }
  return "?";
}

}  // namespace attune::ir
