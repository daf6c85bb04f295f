// codegen/cuda/forward_sm90/scores.cuh — the registers of a consumer warpgroup of Hopper's forward; scores become
// exponents of two, masked-out ones -inf
#pragma once

#include "codegen/cuda/forward_sm90/numbers.cuh"
#include "codegen/cuda/forward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/parts/copied_read_sm90.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/kept_words.cuh"
#include "codegen/cuda/ptx/wgmma.cuh"

namespace attune {

/// A thread's registers while its warpgroup computes 64 queries. Thread t of the warpgroup holds row t / 4 % 8 + 16 (t
/// / 32) and the row 8 below; of these, columns 8 i + 2 (t % 4) and the next.
template <class Tile, class User>
struct ForwardScores90 {
  using Element = typename Tile::Element;
  using Out = typename Tile::Out;
  using Shared = Shared90<Tile>;
  static constexpr int n = Tile::n, bytes = ElementOf<Element>::bytes;
  static constexpr int below = 8 / Tile::heads;  ///< queries from a thread's first row to its second
  static_assert(8 % Tile::heads == 0);
  static constexpr bool fixed = fixed_maximum<Tile, User>;
  /// True if full tiles reuse the maximum that earlier tiles found and never compute one. With bands, partial tiles
  /// come first and find a maximum for nearly every row; with lists, partial tiles may leave many rows without one.
  static constexpr bool lean = recomputes<Tile, User> && !User::traits.listed;
  static constexpr bool has_columns = attune::has_columns<Tile>;
  /// If rows of a tile belong to several heads, the tile may be inside for only some heads.
  static constexpr bool knows_inside = HasInside<User> && Tile::heads == 1;
  template <bool Partial>
  static constexpr bool shares = Shareable<typename User::Col> && !has_columns &&
                                 (Partial || in_scores<typename User::Col>);
  static constexpr bool leads = attune::leads<Tile, User>;
  static constexpr bool copies = copies_reads<Tile, User>, has_distant = has_distances<Tile> && HasDistant<User>,
                        has_tanh = HasTanh<User>;

  const ForwardArgs& args;
  const User& user;
  Shared90<Tile> shared;
  int group, lane, warp;
  float s[n / 2], o[Tile::dv / 2];
  unsigned p[n / 8 * bytes];
  float m[2], l[2], lift[2];
  float per_power[2];       ///< with two walks, after the first: a row's probability per power; -0 if it has no pairs
  float peak[2], ahead[2];  ///< with leads: the largest term() of the tiles that `m` includes, and of the next tile
  bool led;                 ///< with leads: the next tile's is larger in some row of the warp
  Where at;
  Entry entry;
  typename User::Head head;
  typename User::Row row[2];
  typename User::Col cols[(n + 31) / 32];  ///< if lanes share them: columns 8 i + e with 2 i + e = 8 j + lane / 4
  int q0, origin;
  int part;             ///< in the epilogue, if items are parts of keys: which one
  unsigned copied = 0;  ///< with copies: of the two places for copies, the one for the next tile
  int copied_next;      ///< if there is one place: the tile to copy once this one's have been read, or -1
  unsigned numbers;     ///< with distances, columns or drawn words: where those of this tile are
  float factor;
  bool moved = true;
  static constexpr bool is_drawn = attune::is_drawn<Tile>, draws = User::traits.drops && !is_drawn;
  KeptByQueries<draws ? n : 0> kept;  ///< by dropout, of this tile
  DrawnWords90<Tile> drawn;           ///< the same, if other warps draw

  __device__ const auto& inside() const {
    if constexpr (knows_inside)
      return reinterpret_cast<const typename User::Inside&>(user);
    else
      return user;
  }
  /// True if a full tile's reads need no clamping.
  __device__ bool is_inside(int tile) const {
    if constexpr (knows_inside)
      return user.is_inside(head, at, origin, origin + Tile::m, first_key(tile), first_key(tile) + n);
    else
      return true;
  }

  /// The position of a tile's first key.
  __device__ int first_key(int tile) const { return entry.key(tile * n); }
  /// The position after the last query.
  __device__ int q_end() const { return entry.query(at.q_len); }

  /// The query and the head of the warp's nth row, relative to the tile's first.
  __device__ int query(int nth) const { return (64 * group + 16 * warp + nth) / Tile::heads; }
  __device__ static int head_of(int nth) { return nth % Tile::heads; }

