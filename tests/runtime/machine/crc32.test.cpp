// tests/runtime/machine/crc32.test.cpp — the CRC-32 of .zip archives against its definition, bit by bit
#include "runtime/machine/archive.h"

#include <string>

#include "tests/catch.h"

using attune::runtime::crc32;

namespace {

std::uint32_t by_definition(std::string_view bytes) {
  std::uint32_t rest = ~0u;
  for (const char c : bytes) {
    rest ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) rest = rest & 1 ? rest >> 1 ^ 0xEDB88320u : rest >> 1;
  }
  return ~rest;
}

}  // namespace

TEST_CASE("the CRC-32 of any number of bytes is that of the definition, in one part or two") {
  CHECK(crc32("123456789") == 0xCBF43926u);
  CHECK(crc32("") == 0);
  std::string bytes;
  for (int i = 0; i < 100; ++i) {
    CHECK(crc32(bytes) == by_definition(bytes));
    const std::string_view all = bytes;
    const std::size_t first = all.size() / 3;
    CHECK(crc32(all.substr(first), crc32(all.substr(0, first))) == by_definition(all));
    bytes += static_cast<char>(i * 37);
  }
}
