// runtime/machine/crc32.cpp — the CRC-32 of .zip archives, sixteen bytes at a time: one at a time takes longer than the
// read
#include "runtime/machine/crc32.h"

#include <array>
#include <cstring>

namespace attune::runtime {
namespace {

constexpr std::size_t width = 16;

/// [i][byte]: what a byte becomes when i further bytes have followed it.
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, width> out{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0xEDB88320u : 0u);
    out[0][byte] = rest;
  }
  for (std::size_t i = 1; i < width; ++i)
    for (std::size_t byte = 0; byte < 256; ++byte)
      out[i][byte] = out[i - 1][byte] >> 8 ^ out[0][out[i - 1][byte] & 255];
  return out;
}();

/// Four bytes, when N further ones have followed.
template <std::size_t N>
std::uint32_t followed(std::uint32_t word) {
  return tables[N + 3][word & 255] ^ tables[N + 2][word >> 8 & 255] ^ tables[N + 1][word >> 16 & 255] ^
         tables[N][word >> 24];
}

}  // namespace

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
  std::uint32_t rest = ~before;
  for (; bytes.size() >= width; bytes.remove_prefix(width)) {
    std::array<std::uint32_t, 4> words;
    std::memcpy(words.data(), bytes.data(), sizeof words);
    rest = followed<12>(words[0] ^ rest) ^ followed<8>(words[1]) ^ followed<4>(words[2]) ^ followed<0>(words[3]);
  }
  for (const char c : bytes) rest = rest >> 8 ^ tables[0][(rest ^ static_cast<unsigned char>(c)) & 255];
  return ~rest;
}

}  // namespace attune::runtime
