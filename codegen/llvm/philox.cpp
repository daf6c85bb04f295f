// codegen/llvm/philox.cpp — the language's random numbers (ir/random.h) as vector code
#include "codegen/llvm/philox.h"

#include <array>
#include <numeric>

namespace attune::codegen {
namespace {

using Block = std::array<Val, 4>;

Val zero_extended(Val a) {
  return {a.code(), a.code().ir().CreateZExt(a.get(), Code::vector(a.code().i64(), a.lanes()))};
}

/// ir::philox with key = {key, 0}.
Block philox(Block c, Val key) {
  Code& code = key.code();
  const auto times = [&](std::uint32_t by, Val a) { return zero_extended(a) * code.index(by); };
  const auto high = [](Val product) { return to_i32(shift_right_logical(product, 32)); };
  std::uint32_t second = 0;
  for (std::uint32_t round = 0; round < 10; ++round) {
    const Val even = times(0xD2511F53u, c[0]), odd = times(0xCD9E8D57u, c[2]);
    c = {high(odd) ^ c[1] ^ (key + code.integer(round * 0x9E3779B9u)), to_i32(odd),
         high(even) ^ c[3] ^ code.integer(second), to_i32(even)};
    second += 0xBB67AE85u;
  }
  return c;
}

/// The words of n / 4 blocks, one after the other.
Val interleaved(const Block& words) {
  const auto n = static_cast<int>(words[0].lanes());
  std::vector<int> both(static_cast<std::size_t>(2 * n)), order(static_cast<std::size_t>(4 * n));
  std::iota(both.begin(), both.end(), 0);
  for (int i = 0; i < 4 * n; ++i) order[static_cast<std::size_t>(i)] = i % 4 * n + i / 4;
  const auto vector = [](const Val& x) { return x.is_vector() ? x : splat(x, 1); };
  return shuffle(shuffle(vector(words[0]), vector(words[1]), both), shuffle(vector(words[2]), vector(words[3]), both),
                 order);
}

Val every_fourth(Val a) {
  std::vector<int> lanes(a.lanes() / 4);
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<int>(4 * i);
  return lanes.size() == 1 ? lane(a, 0) : shuffle(a, lanes);
}

}  // namespace

Val random(Val seed, const Coordinates& at) {
  const bool shared = at.kv.is_vector() && !seed.is_vector() && !at.q.is_vector();
  const Val number = shift_right_logical(shared ? every_fourth(at.kv) : at.kv, 2);
  const Block words = philox({number, at.q, at.head, at.batch}, seed);
  Val word;
  if (shared) {
    word = interleaved({like(number, words[0]), like(number, words[1]), like(number, words[2]), like(number, words[3])});
  } else {
    const Val which = at.kv & 3;
    word = select(which < 2, select(which == 0, words[0], words[1]), select(which == 2, words[2], words[3]));
  }
  return to_float(shift_right_logical(word, 8)) * 0x1p-24;
}

}  // namespace attune::codegen
