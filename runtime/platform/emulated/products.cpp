// runtime/platform/emulated/products.cpp — products of warps: mma at once, wgmma when it is waited for
//
// Layouts are those of the PTX manual, for m16n8 and m64n.. fragments. Sums are in f32, in order of k.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "runtime/platform/emulated/runner.h"

namespace attune::runtime::emulated {
namespace {

constexpr std::size_t lanes = 32;

std::vector<float> f16_table() {
  std::vector<float> out(1 << 16);
  for (std::uint32_t x = 0; x < out.size(); ++x) {
    const std::uint32_t sign = (x & 0x8000u) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ffu;
    const std::uint32_t bits = exponent == 31 ? 0x7f800000u | fraction << 13
                               : exponent > 0 ? (exponent + 112) << 23 | fraction << 13
                                              : std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
    out[x] = std::bit_cast<float>(sign | bits);
  }
  return out;
}
float e4m3(std::uint32_t x) {
  const std::uint32_t size = x & 0x7f;
  const float out = size == 0x7f ? std::nanf("")
                    : size < 8   ? static_cast<float>(size) * 0x1p-9f
                                 : std::bit_cast<float>((size << 20) + (120u << 23));
  return x & 0x80 ? -out : out;
}

constexpr int bytes_of(Operands of) { return of == Operands::e4m3 ? 1 : of == Operands::tf32 ? 4 : 2; }
constexpr int k_of(Operands of) { return 32 / bytes_of(of); }
constexpr int elements_of_word(Operands of) { return 4 / bytes_of(of); }

/// Element i of a word; element 0 is in the lowest bits.
template <Operands of>
float element(std::uint32_t word, int i) {
  if constexpr (of == Operands::bf16) {
    return std::bit_cast<float>(i ? word & 0xffff0000u : word << 16);
  } else if constexpr (of == Operands::f16) {
    static const std::vector<float> all = f16_table();
    return all[i ? word >> 16 : word & 0xffff];
  } else if constexpr (of == Operands::tf32) {
    return std::bit_cast<float>(word & 0xffffe000u);
  } else {
    return e4m3(word >> (8 * i) & 0xff);
  }
}

/// c[16 x n] += a[16 x k] b[k x n], all row-major; n is a multiple of 8. `Sum`: the type of the sums within a step. For
/// f32 it is double, because the hardware rounds once a step.
template <class Sum = float>
void add_product(float* __restrict c, const float* __restrict a, const float* __restrict b, int k, int n) {
  constexpr int at_once = 8;  // a constant, so that the compiler vectorizes the inner loops
  for (int row = 0; row < 16; ++row)
    for (int first = 0; first < n; first += at_once) {
      std::array<Sum, at_once> sum;
      for (int j = 0; j < at_once; ++j) sum[static_cast<std::size_t>(j)] = static_cast<Sum>(c[row * n + first + j]);
      for (int i = 0; i < k; ++i) {
        const Sum x = static_cast<Sum>(a[row * k + i]);
        const float* const from = b + i * n + first;
        for (int j = 0; j < at_once; ++j) sum[static_cast<std::size_t>(j)] += x * static_cast<Sum>(from[j]);
      }
      for (int j = 0; j < at_once; ++j) c[row * n + first + j] = static_cast<float>(sum[static_cast<std::size_t>(j)]);
    }
}

/// A's fragment of 16 rows: word w of lane l has elements of row l / 4 + 8 (w & 1), from k = each (l % 4 + 4 (w / 2))
/// on.
template <Operands of>
void take_a(const std::uint32_t* words, std::size_t lane, float* a) {
  constexpr int each = elements_of_word(of), k = k_of(of);
  const int at = static_cast<int>(lane);
  for (int w = 0; w < 4; ++w)
    for (int i = 0; i < each; ++i)
      a[(at / 4 + 8 * (w & 1)) * k + each * (at % 4 + 4 * (w / 2)) + i] = element<of>(words[w], i);
}

template <Operands of>
void multiply_warp(void* const* parts, unsigned) {
  constexpr int each = elements_of_word(of), k = k_of(of), n = 8;
  std::array<float, 16 * 32> a{};
  std::array<float, 32 * n> b{};
  std::array<float, 16 * n> c{};
  const auto part = [&](std::size_t lane) { return static_cast<const Product*>(parts[lane]); };
  const auto place = [&](std::size_t lane, std::size_t i) {
    return (lane / 4 + 8 * (i / 2)) * n + 2 * (lane % 4) + i % 2;
  };
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    if (!part(lane)) continue;
    take_a<of>(part(lane)->a, lane, a.data());
    for (int w = 0; w < 2; ++w)
      for (int i = 0; i < each; ++i)
        b[static_cast<std::size_t>((each * (static_cast<int>(lane) % 4 + 4 * w) + i) * n) + lane / 4] = element<of>(
            part(lane)->b[w], i);
    for (std::size_t i = 0; i < 4; ++i) c[place(lane, i)] = part(lane)->c[i];
  }
  add_product<std::conditional_t<of == Operands::tf32, double, float>>(c.data(), a.data(), b.data(), k, n);
  for (std::size_t lane = 0; lane < lanes; ++lane)
    if (part(lane))
      for (std::size_t i = 0; i < 4; ++i) part(lane)->c[i] = c[place(lane, i)];
}

void multiply(Operands operands, Product* mine, Site at) {
  constexpr std::array<Together*, 4> all{&multiply_warp<Operands::bf16>, &multiply_warp<Operands::f16>,
                                         &multiply_warp<Operands::tf32>, &multiply_warp<Operands::e4m3>};
  machine().together(~0u, "mma", all[static_cast<std::size_t>(operands)], mine, at);
}

// ---- products of a group --------------------------------------------------------------------------------------------

/// A matrix in shared memory, in rows of 128 bytes that are swizzled.
class Matrix {
 public:
  Matrix(Runner& runner, Block& block, unsigned long long descriptor, bool transposed, int element, Site at)
      : runner_(runner), block_(block), start_(static_cast<unsigned>(descriptor & 0x3fff) << 4),
        across_(static_cast<unsigned>(descriptor >> 16 & 0x3fff) << 4),
        rows_(static_cast<unsigned>(descriptor >> 32 & 0x3fff) << 4), element_(static_cast<unsigned>(element)),
        transposed_(transposed), at_(at) {
    if (descriptor >> 62 != 1) runner.fail("wgmma with a descriptor of another swizzle than 128 bytes", at);
    if (rows_ != 1024) runner.fail("wgmma with rows in groups of other than 1024 bytes", at);
  }

