// compiler/cover.cpp — a mask over a tile: facts that intervals prove, and bands along each axis
#include "compiler/cover.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "compiler/lower.h"
#include "compiler/simplify.h"
#include "compiler/solve.h"

namespace attune::compiler {

using ir::Expr, ir::Input, ir::Op, ir::Type;

bool Bands::exact() const {
  const auto fine = [](const Band& b) { return b.exact; };
  return std::all_of(kept.begin(), kept.end(), fine) && std::all_of(gone.begin(), gone.end(), fine);
}

ir::Signature Cover::signature(const ir::Signature& of_mod) const {
  ir::Signature all = of_mod;
  for (const Summary& s : summaries) {
    const ir::Signature::Capture& c = of_mod.captures[s.capture];
    switch (s.of) {
      case Summary::Of::Least: all.captures.push_back({c.name + "_least", c.type, 2 * c.rank}); break;
      case Summary::Of::Greatest: all.captures.push_back({c.name + "_greatest", c.type, 2 * c.rank}); break;
      case Summary::Of::Sorted: all.captures.push_back({c.name + "_sorted", Type::Bool, c.rank - 1}); break;
      case Summary::Of::RunFirst: all.captures.push_back({c.name + "_run_first", Type::I32, c.rank}); break;
      case Summary::Of::RunLast: all.captures.push_back({c.name + "_run_last", Type::I32, c.rank}); break;
    }
  }
  return all;
}

Expr kept_by_score(const Expr& score) {
  ir::Ranger range(coordinate_bounds());
  const auto neither_nan_nor_top = [&](const Expr& e) {
    const ir::Interval r = range(e);
    return !r.nan && r.hi < HUGE_VAL;
  };
  const auto positive = [&](const Expr& e) {
    const ir::Interval r = range(e);
    return !r.nan && r.lo > 0 && r.hi < HUGE_VAL;
  };
  ir::DigestMap<Expr> kept;
  for (const Expr& e : ir::in_order(std::span(&score, 1), ir::SumBodies::Skip)) {
    if (e->type != Type::F32) continue;
    const auto of = [&](std::size_t i) { return kept.at(e->args[i]->digest); };
    Expr k = truth(true);
    switch (e->op) {
      case Op::Literal: k = truth(!ir::is_literal(e, -HUGE_VAL)); break;
      case Op::Where: {
        const Expr& c = e->args[0];
        // A condition on the score depends on q . k, which no tile knows in advance.
        const bool decides = !ir::uses(c, Input::S);
        k = decides ? either(both(c, of(1)), both(negated(c), of(2))) : either(of(1), of(2));
        break;
      }
      case Op::Add:
        if (neither_nan_nor_top(e->args[1])) k = both(k, of(0));
        if (neither_nan_nor_top(e->args[0])) k = both(k, of(1));
        break;
      case Op::Mul:
        if (positive(e->args[1])) k = both(k, of(0));
        if (positive(e->args[0])) k = both(k, of(1));
        break;
      case Op::Div:
        if (positive(e->args[1])) k = of(0);
        break;
      case Op::Min: k = both(of(0), of(1)); break;
      case Op::Max: k = either(of(0), of(1)); break;
      case Op::Custom: k = of(0); break;
      case Op::Log:
      case Op::Log2: {
        const Expr& x = e->args[0];
        if (x->op == Op::F32 && x->args[0]->type == Type::Bool && !ir::uses(x->args[0], Input::S)) k = x->args[0];
        break;
      }
      default: break;
    }
    kept.emplace(e->digest, k);
  }
  return kept.at(score->digest);
}

CoverOf cover_of(const Cover& cover) {
  CoverOf out;
  const auto numbered = [](std::vector<std::uint32_t>& slots, std::uint32_t slot) {
    const auto found = std::find(slots.begin(), slots.end(), slot);
    if (found == slots.end()) return slots.push_back(slot), static_cast<std::uint32_t>(slots.size() - 1);
    return static_cast<std::uint32_t>(found - slots.begin());
  };
  const Expr mask = ir::rebuild(cover.mask, [&](const Expr& e, std::span<const Expr> args) -> Expr {
    if (e->op == Op::Read) return ir::read(numbered(out.captures, e->bits), e->type, args);
    if (e->op == Op::Param) return ir::param(numbered(out.params, e->bits), e->type);
    return nullptr;
  });
  out.mask = mask->digest;
  return out;
}

namespace {

std::vector<Expr> roots(const Bands& bands) {
  std::vector<Expr> out;
  for (const auto* list : {&bands.kept, &bands.gone})
    for (const Band& b : *list) {
      out.push_back(b.begin);
      out.push_back(b.end);
    }
  if (out.empty()) out.push_back(ir::integer(0));
  return out;
}

/// The sizes of the blocks into which a mask divides an axis, largest first.
std::vector<std::int32_t> periods(const Expr& mask, Input axis) {
  std::vector<std::int32_t> found;
  for (const Expr& e : ir::in_order(mask)) {
    if (e->arity != 2 || !ir::uses(e->args[0], axis) || !ir::is_literal(e->args[1]) || e->type != Type::I32) continue;
    const double by = ir::literal_value(*e->args[1]);
    double period = 0;
    if (e->op == Op::Div || e->op == Op::FloorDiv || e->op == Op::Rem || e->op == Op::FloorMod) period = by;
    if (e->op == Op::BitAnd) period = by + 1;
    if (e->op == Op::Shr && by < 30) period = std::exp2(by);
    if (period > 1 && period <= 0x1p30) found.push_back(static_cast<std::int32_t>(period));
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

/// True if the mask may be true in one precision and false in the other.
bool may_round(const Expr& mask) {
  constexpr std::array exact{Op::Literal, Op::Param, Op::Read, Op::Random, Op::Custom, Op::Where, Op::Neg,  Op::Min,
                             Op::Max,     Op::Clamp, Op::Abs,  Op::Floor,  Op::Ceil,   Op::Round, Op::Trunc};
  ir::Ranger range(coordinate_bounds());
  const auto whole_in_f32 = [&](const Expr& e) {
    if (e->type != Type::I32) return true;  // a Float stays what it is
    if (e->free) return false;
    const ir::Interval r = range(e);
    return r.lo >= -0x1p24 && r.hi <= 0x1p24;
  };
  return std::ranges::any_of(ir::in_order(mask), [&](const Expr& e) {
    if (e->type != Type::F32 || std::ranges::find(exact, e->op) != exact.end()) return false;
    return e->op != Op::F32 || !whole_in_f32(e->args[0]);
  });
}

}  // namespace

CoverPrograms::CoverPrograms(const Cover& cover)
    : verdict(std::array{cover.may_keep, cover.may_drop}), mask(cover.mask), along_kv(roots(cover.along_kv)),
      along_q(roots(cover.along_q)), rounds(may_round(cover.mask)), q_periods(periods(cover.mask, Input::Q)),
      kv_periods(periods(cover.mask, Input::KV)) {}

Cover cover(const Expr& of_mask, const ir::Signature& signature, const Expr& score) {
  Cover made;
  made.mask = score ? simplify(both(of_mask, kept_by_score(score)), coordinate_bounds()) : of_mask;
  const Expr& mask = made.mask;
  Tile tile(signature, made.summaries);
  const auto span = [](Input begin, Input end) { return Ends{ir::input(begin), minus_one(ir::input(end))}; };
  const Ends q = span(Input::QBegin, Input::QEnd), kv = span(Input::KVBegin, Input::KVEnd);
  tile.set(q, kv);
  const Can can = tile.can(mask);
  ir::Ranger range(cover_bounds());
  const auto tidy = [&](const Expr& e) { return strict(simplify(e, cover_bounds()), range); };
  made.may_keep = tidy(can.hold);
  made.may_drop = tidy(can.fail);
  // For the bands along an axis, the tile spans all of that axis and its own part of the other.
  tile.set(q, {integer(0), minus_one(ir::input(Input::KVLen))});
  made.along_kv = bands(solve(mask, Input::KV, tile), Input::KV, tile);
  tile.set({ir::input(Input::QBegin), minus_one(ir::input(Input::QEnd))}, kv);
  made.along_q = bands(solve(mask, Input::Q, tile), Input::Q, tile);
  made.by_batch = ir::uses(mask, Input::B);
  made.by_head = ir::uses(mask, Input::H);
  made.programs = std::make_shared<const CoverPrograms>(made);
  return made;
}

}  // namespace attune::compiler
