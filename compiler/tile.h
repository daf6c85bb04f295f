// compiler/tile.h — bounds on a mask's Ints and Bools over the pairs of a tile, as expressions of the tile
//
// Interval arithmetic: for every Bool, whether it can be true in the tile, and whether it can be false. For an Int, its
// least and greatest value. The host evaluates these expressions; kernels compile them.
//
// The user's arithmetic wraps; ours must not. We do arithmetic only where ranges prove that nothing wraps. For values
// without a range (parameters, captured lengths) the proof assumes that they are tame, within tame_limit, and the
// result carries that assumption as a condition.
#pragma once

#include <optional>
#include <vector>

#include "compiler/cover.h"
#include "ir/range.h"

namespace attune::compiler {

inline constexpr double tame_limit = 0x1p29;

// ---- expressions of covers, folded where operands are literals ----

/// A literal bound, saturated to i32: a bound beyond all Ints bounds them just as well at the end.
ir::Expr integer(double value);
ir::Expr truth(bool value);
bool is(const ir::Expr& e, bool value);
ir::Expr both(const ir::Expr& a, const ir::Expr& b);
ir::Expr either(const ir::Expr& a, const ir::Expr& b);
ir::Expr negated(const ir::Expr& a);
ir::Expr minus_one(const ir::Expr& a);
/// The product with its literal last, if the literal was first.
ir::Expr literal_last(const ir::Expr& e);

/// True if the expression depends on neither q nor kv.
bool is_fixed(const ir::Expr& e);
/// True if [low, high] is within i32.
bool fits(double low, double high);
/// Bounds on the inputs of a cover's expressions.
ir::Bounds cover_bounds();

/// The least and the greatest value of an Int over the tile; unless the ends were widened, some pair reaches each end.
struct Ends {
  ir::Expr least, most;
};

/// Whether a Bool can be true in the tile, and whether it can be false.
struct Can {
  ir::Expr hold, fail;
};

class Tile {
 public:
  /// Adds the summaries that results read to `summaries`, in slots after the signature's.
  Tile(const ir::Signature& signature, std::vector<Summary>& summaries);

  /// Sets its sides, inclusive.
  void set(Ends q, Ends kv);
  const Ends& side(ir::Input axis) const { return axis == ir::Input::Q ? q_ : kv_; }

  Can can(const ir::Expr& mask);

  struct Known {
    std::optional<Ends> ends;
    ir::Expr assumed = truth(true);  ///< the ends are valid only if this holds
    bool loose = false;              ///< true if the ends may be further out than any value
  };
  Known ends(const ir::Expr& e);

  /// The slot of a summary; adds it if it is new.
  std::uint32_t summary(Summary::Of of, std::uint32_t capture);
  /// Which summary `e` reads; none if it is not a read of a summary.
  std::optional<Summary::Of> summary_read(const ir::Expr& e) const;

 private:
  std::optional<ir::Interval> operand(const ir::Expr& e);
  std::optional<Ends> ends_of(const ir::Expr& e);
  std::optional<Ends> ends_node(const ir::Expr& e);
  std::optional<Ends> ends_of_one(const ir::Expr& e);
  std::optional<Ends> ends_of_two(const ir::Expr& written);
  std::optional<Ends> ends_of_read(const ir::Expr& e);
  Can can_node(const ir::Expr& e);

  const ir::Signature& signature_;
  std::vector<Summary>& summaries_;
  ir::Ranger range_, tile_range_;  ///< for the mask's expressions, and for expressions of the tile
  Ends q_, kv_;
  ir::Expr assumed_ = truth(true);  ///< the assumptions of the query under way
  bool loose_ = false;
  ir::DigestMap<Known> ends_;
  ir::DigestMap<Can> can_;
};

}  // namespace attune::compiler
