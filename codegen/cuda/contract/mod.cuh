// codegen/cuda/contract/mod.cuh — the contract between a user's expression and a kernel
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/ops.cuh"

namespace attune {

/// How the rows and keys of batch entries lie in memory.
enum class Layout {
  dense,   ///< each batch entry has its own positions
  packed,  ///< sequences follow one another along the positions of one entry, from their starts on
};
template <class Tile>
constexpr bool is_packed = Tile::layout == Layout::packed;

/// Values that are the same for all pairs of a head and batch entry.
struct Where {
  int b, h, q_len, kv_len;
};

/// A tile of queries visits keys [begin, end); within [full_begin, full_end) no pair is masked out.
struct Bands {
  int begin, end, full_begin, full_end;

  /// Pairs may be masked out within [from, to): the larger remainder on its two sides stays full.
  __device__ void cut(int from, int to) {
    if (from >= to || to <= full_begin || from >= full_end) return;
    if (from - full_begin > full_end - to)
      full_end = max(from, full_begin);
    else
      full_begin = min(to, full_end);
  }
};

/// A user's expressions. Scores are exponents of two: exponent() is log2(e) times the part of the score that varies
/// along a row, rest() is the other part, as the user wrote it. `s` is q . k before scaling. Values that depend only on
/// the head, the query or the key are computed once, into Head, Row and Col.
///
/// A Col that reads captured tensors has of_lane(), so that lanes share their reads, and so has one whose divisions
/// keep() needs; in_scores is true if exponent() or prob() reads it, false if only keep() does. If a forward's scores
/// read captured tensors pair by pair, Inside is the same Mod for tiles with is_inside(): its reads are not clamped.
template <class M>
concept Mod = requires(const M m, Where at, typename M::Head head, typename M::Row row, typename M::Col col, float x,
                       Int i) {
  head = m.head(at);
  row = m.row(head, at, i);     // q
  col = m.col(head, at, i, i);  // origin, kv
  x = m.factor(head);
  x = m.exponent(x, head, row, col, at, i, i, i);  // s, …, origin, q, kv
  x = m.rest(head, row, at, i, i);                 // origin, q
  i = m.first(head, row, at, i);                   // q
  i = m.last(head, row, at, i);                    // q
  bool(m.keep(head, row, col, at, i, i));          // q, kv
  x = m.prob(x, head, row, col, at, i, i);         // p, …, q, kv
  x = m.sink(head, at);
  Bands(m.bands(head, at, i, i));  // queries [q_begin, q_end)
  Traits(M::traits);
};

/// A Mod with Traits::drops: kernels may draw the decisions of many pairs at once.
template <class M>
concept Drops = Mod<M> && requires(const M m, Where at, typename M::Head head, float x, Int i) {
  i = m.drop_seed(head, at);
  i = m.drop_share(head, at);
  x = m.drop_factor(head);  // finite, and the same for all heads of a call
};

/// True in a skeleton, whose functions are places for those of a mod: codegen/source/skeleton.h.
template <class User>
constexpr bool is_skeleton = requires {
  User::has_places;
};

template <class Col>
concept Shareable = requires(Col col) {
  col.of_lane(0);
};
template <class Col>
constexpr bool in_scores = false;
template <Shareable Col>
constexpr bool in_scores<Col> = Col::in_scores;

/// The bound of exponents, see Traits::most; skeletons, which serve many bounds, have it as a function.
template <class User>
__device__ inline float most_of(const User& user) {
  if constexpr (requires { user.most(); })
    return user.most();
  else
    return User::traits.most;
}

template <class M>
concept HasInside = requires {
  typename M::Inside;
};

/// A Mod whose exponent() is a function of s plus term(), see Traits::peak.
template <class M>
concept HasTerm = requires(const M m, Where at, typename M::Head head, typename M::Row row, typename M::Col col,
                           float x, Int i) {
  x = m.term(head, row, col, at, i, i, i);  // origin, q, kv
};

/// Which of several functions of a mod is meant.
template <int nth>
struct Nth {};

/// Kernels that have the values of a struct Held for each pair call an exponent() that takes it after s.
/// Held::copied is an element, the first copied()'s at copied_line() of the row and at column kv; Held::copied_second
/// is one of the second, if kernels copy it. If copied_steps() is true for two rows, then the lines of the rows between
/// them are equally far apart.
template <class M, int nth = 0>
concept HasCopied = requires(const M m, Nth<nth> of, Where at, typename M::Head head, typename M::Row row, Int i) {
  m.copied(of).columns();
  m.copied_line(of, head, row, at, i);         // q
  bool(m.copied_steps(of, head, row, at, i));  // q
};
/// Held::distant is distant(), whose value is the same for all pairs of a head that are equally far apart.
template <class M>
concept HasDistant = requires(const M m, Where at, typename M::Head head, float x, Int i) {
  x = m.distant(head, at, i, i);  // q, kv
};

/// Held::tanh is the tanh of tanh_of(). Then exponent() does not need s.
template <class M>
concept HasTanh = requires(const M m, Where at, typename M::Head head, typename M::Row row, typename M::Col col,
                           float x, Int i) {
  x = m.tanh_of(x, head, row, col, at, i, i, i);  // s; origin, q, kv
};

/// The keys between first() and last() of a row, counted from `kv`.
template <class User>
struct Reach {
  int from, to;

  __device__ Reach(const User& user, typename User::Head head, typename User::Row row, Where at, Int q, int kv)
      : from(0), to(at.kv_len - 1) {
    if constexpr (User::traits.has_first) from = max(from, min(user.first(head, row, at, q).i(), at.kv_len));
    if constexpr (User::traits.has_last) to = min(to, max(user.last(head, row, at, q).i(), -1));
    from -= kv;
    to -= kv;
  }
  __device__ bool holds(int i) const { return (!User::traits.has_first || i >= from) && i <= to; }
};

}  // namespace attune
