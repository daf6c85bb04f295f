// codegen/isa.cpp — the instruction sets that CPU kernels are written for, from the least to the most
#include "codegen/isa.h"

namespace attune::codegen {
std::string_view name_of(Isa isa) { return isa_names[static_cast<std::size_t>(isa)]; }

std::optional<Isa> isa_named(std::string_view name) {
  for (std::size_t i = 0; i < isa_names.size(); ++i)
    if (isa_names[i] == name) return static_cast<Isa>(i);
  return std::nullopt;
}

}  // namespace attune::codegen
