// runtime/crc32.h — the CRC-32 of .zip archives
#pragma once

#include <cstdint>
#include <string_view>

namespace attune::runtime {

/// Of the polynomial 0x04C11DB7, bits reversed. `before`: that of the bytes before these; 0 of none.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

}  // namespace attune::runtime
