// codegen/cuda/forward_sm90/numbers.cuh — what scores and P need of a tile of keys, computed ahead by further warps:
// columns, distances of pairs, dropout's decisions
#pragma once

#include "codegen/cuda/contract/mod.cuh"
#include "codegen/cuda/forward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/parts/kept_words.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// Where the numbers for the keys in this place are.
template <class Tile>
__device__ inline unsigned numbers_of(Shared90<Tile> shared, const Place<Tile::stages>& keys) {
  return shared.base + shared.at.numbers + (keys.phase * Tile::stages + keys.stage) * shared.at.numbers_bytes;
}

/// Computes the numbers of each tile. When consumer warps read the captured tensors themselves, they waited for these
/// reads between the products that they issue.
template <class Tile, class User>
struct FindNumbers90 {
  using Shared = Shared90<Tile>;
  static constexpr int lanes = 32 * number_warps<Tile>;
  static_assert(!transposes_values<Tile> && Tile::heads == 1);

  const ForwardArgs& args;
  const User& user;
  Shared90<Tile> shared;
  int warp, lane;
  Ring<Tile::stages> k{shared.k_full()};
  Items<Tile, User> items{args, shared};

  __device__ FindNumbers90(const ForwardArgs& args, const User& user, Shared90<Tile> shared, int warp, int lane)
      : args(args), user(user), shared(shared), warp(warp), lane(lane) {}

  /// Calls find(head, at, origin, kv) for each tile of queries and of keys, whose first positions these are.
  template <class Find>
  __device__ void each_tile(const Find& find) {
    for (;;) {
      const Item item = items.template take<true>();
      __syncwarp();
      if (lane == 0) items.done();
      if (item.index == Item::stop) return;
      const Where at = item.entry.at(item.work.b, item.work.heads.first);
      const auto head = user.head(at);
      const int origin = item.entry.query(item.work.tile * Tile::m);
      const int count = item.walk.count;
#pragma unroll 1
      for (int i = 0; i < (two_walks<User> ? 2 : 1) * count; ++i) {
        const int tile = item.walk.tile(two_walks<User> && i >= count ? i - count : i);
        // Those of stages + 1 tiles may still be read: the keys of the tile before them have been released, which a
        // consumer does before it reads the numbers that came with them.
        find(head, at, origin, item.entry.key(tile * Tile::n));
        k.acquire();
        arrive_as_warp(k.full(), lane);
        k.next();
      }
    }
  }
};

// ---- columns: what scores read of them, once for all warps of a block -----------------------------------------------

/// A column as words.
template <class Tile, class Col>
struct ColumnWords {
  static constexpr int count = words_of_column<Tile>;
  static_assert(sizeof(Col) == 4 * count);
  unsigned words[count];

  __device__ static ColumnWords of(const Col& col) { return __builtin_bit_cast(ColumnWords, col); }
  __device__ Col col() const { return __builtin_bit_cast(Col, *this); }
};

/// Computes the columns of each tile, and the largest term() of each warp's columns. The columns that a lane t of four
/// reads, 8 i + 2 t and the next for all i, lie together in shared memory.
template <class Tile, class User>
struct FindColumns90 : FindNumbers90<Tile, User> {
  using Base = FindNumbers90<Tile, User>;
  using Base::args, Base::k, Base::lane, Base::lanes, Base::shared, Base::user, Base::warp;
  using typename Base::Shared;
  static constexpr int n = Tile::n, words = words_of_column<Tile>;

  __device__ void run() {
    this->each_tile([&](const typename User::Head& head, const Where& at, int q, int kv) { find(head, at, q, kv); });
  }