  /// Starts a tile of queries.
  __device__ void enter(const Item& item) {
    const Heads heads = item.work.heads;
    entry = item.entry;
    at = entry.at(item.work.b, heads.first);
    // Rows of missing heads repeat the last head.
    if constexpr (Tile::heads > 1) at.h += min(head_of(lane / 4), heads.count - 1);
    head = user.head(at);
    origin = entry.query(item.work.tile * queries_of<Tile>);
    q0 = origin + query(lane / 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) row[r] = user.row(head, at, q0 + below * r);
    factor = factor_of(user, head);
    // Rows past the end start with maximum 0, so they never count as rows without a maximum.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r] = q0 + below * r < q_end() ? -infinity : 0.0f;
      l[r] = 0;
      if constexpr (leads) peak[r] = -infinity;
    }
  }
  /// Calls f(i, r, e) for every score s[4 i + 2 r + e] of this thread, in row r and column 8 i + e. Sums per row and e
  /// are four independent chains.
  template <class F>
  __device__ void each(const F& f) {
#pragma unroll
    for (int i = 0; i < n / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int r = 0; r < 2; ++r) f(i, r, e);
  }
  /// Reads the fields of columns that lanes share, early because the reads take long.
  template <bool Partial>
  __device__ void read_columns(int tile) {
    if constexpr (shares<Partial>)
#pragma unroll
      for (int j = 0; j < (n + 31) / 32; ++j) cols[j] = user.col(head, at, origin, first_key(tile) + shared_column(j));
  }
  __device__ int shared_column(int j) const {
    const int nth = 8 * j + lane / 4;
    return 2 * (lane & 3) + 8 * (nth / 2) + nth % 2;
  }
  template <bool Partial>
  __device__ typename User::Col column(const Int& kv, int i, int e) const {
    // A mask may divide it: a division of unsigned numbers takes half of the instructions.
    if constexpr (Partial && User::traits.has_keep) __builtin_assume(kv.i() >= 0);
    if constexpr (shares<Partial>)
      return cols[(2 * i + e) / 8].of_lane((2 * i + e) % 8 * 4 + (lane & 3));
    else
      return user.col(head, at, origin, kv);
  }

  /// The numbers for distances or columns, and drawn words, are those that came with the keys in this place.
  __device__ void take_numbers(const Place<Tile::stages>& keys) {
    if constexpr (has_distant || has_columns || is_drawn) numbers = numbers_of(shared, keys);
  }
  __device__ auto columns() const { return Columns90<Tile, typename User::Col>{numbers, lane}; }

  /// Draws which pairs of a tile dropout keeps.
  __device__ void draw(int tile) {
    if constexpr (draws) {
      constexpr bool aligned = !is_per_entry<Tile>;  // otherwise keys begin at any position
      kept.template draw<aligned>(KeptDraws<User>(user, head, at), q0 + below * (lane & 1), first_key(tile), lane);
    }
  }

