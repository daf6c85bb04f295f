// compiler/cover.h — what a mask keeps of a tile: none, some, all; and where a row of tiles is worth looking
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

/// What an engine knows of a captured tensor besides its elements, computed once per content where it lives. A cover
/// reads them like captures, in slots after the Mod's own:
///   Least, Greatest  two indices for each dimension, first and last: of the elements between them (Bool: all, any)
///   Sorted           one index for each dimension but the last: never falls along the last one
///   RunFirst         one index for each dimension: where the run of equal elements around this one begins
///   RunLast          …and its last position; after_all where it is the tensor's last run
/// Indices are clamped as a read's are.
struct Summary {
  enum class Of : std::uint8_t { Least, Greatest, Sorted, RunFirst, RunLast };
  Of of = Of::Least;
  std::uint32_t capture = 0;
  bool operator==(const Summary&) const = default;
};
/// A read beyond the end of a tensor gives its last element: the last run never ends.
inline constexpr std::int32_t after_all = 1 << 30;

/// Positions [begin, end) of one axis for a tile of the other, as Ints of the tile, b, h, lengths and captures.
/// Empty where begin >= end; within the axis always.
struct Band {
  ir::Expr begin, end;
  bool exact = false;  ///< every position within has a pair, if begin < end
};

/// Why a part of the mask gives no band.
struct Stop {
  ir::Expr at;
  std::string why;
};

/// A mask along one axis. Outside of all `kept` bands a tile keeps nothing; outside of all `gone` bands it keeps all.
struct Bands {
  std::vector<Band> kept, gone;
  std::vector<Stop> stops;
  /// The bands say all there is to say of a tile: no proof by intervals can add to them.
  bool exact() const;
};

/// A mask as a kernel can ask it. Expressions use b, h, lengths, q_begin .. q_end, kv_begin .. kv_end, and captures.
struct Cover {
  ir::Expr may_keep;  ///< false: the tile keeps nothing
  ir::Expr may_drop;  ///< false: the tile keeps everything
  Bands along_kv;     ///< kv for queries [q_begin, q_end): forward, dq
  Bands along_q;      ///< q for keys [kv_begin, kv_end): dk, dv
  std::vector<Summary> summaries;
  bool by_batch = false, by_head = false;  ///< does it vary with them at all?

  /// Names of the Mod's slots and the summaries', for printing and verifying.
  ir::Signature signature(const ir::Signature& of_mod) const;
};

Cover cover(const ir::Expr& mask, const ir::Signature& signature);

}  // namespace attune::compiler