  /// 16 bytes: `count` elements of rows or columns from `other` on at one k, or of one row or column from k on.
  struct Piece {
    unsigned at, other, k, count;
  };
  /// Calls body with each piece of rows or columns [first, end), for k values of the other index.
  template <class Body>
  void each_piece(unsigned first, unsigned end, unsigned k, const Body& body) const {
    const unsigned many = 16 / element_;
    if (transposed_)
      for (unsigned i = 0; i < k; ++i)
        for (unsigned j = first; j < end; j += many) body(Piece{address(j, i), j, i, many});
    else
      for (unsigned j = first; j < end; ++j)
        for (unsigned i = 0; i < k; i += many) body(Piece{address(j, i), j, i, many});
  }

  /// Calls body with each element of rows or columns [first, end), its row or column and its k.
  template <Operands of, class Body>
  void each(unsigned first, unsigned end, const Body& body) const {
    constexpr unsigned of_word = elements_of_word(of);
    each_piece(first, end, k_of(of), [&](const Piece& piece) {
      std::array<std::uint32_t, 4> words;
      std::memcpy(words.data(), shared_bytes(runner_, block_, piece.at, 16, at_), 16);
      for (unsigned i = 0; i < piece.count; ++i)
        body(element<of>(words[i / of_word], static_cast<int>(i % of_word)), piece.other + (transposed_ ? i : 0),
             piece.k + (transposed_ ? 0 : i));
    });
  }

 private:
  unsigned address(unsigned other, unsigned k) const {
    const unsigned row = transposed_ ? k : other, byte = (transposed_ ? other : k) * element_;
    const unsigned plain = start_ + byte / 128 * across_ + row / 8 * rows_ + row % 8 * 128 + byte % 128;
    return plain ^ (plain >> 7 & 7) << 4;
  }

