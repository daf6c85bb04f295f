// codegen/isa.h — the instruction sets that CPU kernels are written for, from the least to the most
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace attune::codegen {

/// Each contains the sets before it. portable: what every machine of the host's architecture has (SSE2, NEON). avx2:
/// with FMA and F16C. avx512: F, BW, CD, DQ, VL. amx: tiles of bf16.
enum class Isa : std::uint8_t { portable, avx2, avx512, avx512bf16, amx };

inline constexpr std::array<std::string_view, 5> isa_names{"portable", "avx2", "avx512", "avx512bf16", "amx"};

constexpr std::string_view name_of(Isa isa) { return isa_names[static_cast<std::size_t>(isa)]; }
constexpr std::optional<Isa> isa_named(std::string_view name) {
  for (std::size_t i = 0; i < isa_names.size(); ++i)
    if (isa_names[i] == name) return static_cast<Isa>(i);
  return std::nullopt;
}

}  // namespace attune::codegen
