// compiler/bands.cpp — turns spaces along an axis into bands for a whole tile of the other axis
#include "compiler/solve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compiler/lower.h"
#include "compiler/simplify.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Input, ir::Op;

/// Larger bounds are not analysed for how they move along the tile.
constexpr std::uint32_t most_band_nodes = 2400;

class Banding {
 public:
  Banding(Input axis, Tile& tile) : axis_(axis), other_(other(axis)), tile_(tile), range_(coordinate_bounds()) {}

  void add(std::vector<Band>& bands, const Space& space) {
    const Ends whole = tile_.side(other_);
    Ends tile = whole;
    Expr when = space.when;
    // `when` also requires that the restricted tile is not empty. The tile's own begin is below its own end, so that
    // pair needs no test.
    for (const Expr& from : space.tile_from) {
      when = both(when, ir::op(Op::Le, from, tile.most));
      for (const Expr& to : space.tile_to) when = both(when, ir::op(Op::Le, from, to));
    }
    for (const Expr& to : space.tile_to) when = both(when, ir::op(Op::Le, tile.least, to));
    for (const Expr& e : space.tile_from) tile.least = ir::op(Op::Max, tile.least, e);
    for (const Expr& e : space.tile_to) tile.most = ir::op(Op::Min, tile.most, e);
    set(tile);
    Expr tamely = truth(true);
    bool loose = false, exact = space.exact, rises = true, falls = true, empty = false;
    const Band wide{axis_ == Input::Q ? ir::input(Input::QBegin) : integer(0),
                    axis_ == Input::Q ? ir::input(Input::QEnd) : ir::input(Input::KVLen), false};
    Expr begin = wide.begin, end = wide.end;
    const auto bound = [&](const Expr& e, bool above) {
      const Tile::Known known = over(e);
      const auto& ends = known.ends;
      tamely = both(tamely, known.assumed);
      loose |= known.loose;
      const Way w = way(e);
      rises &= w == Way::Same || w == Way::Rises;
      falls &= w == Way::Same || w == Way::Falls;
      if (!ends) {
        exact = false;
        return;
      }
      if (above)
        end = ir::op(Op::Min, end, ir::op(Op::Add, within(ends->most, -0x1p30 - 1, 0x1p30 + 1, range_), integer(1)));
      else
        begin = ir::op(Op::Max, begin, ends->least);
    };
    for (const Expr& e : space.from) bound(e, false);
    for (const Expr& e : space.to) bound(e, true);
    exact &= !loose && (rises || falls);
    // Exact only if the spaces of neighbouring positions leave no gap and none of them is empty.
    if (exact)
      for (const Expr& from : space.from)
        for (const Expr& to : space.to) {
          const Room r = room(unclamped(from, false), unclamped(to, true));
          empty |= r.kind == Room::Empty;
          exact &= r.kind == Room::Asked;
          when = both(when, r.when);
        }
    set(whole);
    if (!empty) push(bands, begin, end, both(when, tamely), exact);
    // Where a value is not tame, the bounds do not hold: the band then covers everything.
    if (!is(tamely, true)) push(bands, wide.begin, wide.end, both(space.when, negated(tamely)), false);
  }

 private:
  /// Adds the band [from, to) where `condition` holds, unless the band is empty everywhere.
  void push(std::vector<Band>& bands, const Expr& from, const Expr& to, const Expr& condition, bool says_all) {
    const Expr last = is(condition, true) ? to : ir::op(Op::Where, condition, to, from);
    ir::Bounds bounds = cover_bounds();
    for (const Expr& e : ir::in_order(std::array{from, last}))
      if (is_run(e)) bounds.facts[e->digest] = {0, static_cast<double>(after_all), false};
    ir::Ranger range(bounds);
    const auto tidy = [&](const Expr& e) {
      return strict(trim(simplify(e, bounds), 0, static_cast<double>(max_length), range), range);
    };
    Band band{tidy(from), tidy(last), says_all};
    if (range(band.end).hi > range(band.begin).lo && !ir::same(band.begin, band.end)) bands.push_back(std::move(band));
  }

  /// Sets the tile's side on its own axis; the other side stays.
  void set(const Ends& side) {
    if (other_ == Input::Q)
      tile_.set(side, tile_.side(Input::KV));
    else
      tile_.set(tile_.side(Input::Q), side);
  }

