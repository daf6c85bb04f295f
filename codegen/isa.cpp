// codegen/isa.cpp — the kinds of CPU by their names
#include "codegen/isa.h"

#include <algorithm>

namespace attune::codegen {

std::string_view name_of(Isa isa) { return isa_names[static_cast<std::size_t>(isa)]; }

std::optional<Isa> isa_named(std::string_view name) {
  const auto found = std::ranges::find(isa_names, name);
  if (found == isa_names.end()) return std::nullopt;
  return static_cast<Isa>(found - isa_names.begin());
}

}  // namespace attune::codegen
