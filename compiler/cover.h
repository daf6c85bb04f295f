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
/// Empty where begin >= end, else within the axis.
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
  ir::Expr mask;      ///< what it speaks of: the pairs that neither the mask nor the score removes
  ir::Expr may_keep;  ///< false: the tile keeps nothing
  ir::Expr may_drop;  ///< false: the tile keeps everything
  Bands along_kv;     ///< kv for queries [q_begin, q_end): forward, dq
  Bands along_q;      ///< q for keys [kv_begin, kv_end): dk, dv
  std::vector<Summary> summaries;
  bool by_batch = false, by_head = false;  ///< does it vary with them at all?

  /// Names of the Mod's slots and the summaries', for printing and verifying.
  ir::Signature signature(const ir::Signature& of_mod) const;
};

/// Where a score can be more than -inf: a Bool of b, h, q, kv, lengths and captures, true where that is not known.
/// false is proven for any s, NaN and infinities too: s + where(c, 0.0f, -inf) proves nothing, where(c, s, -inf) does.
ir::Expr kept_by_score(const ir::Expr& score);

/// What a cover hangs on besides the sizes of a call, whatever else its Mod has: where digests are equal, and the
/// captures and parameters in these slots too, one by one, so are the covers.
struct CoverOf {
  ir::Digest mask;  ///< with its captures and parameters numbered as they come
  std::vector<std::uint32_t> captures, params;
};
CoverOf cover_of(const Cover& cover);

/// The cover of what a mask keeps, and a score if one is given.
Cover cover(const ir::Expr& mask, const ir::Signature& signature, const ir::Expr& score = nullptr);

}  // namespace attune::compiler