  bool is_run(const Expr& e) const {
    const auto of = tile_.summary_read(e);
    return of == Summary::Of::RunFirst || of == Summary::Of::RunLast;
  }

  /// How an expression changes along the tile's axis.
  enum class Way : std::uint8_t { Same, Rises, Falls, Unknown };
  Way way(const Expr& e) const {
    if (!ir::uses(e, other_)) return Way::Same;
    if (e->size > most_band_nodes) return Way::Unknown;
    if (e->op == Op::Input) return Way::Rises;
    const auto turn = [](Way w) { return w == Way::Rises ? Way::Falls : w == Way::Falls ? Way::Rises : w; };
    const auto meet = [](Way a, Way b) { return a == Way::Same ? b : b == Way::Same || a == b ? a : Way::Unknown; };
    const Expr turned = literal_last(e);
    const auto& a = turned->args;
    if (e->op == Op::Add || e->op == Op::Min || e->op == Op::Max) return meet(way(a[0]), way(a[1]));
    if (e->op == Op::Sub) return meet(way(a[0]), turn(way(a[1])));
    if (e->op == Op::Neg) return turn(way(a[0]));
    if (e->op == Op::Clamp) return meet(way(a[0]), meet(way(a[1]), way(a[2])));
    const bool steady = (e->op == Op::Div || e->op == Op::FloorDiv || e->op == Op::Mul) && ir::is_literal(a[1]) &&
                        ir::literal_value(*a[1]) > 0;
    if (steady || e->op == Op::Shr) return way(a[0]);
    // The runs of a sorted tensor rise with the position by construction.
    if (tile_.summary_read(e)) return way(a[e->arity - 1u]);
    return Way::Unknown;
  }

  /// The ends of a bound over the tile's axis narrowed by the space's own bounds on it.
  Tile::Known over(const Expr& e) {
    if (tile_.summary_read(e)) {
      // RunFirst and RunLast rise with the position.
      std::vector<Expr> least(e->arguments().begin(), e->arguments().end()), most = least;
      least.back() = tile_.side(other_).least;
      most.back() = tile_.side(other_).most;
      return {Ends{ir::read(e->bits, e->type, least), ir::read(e->bits, e->type, most)}};
    }
    if ((e->op == Op::Add || e->op == Op::Sub) && ir::is_literal(e->args[1]) && e->args[0]->op == Op::Read) {
      Tile::Known inner = over(e->args[0]);
      if (!inner.ends) return tile_.ends(e);
      inner.ends = Ends{ir::op(e->op, inner.ends->least, e->args[1]), ir::op(e->op, inner.ends->most, e->args[1])};
      return inner;
    }
    return tile_.ends(e);
  }

  /// The most a rising or falling bound may move from one position of the tile's axis to the next.
  double step(const Expr& e) const {
    if (!ir::uses(e, other_)) return 0;
    const Expr turned = literal_last(e);
    const auto& a = turned->args;
    switch (e->op) {
      case Op::Input: return 1;
      case Op::Neg: return step(a[0]);
      case Op::Add:
      case Op::Sub: return step(a[0]) + step(a[1]);
      case Op::Min:
      case Op::Max: return std::max(step(a[0]), step(a[1]));
      case Op::Clamp: return std::max({step(a[0]), step(a[1]), step(a[2])});
      case Op::Mul: return step(a[0]) * std::fabs(ir::literal_value(*a[1]));
      case Op::Div:
      case Op::FloorDiv: return std::ceil(step(a[0]) / ir::literal_value(*a[1]));
      case Op::Shr: return step(a[0]);
      default: return HUGE_VAL;
    }
  }