 private:
  __device__ void find(const typename User::Head& head, const Where& at, int origin, int kv) const {
    const unsigned to = numbers_of(shared, k);
    typename User::Col cols[(n + lanes - 1) / lanes];
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int j = 0; j < (n + lanes - 1) / lanes; ++j) {
        const int column = lanes * j + 32 * warp + lane;
        if (n % lanes == 0 || column < n) f(cols[j], column);
      }
    };
    each([&](typename User::Col& col, int column) { col = user.col(head, at, origin, kv + column); });
    each([&](const typename User::Col& col, int column) {
      const auto is = ColumnWords<Tile, typename User::Col>::of(col);
      const unsigned line = to + column / 2 % 4 * Shared::at.columns_line + 4 * words * (column / 8 * 2 + column % 2);
#pragma unroll
      for (int w = 0; w < words; ++w) shared_put(line + 4 * w, is.words[w]);
    });
    if constexpr (User::traits.peak == Peak::columns) {
      const typename User::Row row = user.row(head, at, origin);
      float most = -infinity;
      each([&](const typename User::Col& col, int column) {
        if (kv + column < at.kv_len) most = fmaxf(most, user.term(head, row, col, at, origin, origin, kv + column));
      });
#pragma unroll
      for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      if (lane == 0) shared_put(to + Shared::at.columns_most + 4 * warp, __float_as_uint(most));
    }
  }
};

/// A tile's columns as a consumer warp reads them.
template <class Tile, class Col>
struct Columns90 {
  using Shared = Shared90<Tile>;
  static constexpr int words = words_of_column<Tile>;
  unsigned shared;  ///< numbers_of()
  int lane;

  /// Calls f(i, e, column) for every column of this thread, 8 i + 2 (lane % 4) + e.
  template <class F>
  __device__ void each(const F& f) const {
    constexpr int at_once = 4 / words;  // columns
#pragma unroll
    for (int c = 0; c < Tile::n / 4; c += at_once) {
      const uint4 four = shared_get_words(shared + (lane & 3) * Shared::at.columns_line + 4 * words * c);
      const unsigned of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        ColumnWords<Tile, Col> is;
#pragma unroll
        for (int w = 0; w < words; ++w) is.words[w] = of[words * j + w];
        f((c + j) / 2, (c + j) % 2, is.col());
      }
    }
  }
  __device__ Col at(int column) const {
    const unsigned line = shared + column / 2 % 4 * Shared::at.columns_line + 4 * words * (column / 8 * 2 + column % 2);
    ColumnWords<Tile, Col> is;
#pragma unroll
    for (int w = 0; w < words; ++w) is.words[w] = static_cast<unsigned>(shared_get(line + 4 * w));
    return is.col();
  }
  /// The largest term() of all columns.
  __device__ float most() const {
    const float2 most = shared_get2(shared + Shared::at.columns_most);
    return fmaxf(most.x, most.y);
  }
};

// ---- the part of a score that depends only on how far apart q and kv are, once a distance ---------------------------

/// Computes the numbers of each tile. Number i belongs to kv - q = i - (m - 1), counted from the first of both.
/// Consumers read pairs of neighbours at once, so there is a second copy for the pairs that begin with an odd number.
/// The copies lie in different banks.
template <class Tile, class User>
struct FindDistances90 : FindNumbers90<Tile, User> {
  using Base = FindNumbers90<Tile, User>;
  using Base::k, Base::lane, Base::lanes, Base::shared, Base::user, Base::warp;
  using typename Base::Shared;
  static constexpr int count = Tile::m + Tile::n - 1, before = Tile::m - 1;

  __device__ void run() {
    this->each_tile([&](const typename User::Head& head, const Where& at, int q, int kv) { find(head, at, q, kv); });
  }

 private:
  __device__ void find(const typename User::Head& head, const Where& at, int q, int kv) const {
    const unsigned to = numbers_of(shared, k) + 4 * (32 * warp + lane);
    float x[(count + lanes - 1) / lanes];
    // All reads before the stores that need them.
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int j = 0; j < (count + lanes - 1) / lanes; ++j) f(x[j], lanes * j + 32 * warp + lane, to + 4 * lanes * j);
    };
    each([&](float& x, int i, unsigned) {
      x = user.distant(head, at, q + max(before - i, 0), kv + max(i - before, 0));
    });
    // The first number of the second copy begins no pair, and goes to the gap before it.
    each([&](float x, int, unsigned to) {
      shared_put(to, __float_as_uint(x));
      shared_put(to + Shared::at.distant_copy - 4, __float_as_uint(x));
    });
  }
};

