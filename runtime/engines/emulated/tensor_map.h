// runtime/engines/emulated/tensor_map.h — a tensor map as the emulated driver writes it, for the emulated TMA
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace attune::runtime::emulated {

/// Dimensions start with the innermost one, whose stride is one element.
struct Map {
  static constexpr std::uint32_t right = 0x6d617073;
  std::uint32_t magic = 0;
  std::uint16_t rank = 0, element = 0;  ///< bytes of an element
  const std::byte* first = nullptr;
  std::array<std::uint64_t, 4> strides{};  ///< bytes, of the dimensions from 1 on
  std::array<std::uint32_t, 5> extents{};
  std::array<std::uint16_t, 6> box{};
  std::array<std::byte, 48> unused{};

  unsigned bytes() const {
    unsigned out = element;
    for (std::size_t i = 0; i < rank; ++i) out *= box[i];
    return out;
  }
};
static_assert(sizeof(void*) != 8 || sizeof(Map) == 128);

inline Map map_of(const std::array<std::byte, 128>& bytes) { return std::bit_cast<Map>(bytes); }

}  // namespace attune::runtime::emulated