  Runner& runner_;
  Block& block_;
  unsigned start_, across_, rows_, element_;
  bool transposed_;
  Site at_;
};

/// The operands of all steps: for each, A (16 x k, this warp's rows) and B (k x n).
template <Operands of>
std::vector<float> operands_of(Runner& runner, Warp& warp, const PendingProduct& one) {
  const GroupProduct& p = one.what;
  constexpr int k = k_of(of), size = bytes_of(of);
  std::vector<float> out(static_cast<std::size_t>(p.steps * k * (16 + p.n)));
  float* to = out.data();
  for (int step = 0; step < p.steps; ++step) {
    if (p.a) {
      for (std::size_t lane = 0; lane < lanes; ++lane)
        take_a<of>(one.a.data() + (lane * static_cast<std::size_t>(p.steps) + static_cast<std::size_t>(step)) * 4, lane,
                   to);
    } else {
      const auto row = static_cast<unsigned>(16 * (warp.index % 4));
      Matrix(runner, *warp.block, p.a_at + static_cast<unsigned long long>(step * p.a_step), p.a_transposed, size,
             one.at)
          .each<of>(row, row + 16, [&](float x, unsigned r, unsigned i) { to[(r - row) * k + i] = x; });
    }
    to += 16 * k;
    Matrix(runner, *warp.block, p.b_at + static_cast<unsigned long long>(step * p.b_step), p.b_transposed, size, one.at)
        .each<of>(0, static_cast<unsigned>(p.n),
                  [&](float x, unsigned j, unsigned i) { to[i * static_cast<unsigned>(p.n) + j] = x; });
    to += k * p.n;
  }
  return out;
}
std::vector<float> operands_of(Runner& runner, Warp& warp, const PendingProduct& one) {
  constexpr std::array all{&operands_of<Operands::bf16>, &operands_of<Operands::f16>, &operands_of<Operands::tf32>,
                           &operands_of<Operands::e4m3>};
  return all[static_cast<std::size_t>(one.what.operands)](runner, warp, one);
}

/// Every 16 bytes of shared memory that a product of the warp reads.
template <class Body>
void each_piece(Runner& runner, Warp& warp, const PendingProduct& one, const Body& body) {
  const GroupProduct& p = one.what;
  const auto k = static_cast<unsigned>(k_of(p.operands)), row = static_cast<unsigned>(16 * (warp.index % 4));
  for (int step = 0; step < p.steps; ++step) {
    const auto at = [&](unsigned long long first, int by) {
      return first + static_cast<unsigned long long>(step * by);
    };
    if (!p.a)
      Matrix(runner, *warp.block, at(p.a_at, p.a_step), p.a_transposed, bytes_of(p.operands), one.at)
          .each_piece(row, row + 16, k, [&](const Matrix::Piece& piece) {
            body(OperandPiece{piece.at, piece.other - row, p.a_transposed ? piece.count : 1});
          });
    Matrix(runner, *warp.block, at(p.b_at, p.b_step), p.b_transposed, bytes_of(p.operands), one.at)
        .each_piece(0, static_cast<unsigned>(p.n), k, [&](const Matrix::Piece& piece) {
          body(OperandPiece{piece.at, 16 + piece.other, p.b_transposed ? piece.count : 1});
        });
  }
}

/// The place of number i of a lane in 16 rows of n.
std::size_t place_of(std::size_t lane, std::size_t i, std::size_t n) {
  return (lane / 4 + 8 * (i / 2 % 2)) * n + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
}

/// Marks a product whose operand is wrong: it does not read what it should.
void spoil(Runner& runner, PendingProduct& one, const OperandPiece& piece, const Conflict& conflict) {
  for (std::size_t i = piece.first; i < piece.first + piece.count; ++i) one.spoiled[i] = true;
  if (!std::exchange(one.doubted, true)) runner.doubt(conflict, one.at);
}

void carry_out(Runner& runner, Warp& warp, PendingProduct& one) {
  const GroupProduct& p = one.what;
  for (const OperandPiece& piece : one.reads)
    if (const Conflict conflict = warp.block->shadow->end_product(piece.at, 16); conflict.what)
      spoil(runner, one, piece, conflict);
  const std::vector<float> operands = one.read.empty() ? operands_of(runner, warp, one) : one.read;
  Accumulator& acc = warp.accumulators[one.accumulator];
  if (!p.add) std::ranges::fill(acc.value, 0.0f);
  const int k = k_of(p.operands);
  for (int step = 0; step < p.steps; ++step) {
    const float* const a = operands.data() + static_cast<std::ptrdiff_t>(step * k) * (16 + p.n);
    (p.operands == Operands::tf32 ? add_product<double> : add_product<float>)(acc.value.data(), a,
                                                                              a + static_cast<std::ptrdiff_t>(16 * k),
                                                                              k, p.n);
  }
  if (one.doubted) {
    const auto n = static_cast<std::size_t>(p.n);
    for (std::size_t i = 0; i < acc.value.size(); ++i)
      if (one.spoiled[i / n] || one.spoiled[16 + i % n]) acc.value[i] = unknown_number;
  }
  if (--acc.under_way > 0) return;
  for (std::size_t lane = 0; lane < lanes; ++lane)
    if (acc.at[lane])
      for (std::size_t i = 0; i < static_cast<std::size_t>(acc.numbers); ++i)
        acc.at[lane][i] = acc.value[place_of(lane, i, static_cast<std::size_t>(p.n))];
  acc.at = {};
}

/// The accumulator of a product: that of a product under way, or a new one, whose registers hold unknown_number from
/// now on.
std::size_t accumulator_of(Runner& runner, Warp& warp, void* const* parts, const GroupProduct& first, Site at) {
  auto& all = warp.accumulators;
  const auto acc_of = [&](std::size_t lane) { return static_cast<const GroupProduct*>(parts[lane])->acc; };
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].under_way > 0 && all[i].at[0] == acc_of(0)) {
      if (all[i].numbers != first.n / 2) runner.fail("wgmma with accumulators of another width under way", at);
      return i;
    }
  std::size_t i = 0;
  while (i < all.size() && all[i].under_way > 0) ++i;
  if (i == all.size()) all.emplace_back();
  Accumulator& acc = all[i];
  acc.numbers = first.n / 2;
  acc.value.assign(static_cast<std::size_t>(16 * first.n), 0.0f);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    acc.at[lane] = acc_of(lane);
    for (std::size_t j = 0; j < static_cast<std::size_t>(acc.numbers); ++j) {
      acc.value[place_of(lane, j, static_cast<std::size_t>(first.n))] = acc.at[lane][j];
      acc.at[lane][j] = unknown_number;
    }
  }
  return i;
}

