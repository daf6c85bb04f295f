// codegen/llvm/philox.cpp — the language's random numbers (ir/random.h) as vector code
#include "codegen/llvm/philox.h"

#include <array>
#include <numeric>

#include "codegen/llvm/wide.h"

namespace attune::codegen {
namespace {

using Block = std::array<Val, 4>;

/// ir::philox with key = {key, 0}.
Block philox(Block c, Val key) {
  Code& code = key.code();
  const auto times = [&](std::uint32_t by, Val a) { return to_u64(a) * code.index(by); };
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

/// The four words of each block, one block after the other.
Val in_order(const Block& words) {
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

}  // namespace

Val random(Val seed, const Coordinates& at) {
  const bool shared = at.kv.is_vector() && !seed.is_vector() && !at.q.is_vector();
  const Val number = shift_right_logical(shared ? every_fourth(at.kv) : at.kv, 2);
  const Block words = philox({number, at.q, at.head, at.batch}, seed);
  Val word;
  if (shared) {
    word = in_order({like(number, words[0]), like(number, words[1]), like(number, words[2]), like(number, words[3])});
  } else {
    const Val which = at.kv & 3;
    word = select(which < 2, select(which == 0, words[0], words[1]), select(which == 2, words[2], words[3]));
  }
  return to_float(shift_right_logical(word, 8)) * 0x1p-24;
}

}  // namespace attune::codegen
