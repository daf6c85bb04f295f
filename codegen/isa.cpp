// codegen/isa.cpp — the instruction sets that CPU kernels are written for, from the least to the most
#include "codegen/isa.h"

#include <array>

namespace attune::codegen {
namespace {

constexpr std::array<std::string_view, 5> names{"portable", "avx2", "avx512", "avx512bf16", "amx"};

}  // namespace

std::string_view name_of(Isa isa) { return names[static_cast<std::size_t>(isa)]; }

std::optional<Isa> isa_named(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Isa>(i);
  return std::nullopt;
}

}  // namespace attune::codegen