/// The numbers for a consumer warp's 16 rows, from `row` on, and a tile of keys.
template <class Tile>
struct Distances90 {
  unsigned shared;  ///< numbers_of()
  int row, lane;

  /// Calls f(i, r, e, number) for every score of this thread, as ForwardScores90::each() counts them.
  template <class F>
  __device__ void each(const F& f) const {
    // The number of score i = 0, r = 0, e = 0. A step of i moves 8 numbers forward, a step of r 8 back.
    const int first = Tile::m - 1 - row - lane / 4 + 2 * (lane & 3);
    const unsigned from = shared + 4 * (first & ~1) + (first & 1) * Shared90<Tile>::at.distant_copy;
    float2 now = shared_get2(from - 32);
#pragma unroll
    for (int i = 0; i < Tile::n / 8; ++i) {
      const float2 below = now;
      now = shared_get2(from + 32 * i);
      f(i, 0, 0, now.x);
      f(i, 1, 0, below.x);
      f(i, 0, 1, now.y);
      f(i, 1, 1, below.y);
    }
  }
};

/// The decisions for a consumer warp's rows of a tile, as masks of P's operand.
template <class Tile>
struct DrawnWords90 {
  static constexpr int words = (Tile::n + 31) / 32;
  unsigned of_row[words][2];  ///< shifted, so that the lane's second column is the highest bit of the first byte

  /// `numbers`: numbers_of(). `row`: the warp's first.
  __device__ void read(unsigned numbers, int row, int lane) {
    // A multiplication shifts in another pipe than all the masks; `pin` keeps the compiler from making it a shift.
    unsigned by = 1u << (6 - 2 * (lane & 3));
    pin(by);
    each_word([&](int w, int r) {
      const int at = Tile::m * w + row + lane / 4 + 8 * r;
      of_row[w][r] = static_cast<unsigned>(shared_get(numbers + 4 * static_cast<unsigned>(at))) * by;
    });
  }
  /// Calls f(i, r, mask) for two columns of row r, 8 i + 2 (lane % 4) and the next; the mask has 16 bits for each.
  template <class F>
  __device__ void each(const F& f) const {
    each_word([&](int w, int r) {
      const unsigned second = of_row[w][r], first = second + second;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (4 * w + j < Tile::n / 8) f(4 * w + j, r, copies_of_signs(first, second, j));
    });
  }

 private:
  template <class F>
  __device__ static void each_word(const F& f) {
#pragma unroll
    for (int w = 0; w < words; ++w)
#pragma unroll
      for (int r = 0; r < 2; ++r) f(w, r);
  }
};

/// Draws the words of each tile: a word is 32 keys of a query, and the words of the same keys lie together.
template <class Tile, class User>
struct DrawWords90 : FindNumbers90<Tile, User> {
  using Base = FindNumbers90<Tile, User>;
  using Base::k, Base::lane, Base::shared, Base::user, Base::warp;
  static constexpr int words = DrawnWords90<Tile>::words, warps = number_warps<Tile>;
  static_assert(Tile::m == 32 * warps);
  /// A warp draws its word for all queries if there is one for each warp: what depends on the keys alone is then
  /// computed once. Otherwise it draws all words for 32 queries.
  static constexpr bool by_word = words == warps;
  static constexpr int parts = by_word ? Tile::m / 32 : words;

  __device__ void run() {
    this->each_tile([&](const typename User::Head& head, const Where& at, int q, int kv) {
      const KeptDraws<User> draws(user, head, at);
      const auto draw = [&](int i) {
        const int word = by_word ? warp : i, row = 32 * (by_word ? i : warp) + lane;
        shared_put(numbers_of(shared, k) + 4 * static_cast<unsigned>(Tile::m * word + row),
                   draws.template from<!is_per_entry<Tile>>(q + row, static_cast<unsigned>(kv + 32 * word)));
      };
      // Two at a time, whose blocks of Philox hide each other's latency. All four at once were 2 % slower.
#pragma unroll 1
      for (int i = 0; i < parts; i += 2)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (parts % 2 == 0 || i + j < parts) draw(i + j);
    });
  }
};

}  // namespace attune
