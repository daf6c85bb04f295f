// codegen/isa.h — the kinds of CPU that code can be made for, from the one anything has to the widest
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace attune::codegen {

enum class Isa : std::uint8_t { portable, avx2, avx512, avx512bf16, amx };
inline constexpr std::array<std::string_view, 5> isa_names{"portable", "avx2", "avx512", "avx512bf16", "amx"};

std::string_view name_of(Isa isa);
std::optional<Isa> isa_named(std::string_view name);

}  // namespace attune::codegen
