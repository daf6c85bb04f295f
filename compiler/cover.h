// compiler/cover.h — which pairs of a tile a mask keeps (none, some or all), and which tiles of a row are visited
#pragma once

#include <memory>

#include "compiler/mod.h"
#include "ir/eval.h"

namespace attune::compiler {

/// Data an engine derives from a captured tensor, once per content, on the tensor's device. A cover reads summaries
/// like captures, in slots after the Mod's own:
///   Least, Greatest  two indices per dimension, first and last: over the elements between them (Bool: all, any)
///   Sorted           one index per dimension but the last: true if the elements never fall along the last one
///   RunFirst         one index per dimension: where the run of equal elements around this one begins
///   RunLast          …and the run's last position; after_all for the tensor's last run
/// Indices are clamped like a read's.
struct Summary {
  enum class Of : std::uint8_t { Least, Greatest, Sorted, RunFirst, RunLast };
  Of of = Of::Least;
  std::uint32_t capture = 0;
  bool operator==(const Summary&) const = default;
};
/// A read beyond the end of a tensor gives its last element: the last run never ends.
inline constexpr std::int32_t after_all = 1 << 30;

/// Positions [begin, end) of one axis for a tile of the other: Ints that depend on the tile, b, h, lengths and
/// captures. Empty if begin >= end, else within the axis.
struct Band {
  ir::Expr begin, end;
  bool exact = false;  ///< true: if begin < end, every position in the band has a kept pair
};

/// The reason why a part of the mask yields no band.
struct Stop {
  ir::Expr at;
  std::string why;
};

/// A mask along one axis. Outside all `kept` bands a tile keeps nothing; outside all `gone` bands it keeps everything.
struct Bands {
  std::vector<Band> kept, gone;
  std::vector<Stop> stops;
  /// True if the bands decide every tile: interval proofs then cannot add anything.
  bool exact() const;
};

struct CoverPrograms;

/// A mask in the form that kernels evaluate per tile. Expressions use b, h, lengths, q_begin .. q_end,
/// kv_begin .. kv_end, and captures.
struct Cover {
  ir::Expr mask;      ///< per pair: true unless the mask or the score removes it
  ir::Expr may_keep;  ///< false: the tile keeps nothing
  ir::Expr may_drop;  ///< false: the tile keeps everything
  Bands along_kv;     ///< kv for queries [q_begin, q_end): forward, dq
  Bands along_q;      ///< q for keys [kv_begin, kv_end): dk, dv
  std::vector<Summary> summaries;
  bool by_batch = false, by_head = false;  ///< true if the cover varies with batch, with head
  std::shared_ptr<const CoverPrograms> programs;

  /// Names of the Mod's slots and the summaries', for printing and verifying.
  ir::Signature signature(const ir::Signature& of_mod) const;
};

/// A Bool of b, h, q, kv, lengths and captures: true where the score can be more than -inf, or where that is unknown.
/// false is proven for every s, including NaN and infinities: s + where(c, 0.0f, -inf) proves nothing, where(c, s,
/// -inf) does.
ir::Expr kept_by_score(const ir::Expr& score);

/// A cover's expressions, made ready for a host to evaluate. Made with the cover: a call on the host that takes 2 µs
/// would take 3 more if it made them itself.
struct CoverPrograms {
  explicit CoverPrograms(const Cover& cover);
  ir::Program verdict;                  ///< may_keep, may_drop
  ir::Program mask, along_kv, along_q;  ///< of bands: begin and end, of those kept, then of those gone
  bool rounds;  ///< true if the mask computes with Floats: it may then differ between f64 and f32
  /// The sizes of the blocks into which the mask divides an axis, largest first.
  std::vector<std::int32_t> q_periods, kv_periods;
};

/// The dependencies of a cover in addition to the sizes of a call. Two covers are equal if their digests are equal and
/// if the captures and parameters in these slots are pairwise equal, independent of the rest of their Mods.
struct CoverOf {
  ir::Digest mask;  ///< with captures and parameters numbered in order of first use
  std::vector<std::uint32_t> captures, params;
};
CoverOf cover_of(const Cover& cover);

/// The cover of the pairs that a mask keeps, and a score too if one is given.
Cover cover(const ir::Expr& mask, const ir::Signature& signature, const ir::Expr& score = nullptr);

}  // namespace attune::compiler
