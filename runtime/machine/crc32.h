// runtime/machine/crc32.h — the CRC-32 of .zip archives
#pragma once

#include <cstdint>
#include <string_view>

namespace attune::runtime {

/// The polynomial is 0x04C11DB7, with its bits reversed. `before` is the CRC of the preceding bytes, 0 if there are
/// none.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

}  // namespace attune::runtime
