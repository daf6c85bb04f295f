// codegen/llvm/philox.cpp — the language's random numbers (ir/eval.h) as vector code
#include "codegen/llvm/philox.h"

#include <array>
#include <numeric>

#include "codegen/llvm/wide.h"

namespace attune::codegen {
namespace {

using FourWords = std::array<Val, 4>;

/// ir::philox with key = {seed, second}. A loop: unrolled, it would take most of the compile time of a kernel with
/// dropout.
FourWords philox(const FourWords& counter, Val seed, std::uint32_t second) {
  Code& code = seed.code();
  const auto times = [&](std::uint32_t by, Val a) { return to_u64(a) * code.index(by); };
  const auto high = [](Val product) { return to_i32(shift_right_logical(product, 32)); };
  const auto round = [&](Val, const Code::Carried& c) {
    const Val even = times(0xD2511F53u, c[0]), odd = times(0xCD9E8D57u, c[2]);
    return Code::Carried{high(odd) ^ c[1] ^ c[4],          to_i32(odd),
                         high(even) ^ c[3] ^ c[5],         to_i32(even),
                         c[4] + code.integer(0x9E3779B9u), c[5] + code.integer(0xBB67AE85u)};
  };
  const auto out = code.loop(code.integer(0), code.integer(10), 1,
                             {counter[0], counter[1], counter[2], counter[3], seed, code.integer(second)}, round);
  return {out[0], out[1], out[2], out[3]};
}

/// The four words of each block, one block after the other.
Val in_order(const FourWords& words) {
  Code& code = words[0].code();
  if (!words[0].is_vector()) {
    Val all{code, llvm::PoisonValue::get(Code::vector(code.i32(), 4))};
    for (unsigned i = 0; i < 4; ++i) all = with_lane(all, i, words[i]);
    return all;
  }
  const std::size_t n = words[0].lanes();
  std::vector<int> both(2 * n), order(4 * n);
  std::iota(both.begin(), both.end(), 0);
  for (std::size_t i = 0; i < 4 * n; ++i) order[i] = static_cast<int>(i % 4 * n + i / 4);
  return codegen::shuffle(codegen::shuffle(words[0], words[1], both), codegen::shuffle(words[2], words[3], both),
                          order);
}

Val every_fourth(Val a) {
  std::vector<int> lanes(a.lanes() / 4);
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<int>(4 * i);
  return lanes.size() == 1 ? lane(a, 0) : codegen::shuffle(a, lanes);
}

/// The words of blocks, at the other coordinates of `at`.
FourWords words_of(Val seed, const Coordinates& at, Val block, std::uint32_t second) {
  // Widen everything to the same lanes, since a value carried by a loop keeps its type.
  const Val all = like(seed, like(at.q, block));
  const auto wide = [&](Val x) { return like(all, x); };
  return philox({wide(block), wide(at.q), wide(at.head), wide(at.batch)}, seed, second);
}
/// The words of random() at positions `kv`.
FourWords words_of_random(Val seed, const Coordinates& at, Val kv) {
  return words_of(seed, at, shift_right_logical(kv, 2), 0);
}

Val one_by_one(Val seed, const Coordinates& at) {
  const FourWords words = words_of_random(seed, at, at.kv);
  const Val which = at.kv & 3;
  return select(which < 2, select(which == 0, words[0], words[1]), select(which == 2, words[2], words[3]));
}

/// The 16 bits of positions `kv`, one block of words for each or for all of them.
Val sixteen_bits(Val seed, const Coordinates& at, Val block) {
  const FourWords words = words_of(seed, at, block, 1);
  const Val lane = at.kv & 15;
  const auto rotated = [](Val x, int by) { return shift_right_logical(x, by) | x << (32 - by); };
  const auto byte = [&](const auto& of_word) {
    Val all = of_word(words[0]);
    for (unsigned i = 1; i < 4; ++i) all = all | of_word(words[i]) << i;
    return (all | shift_right_logical(all, 12)) & 0xff;
  };
  const auto two = [&](Val x) { return shift_right_logical(like(lane, x), like(x, lane)) & 0x10001; };
  return byte(two) << 8 | byte([&](Val x) { return two(rotated(x, 5) ^ rotated(x, 11)); });
}

}  // namespace

Val random(Val seed, const Coordinates& at) {
  Code& code = seed.code();
  Val word;
  if (at.kv.is_vector() && !seed.is_vector() && !at.q.is_vector())
    word = code.branch((lane(at.kv, 0) & 3) == 0,
                       [&] { return Code::Carried{in_order(words_of_random(seed, at, every_fourth(at.kv)))}; },
                       [&] { return Code::Carried{one_by_one(seed, at)}; })[0];
  else
    word = one_by_one(seed, at);
  return to_float(shift_right_logical(word, 8)) * 0x1p-24;
}

Val kept(Val seed, Val n, const Coordinates& at) {
  Code& code = seed.code();
  const auto bits_of = [&](Val kv) { return sixteen_bits(seed, at, shift_right_logical(kv, 4)); };
  const unsigned lanes = at.kv.lanes();
  if (lanes == 1 || lanes > 16 || seed.is_vector() || at.q.is_vector()) return bits_of(at.kv) < n;
  const Val first = lane(at.kv, 0);
  return code.branch((first & (lanes - 1)) == 0, [&] { return Code::Carried{bits_of(first)}; },
                     [&] { return Code::Carried{bits_of(at.kv)}; })[0] < n;
}

}  // namespace attune::codegen