  /// Finds the largest term() of a tile, after read_columns().
  template <bool Partial>
  __device__ void look_ahead(int tile) {
    if constexpr (leads) {
      const int first = first_key(tile), last = min(first + n, at.kv_len) - 1;
      const auto term = [&](int r, const auto& col, int kv) {
        return user.term(head, row[r], col, at, origin, q0 + below * r, kv);
      };
      const auto term_at = [&](int r, int kv) { return term(r, user.col(head, at, origin, kv), kv); };
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (User::traits.peak == Peak::columns && has_columns)
          ahead[r] = r ? ahead[0] : columns().most();
        else if constexpr (User::traits.peak == Peak::columns)
          ahead[r] = r ? ahead[0] : most_of_columns<Partial>(first, last, term);
        else
          ahead[r] = fmaxf(term_at(r, first), term_at(r, last));
        if constexpr (User::traits.peak == Peak::diagonal)
          ahead[r] = fmaxf(ahead[r], term_at(r, min(max(q0 + below * r, first), last)));
      }
      led = __any_sync(~0u, ahead[0] > peak[0] || ahead[1] > peak[1]);
    }
  }
  template <bool Partial, class F>
  __device__ float most_of_columns(int first, int last, const F& term) const {
    float most = -infinity;
#pragma unroll
    for (int j = 0; j < (n + 31) / 32; ++j) {
      const int kv = first + (shares<Partial> ? shared_column(j) : 32 * j + lane);
      if constexpr (shares<Partial>)
        most = kv > last ? most : fmaxf(most, term(0, cols[j], kv));
      else
        most = fmaxf(most, term(0, user.col(head, at, origin, min(kv, last)), min(kv, last)));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    return most;
  }

  /// Calls f(i, r, e, column) for every score.
  template <class F>
  __device__ void each_with_column(const F& f) {
    columns().each([&](int i, int e, const auto& col) {
#pragma unroll
      for (int r = 0; r < 2; ++r) f(i, r, e, col);
    });
  }
  /// Where registers are short, one row after the other: what a pair reads then takes half of the registers.
  static constexpr bool row_by_row = is_packed<Tile> && Tile::dv > 128;
  /// each(), or row by row.
  template <class F>
  __device__ void each_score(const F& f) {
    if constexpr (!row_by_row) {
      each(f);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < n / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) f(i, r, e);
    }
  }
  /// Calls f(x, mod, row, col, q, kv) for every score x; in full tiles `mod` does not clamp its reads.
  template <bool Partial, class F>
  __device__ void each_pair(int tile, const F& f) {
    const int kv0 = first_key(tile) + 2 * (lane & 3);
    const auto at_pair = [&](int i, int r, int e, const auto& col) {
      const Int q(q0, below * r), kv(kv0, 8 * i + e);
      if constexpr (Partial)
        f(s[4 * i + 2 * r + e], user, row[r], col, q, kv);
      else
        f(s[4 * i + 2 * r + e], inside(), row[r], col, q, kv);
    };
    if constexpr (has_columns)
      each_with_column(at_pair);
    else
      each_score([&](int i, int r, int e) { at_pair(i, r, e, column<Partial>(Int(kv0, 8 * i + e), i, e)); });
  }

  static constexpr bool copies_late = copies && Shared::at.copied_places == 1;
  /// Starts to copy what the pairs of a tile read.
  __device__ void copy(int tile) {
    if constexpr (copies) start_copy(tile, true);
  }
  /// The same of the tile after the one whose exponents() come next, if there is such a tile.
  __device__ void copy_ahead(int tile, bool there) {
    if constexpr (copies_late)
      copied_next = there ? tile : -1;
    else if constexpr (copies)
      start_copy(tile, there);
  }
  __device__ void start_copy(int tile, bool there) {
    __syncwarp();  // what lay there has been read
    const int q = origin + query(0);
    if (there) copied_reads().start(copied, head, at, q, q_end() - q, first_key(tile));
    copy_commit();
    copied ^= copies_late ? 0 : Shared::at.copied_bytes;
  }
  __device__ auto copied_reads() const {
    return CopiedReads90<Tile, User>{user,
                                     shared.base + Shared::at.copied + (4 * group + warp) * Shared::at.copied_warp,
                                     lane, Shared::at.copied_tensor};
  }
  __device__ auto distances() const { return Distances90<Tile>{numbers, 64 * group + 16 * warp, lane}; }
  template <bool Partial>
  __device__ void exponents_with_held(int tile) {
    const int kv0 = first_key(tile) + 2 * (lane & 3);
    const auto exponent = [&](int i, int r, int e, typename User::Held held) {
      const Int q(q0, below * r), kv(kv0, 8 * i + e);
      const auto col = column<Partial>(kv, i, e);
      float& x = s[4 * i + 2 * r + e];
      if constexpr (Partial)
        x = user.exponent(x, held, head, row[r], col, at, origin, q, kv);
      else
        x = inside().exponent(x, held, head, row[r], col, at, origin, q, kv);
    };
    if constexpr (copies) {
      copy_wait<copies_late ? 0 : 1>();
      __syncwarp();
      copied_reads().each(copied, exponent);
      if constexpr (copies_late) start_copy(copied_next, copied_next >= 0);
    } else {
      distances().each([&](int i, int r, int e, float x) { exponent(i, r, e, {0, x}); });
    }
  }

  /// For a mod that needs no more of a score than its tanh: calls f(exponent), where exponent(i, r, e) is that of a
  /// score. tanh is a polynomial if all arguments of a warp's tile are small; the special-function unit would take half
  /// as long again as the products.
  template <bool Partial, class F>
  __device__ void by_tanh(int tile, const F& f) {
    float most[2][2] = {};
    const auto at_pair = [&](int i, int r, int e, const auto& g) {
      const Int q(q0, below * r), kv(first_key(tile) + 2 * (lane & 3), 8 * i + e);
      const auto col = column<Partial>(kv, i, e);
      if constexpr (Partial)
        return g(user, row[r], col, q, kv);
      else
        return g(inside(), row[r], col, q, kv);
    };
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = at_pair(i, r, e, [&](const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
        return mod.tanh_of(x, head, row, col, at, origin, q, kv);
      });
      most[r][e] = fmaxf(most[r][e], fabsf(x));
    });
    const auto with = [&](const auto& tanh) {
      f([&](int i, int r, int e) {
        const float x = s[4 * i + 2 * r + e];
        return at_pair(i, r, e, [&](const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
          return mod.exponent(x, {0, 0, tanh(x)}, head, row, col, at, origin, q, kv);
        });
      });
    };
    const float top = fmaxf(fmaxf(most[0][0], most[0][1]), fmaxf(most[1][0], most[1][1]));
    if (__any_sync(~0u, top > exact::small_tanh_most))
      with([](float x) { return exact::tanh(x); });
    else
      with([](float x) { return exact::small_tanh(x); });
  }

  /// Turns scores into exponents of powers of two, or leaves them a factor below these if User::traits.scaled.
  template <bool Partial>
  __device__ void exponents(int tile) {
    if constexpr (has_tanh)
      by_tanh<Partial>(tile, [&](const auto& exponent) {
        each([&](int i, int r, int e) { s[4 * i + 2 * r + e] = exponent(i, r, e); });
      });
    else if constexpr (copies || has_distant)
      exponents_with_held<Partial>(tile);
    else if constexpr (!User::traits.scaled)
      each_pair<Partial>(tile, [&](float& x, const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
        x = mod.exponent(x, head, row, col, at, origin, q, kv);
      });
  }

  /// S = -inf for masked-out pairs.
  __device__ void remove(int tile) {
    const int kv0 = first_key(tile) + 2 * (lane & 3);
    const Reach<User> reach[2] = {{user, head, row[0], at, Int(q0), kv0},
                                  {user, head, row[1], at, Int(q0, below), kv0}};
    constexpr int last = n - 7;  // this thread's last column
    if (__any_sync(~0u, !(reach[0].holds(0) && reach[0].holds(last) && reach[1].holds(0) && reach[1].holds(last))))
      each([&](int i, int r, int e) {
        float& x = s[4 * i + 2 * r + e];
        x = reach[r].holds(8 * i + e) ? x : -infinity;
      });
    if constexpr (User::traits.keep_block > 0) {
      remove_blocks(tile);
    } else if constexpr (User::traits.has_keep) {
      if constexpr ((shares<true> || has_columns) && User::traits.keeps_by_fields)
        if (rows_alike()) return remove_columns();
      each_pair<true>(tile, [&](float& x, const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
        x = mod.keep(head, row, col, at, q, kv) ? x : -infinity;
      });
    }
  }
  /// Calls keep() once for a row and a block of keys.
  __device__ void remove_blocks(int tile) {
    constexpr int block = min(User::traits.keep_block, n & -n);
#pragma unroll
    for (int first = 0; first < n; first += block) {
      const Int kv(first_key(tile), first);
      const auto col = user.col(head, at, origin, kv);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool kept = user.keep(head, row[r], col, at, Int(q0, below * r), kv);
#pragma unroll
        for (int i = first / 8; i < (first + block) / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) s[4 * i + 2 * r + e] = kept ? s[4 * i + 2 * r + e] : -infinity;
      }
    }
  }
  __device__ bool rows_alike() const {
    if constexpr (!Shareable<typename User::Row>)
      return true;  // rows have no fields
    else {
      const auto first = row[0].of_lane(0);
      return __all_sync(~0u, row[0].is(first) && row[1].is(first));
    }
  }
  /// If a warp's rows are alike, the lane that has a column calls keep() for it, once.
  __device__ void remove_columns() {
    constexpr int words = (n + 31) / 32;
    unsigned kept[words], all = ~0u;
#pragma unroll
    for (int j = 0; j < words; ++j) {
      if constexpr (has_columns) cols[j] = columns().at(min(shared_column(j), n - 1));
      kept[j] = __ballot_sync(~0u, user.keep(head, row[0], cols[j], at, Int(0), Int(0)));
      all &= kept[j];
    }
    if (all == ~0u) return;
#pragma unroll
    for (int j = 0; j < words; ++j) kept[j] >>= lane & 3;
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = kept[(2 * i + e) / 8] & (1u << (2 * i + e) % 8 * 4) ? x : -infinity;
    });
  }
};

}  // namespace attune
