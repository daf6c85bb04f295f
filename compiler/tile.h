// compiler/tile.h — what Ints and Bools of a mask can be among the pairs of a tile, as expressions of the tile
//
// By intervals: every Bool is asked twice, "can it be true in the tile?" and "can it be false?"; of an Int the least
// and the greatest value are asked. The host evaluates these expressions, kernels compile them.
//
// Arithmetic of the user wraps, ours must not. It is done only where ranges prove that nothing wraps; for values
// without a range (parameters, captured lengths) the proof assumes they are tame, within tame_limit, and the result
// carries that assumption as a condition.
#pragma once

#include <optional>
#include <vector>

#include "compiler/cover.h"
#include "ir/range.h"

namespace attune::compiler {

inline constexpr double tame_limit = 0x1p29;

// ---- expressions of covers, as small as literals allow ----

/// The Int nearest to a bound: what lies beyond all Ints bounds them just as well.
ir::Expr integer(double value);
ir::Expr truth(bool value);
bool is(const ir::Expr& e, bool value);
ir::Expr both(const ir::Expr& a, const ir::Expr& b);
ir::Expr either(const ir::Expr& a, const ir::Expr& b);
ir::Expr negated(const ir::Expr& a);
ir::Expr minus_one(const ir::Expr& a);
/// A product with its literal behind, where one stands in front.
ir::Expr literal_last(const ir::Expr& e);

/// Free of q and kv.
bool is_fixed(const ir::Expr& e);
/// Within i32 for sure?
bool fits(double low, double high);
/// The limits of what a cover's expressions read.
ir::Bounds cover_bounds();

/// The least and the greatest value of an Int over the tile, both reached by some pair unless widened.
struct Ends {
  ir::Expr least, most;
};

/// Can a Bool be true in the tile? Can it be false?
struct Can {
  ir::Expr hold, fail;
};

class Tile {
 public:
  /// Summaries that answers read are added to `summaries`, in slots after the signature's.
  Tile(const ir::Signature& signature, std::vector<Summary>& summaries);

  /// Its sides, inclusive.
  void set(Ends q, Ends kv);
  const Ends& side(ir::Input axis) const { return axis == ir::Input::Q ? q_ : kv_; }

  Can can(const ir::Expr& mask);

  struct Known {
    std::optional<Ends> ends;
    ir::Expr assumed = truth(true);  ///< the ends hold only then
    bool loose = false;              ///< the ends may lie further out than any value
  };
  Known ends(const ir::Expr& e);

  /// The slot of a summary.
  std::uint32_t summary(Summary::Of of, std::uint32_t capture);
  /// None for what is no read of a summary.
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
  ir::Ranger range_, tile_range_;  ///< of the mask's expressions, and of those over the tile
  Ends q_, kv_;
  ir::Expr assumed_ = truth(true);  ///< by what is being asked
  bool loose_ = false;
  ir::DigestMap<Known> ends_;
  ir::DigestMap<Can> can_;
};

}  // namespace attune::compiler