struct AskedProduct : GroupProduct {
  Site at;
};

void begin_product(void* const* parts, unsigned mask) {
  Runner& runner = *running;
  Warp& warp = runner.warp();
  const auto& first = *static_cast<const AskedProduct*>(parts[0]);
  if (mask != ~0u) runner.fail("wgmma of a warp of which lanes have ended", first.at);
  PendingProduct one{
      .what = first, .accumulator = accumulator_of(runner, warp, parts, first, first.at), .at = first.at};
  ++warp.accumulators[one.accumulator].under_way;
  if (first.a)
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const unsigned* const words = static_cast<const AskedProduct*>(parts[lane])->a;
      one.a.insert(one.a.end(), words, words + static_cast<std::ptrdiff_t>(4 * first.steps));
    }
  Lane& lane = runner.lane();
  Toucher by = toucher(lane, *warp.block);
  by.fences = lane.fences_heard;
  one.spoiled.assign(static_cast<std::size_t>(16 + first.n), false);
  each_piece(runner, warp, one, [&](const OperandPiece& piece) {
    shared_bytes(runner, *warp.block, piece.at, 16, one.at);
    const Conflict conflict = warp.block->shadow->begin_product(piece.at, 16, by, warp.known);
    if (conflict.what)
      spoil(runner, one, piece, conflict);
    else
      one.reads.push_back(piece);
  });
  // Shared memory is read at once, or as late as possible.
  if (runner.chance(5)) one.read = operands_of(runner, warp, one);
  warp.products.back().push_back(std::move(one));
}

void multiply_group(const GroupProduct* mine, Site at) {
  AskedProduct asked{*mine, at};
  machine().together(~0u, "wgmma", &begin_product, &asked, at);
}

void group_wait(int pending, Site at) {
  int mine = pending;
  machine().together(
      ~0u, "wgmma.wait_group",
      [](void* const* parts, unsigned) {
        Warp& warp = running->warp();
        const auto left = static_cast<std::size_t>(*static_cast<const int*>(parts[0]));
        while (warp.products.size() > left + 1) {
          for (PendingProduct& one : warp.products.front()) carry_out(*running, warp, one);
          warp.products.pop_front();
        }
      },
      &mine, at);
}

}  // namespace

void fill_in_products(Machine& machine) {
  machine.multiply = &multiply;
  machine.multiply_group = &multiply_group;
  machine.group_fence = [](Site at) {
    emulated::machine().together(
        ~0u, "wgmma.fence", [](void* const*, unsigned) {}, nullptr, at);
  };
  machine.group_commit = [](Site at) {
    emulated::machine().together(
        ~0u, "wgmma.commit_group", [](void* const*, unsigned) { running->warp().products.emplace_back(); }, nullptr,
        at);
  };
  machine.group_wait = &group_wait;
}

}  // namespace attune::runtime::emulated
