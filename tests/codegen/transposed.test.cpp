// tests/codegen/transposed.test.cpp — how forward_e4m3_sm90.cuh transposes values, and that a thread's scores are then
// an operand as they lie: matrix instructions emulated on the host
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "tests/catch.h"

namespace attune::tests {
namespace {

using Memory = std::vector<std::uint8_t>;
using Warp = std::array<unsigned, 32>;
constexpr unsigned line = 128;

/// Swizzled rows of 128 bytes, as TMA writes and products read them.
unsigned place(unsigned row, unsigned byte) { return row * line + (((byte / 16) ^ (row % 8)) * 16 + byte % 16); }

unsigned byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = selector >> 4 * i & 7;
    out |= ((from < 4 ? a : b) >> 8 * (from % 4) & 0xff) << 8 * i;
  }
  return out;
}

/// ldmatrix.x4.trans and stmatrix.x4 of 16-bit units, by the book.
std::array<Warp, 4> load_transposed(const Memory& memory, const Warp& address) {
  std::array<Warp, 4> out{};
  for (unsigned matrix = 0; matrix < 4; ++matrix)
    for (unsigned lane = 0; lane < 32; ++lane)
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned byte = memory.at(address[8 * matrix + 2 * (lane % 4) + i / 2] + lane / 4 * 2 + i % 2);
        out[matrix][lane] |= byte << 8 * i;
      }
  return out;
}
void store_matrices(Memory& memory, const Warp& address, const std::array<Warp, 4>& x) {
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    std::set<unsigned> banks;
    for (unsigned row = 0; row < 8; ++row) banks.insert(address[8 * matrix + row] % line);
    CHECK(banks.size() == 8);  // no two of these rows collide
    for (unsigned lane = 0; lane < 32; ++lane)
      for (unsigned i = 0; i < 4; ++i)
        memory.at(address[8 * matrix + lane / 4] + lane % 4 * 4 + i) = static_cast<std::uint8_t>(x[matrix][lane] >>
                                                                                                 8 * i);
  }
}

/// Does what Transposer::transpose does, for `n` keys of `dv` columns.
void transpose(const Memory& loaded, Memory& transposed, unsigned n, unsigned dv) {
  for (unsigned warp = 0; warp < 2; ++warp)
    for (unsigned keys = 0; keys < n / 32; ++keys)
      for (unsigned j = 0; j < dv / 32; ++j) {
        Warp from{}, to{};
        for (unsigned lane = 0; lane < 32; ++lane) {
          from[lane] = ((32 * keys + lane) * line + ((warp ^ (lane & 7)) << 4)) ^ 2 * j << 4;
          const unsigned g = lane % 8, odd = (g >= 4) != (lane / 8 % 2 == 1), row = 16 * warp + 2 * g + odd;
          to[lane] = keys / 4 * (dv * line) + row * line + (((2 * (keys % 4) + lane / 16) ^ (row & 7)) << 4) +
                     32 * j * line;
        }
        const auto x = load_transposed(loaded, from);
        std::array<Warp, 4> y{};
        for (unsigned lane = 0; lane < 32; ++lane) {
          const unsigned first = lane < 16 ? 0x6420 : 0x7531, second = lane < 16 ? 0x7531 : 0x6420;
          y[0][lane] = byte_perm(x[0][lane], x[1][lane], first);
          y[1][lane] = byte_perm(x[0][lane], x[1][lane], second);
          y[2][lane] = byte_perm(x[2][lane], x[3][lane], first);
          y[3][lane] = byte_perm(x[2][lane], x[3][lane], second);
        }
        store_matrices(transposed, to, y);
      }
}

/// The key at a place of a transposed row.
unsigned key_at(unsigned at) { return 16 * (at / 16) + 8 * (at % 4 / 2) + 2 * (at % 16 / 4) + at % 2; }

}  // namespace

TEST_CASE("values of 8 bits are transposed, their keys in the order of scores", "[e4m3]") {
  for (const unsigned n : {32u, 64u, 96u, 128u, 160u})
    for (const unsigned dv : {32u, 64u, 96u, 128u}) {
      Memory loaded(n * line), transposed((n + 127) / 128 * dv * line);
      const auto value = [](unsigned key, unsigned column) {
        return static_cast<std::uint8_t>(key * 37 + column * 11);
      };
      for (unsigned key = 0; key < n; ++key)
        for (unsigned column = 0; column < dv; ++column) loaded[place(key, column)] = value(key, column);
      transpose(loaded, transposed, n, dv);
      bool same = true;
      for (unsigned column = 0; column < dv; ++column)
        for (unsigned at = 0; at < n; ++at)
          same = same && transposed[at / 128 * dv * line + place(column, at % 128)] == value(key_at(at), column);
      INFO(n << " keys of " << dv);
      CHECK(same);
    }
}

TEST_CASE("a thread's scores are an operand of 8 bits as they lie", "[e4m3]") {
  constexpr unsigned n = 128;
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned j = 0; j < n / 32; ++j)
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned r = 0; r < 2; ++r)
          for (unsigned byte = 0; byte < 4; ++byte) {
            // WarpgroupE4m3::operand() packs these scores into register 4 j + 2 half + r.
            const unsigned i = 16 * j + 8 * half + 2 * r + std::array{0u, 1u, 4u, 5u}[byte];
            // Scores s[4 i + 2 r + e] are of row lane / 4 + 8 r and key 8 i + 2 (lane % 4) + e.
            const unsigned key = 8 * (i / 4) + 2 * (lane % 4) + i % 2, row = i / 2 % 2;
            // An operand's register has places 4 (lane % 4) to 4 (lane % 4) + 3 of a row, and 16 further on.
            CHECK(row == r);
            CHECK(key_at(32 * j + 16 * half + 4 * (lane % 4) + byte) == key);
          }
}

}  // namespace attune::tests