  /// A simpler expression that is never less (`up`) or never more than a bound along the tile's axis: for an end of a
  /// run, the position inside the run; for x / 16 * 16, x.
  Expr beside(const Expr& e, bool up) const {
    if (tile_.summary_read(e) == (up ? Summary::Of::RunFirst : Summary::Of::RunLast)) return e->args[e->arity - 1u];
    if ((e->op == Op::Add || e->op == Op::Sub) && ir::is_literal(e->args[1])) {
      const Expr& inner = e->args[0];
      const double more = ir::literal_value(*e->args[1]);
      if (!up && e->op == Op::Add)
        if (const auto x = multiple(inner); x && more == ir::literal_value(*inner->args[1]) - 1) return *x;
      const Expr simpler = beside(inner, up);
      return ir::same(simpler, inner) ? e : ir::op(e->op, simpler, e->args[1]);
    }
    if (up)
      if (const auto x = multiple(e)) return *x;
    return e;
  }
  /// x, if e is x / c * c and rounds down.
  std::optional<Expr> multiple(const Expr& e) const {
    if (e->op != Op::Mul || !ir::is_literal(e->args[1])) return std::nullopt;
    const Expr& block = e->args[0];
    const double by = ir::literal_value(*e->args[1]);
    if (block->arity != 2 || !ir::is_literal(block->args[1])) return std::nullopt;
    const double of = ir::literal_value(*block->args[1]);
    if ((block->op == Op::FloorDiv && of == by) || (block->op == Op::Shr && std::exp2(of) == by)) return block->args[0];
    if (block->op == Op::Div && of == by && ir::range(block->args[0], cover_bounds()).lo >= 0) return block->args[0];
    return std::nullopt;
  }

  /// The same bound on a position, without a clamp that only cuts off values that no position reaches.
  static Expr unclamped(const Expr& e, bool above) {
    const auto& a = e->args;
    const bool idle = e->op == Op::Clamp && ir::is_literal(a[1]) && ir::is_literal(a[2]) &&
                      ir::literal_value(*a[1]) <= (above ? -1 : 0) &&
                      ir::literal_value(*a[2]) >= static_cast<double>(max_length) - (above ? 1 : 0);
    return idle ? a[0] : e;
  }

  /// The room between a lower and an upper bound, at any one position of the tile.
  struct Room {
    enum { Empty, Asked, Unknown } kind = Unknown;
    Expr when = truth(true);  ///< Asked: if it holds, the spaces of neighbours leave no gap; else there is no room
  };
  Room room(const Expr& from, const Expr& to) const {
    const auto difference = [](const Expr& low, const Expr& high) -> std::optional<Expr> {
      // The unwrapped difference is far from 2^32, so it equals its wrapped value where that is small.
      const ir::Interval l = ir::range(low, cover_bounds()), h = ir::range(high, cover_bounds());
      if (high->op == Op::Add && ir::same(high->args[0], low) && ir::is_literal(high->args[1])) return high->args[1];
      if (h.hi - l.lo > 0x1.7p31 || h.lo - l.hi < -0x1.7p31) return std::nullopt;
      const Expr e = simplify(ir::op(Op::Sub, high, low), cover_bounds());
      const ir::Interval r = ir::range(e, cover_bounds());
      if (r.lo < -0x1.1p30 || r.hi > 0x1.1p30) return std::nullopt;
      return e;
    };
    if (const auto most = difference(beside(from, false), beside(to, true)); most)
      if (ir::range(*most, cover_bounds()).hi < 0) return {Room::Empty, truth(false)};
    const bool runs = from->op == Op::Read && to->op == Op::Read;  // runs of one tensor lie next to each other
    if (runs || !ir::uses(from, other_) || !ir::uses(to, other_)) return {Room::Asked};
    const double moves = std::min(step(from), step(to));
    const auto exactly = difference(from, to);
    for (const auto& least : {difference(beside(from, true), beside(to, false)), exactly})
      if (least && ir::range(*least, cover_bounds()).lo >= std::max(moves - 1, 0.0)) return {Room::Asked};
    // The room is the same everywhere; the kernel evaluates it.
    if (moves > 1 || !exactly || ir::uses(*exactly, other_)) return {};
    return {Room::Asked, ir::op(Op::Ge, *exactly, integer(0))};
  }

  Input axis_, other_;
  Tile& tile_;
  ir::Ranger range_;  ///< for the mask's expressions
};

}  // namespace

Bands bands(const Solved& solved, Input axis, Tile& tile) {
  Banding banding(axis, tile);
  Bands out;
  for (const Space& s : solved.yes) banding.add(out.kept, s);
  for (const Space& s : solved.no) banding.add(out.gone, s);
  out.stops = solved.stops;
  return out;
}

}  // namespace attune::compiler
