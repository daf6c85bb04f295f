// runtime/engines/picture/draw.h — a picture of the kept pairs, scores and probabilities of one batch entry and head
#pragma once

#include <optional>
#include <span>
#include <string>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "runtime/engines/picture/svg.h"

namespace attune::runtime {

/// The options of a picture.
struct View {
  Extent extent;
  std::int32_t b = 0, h = 0;
  /// Panels. If none is set: tiles if pairs are removed, numbers if there is a score or q.
  bool tiles = false, score = false, prob = false, grad = false;
  bool plain = false;  ///< true: only the panels, without text
  /// q [B, Hq, Sq, D] and k [Bk, Hkv, Skv, D] on the host: s is their product. Without them s is 0, and the picture
  /// shows the score's own contribution.
  Tensor q{}, k{};
  std::optional<double> scale{};  ///< default 1 / sqrt(D)
  std::int32_t cells = 96;        ///< most cells of numbers along each axis
};

/// Throws if the scale is not finite, or if q and k do not fit the batch entry, head and lengths that are shown.
void check(const View& view);

/// compiler::check_reads for calls of this extent.
void check_reads(const compiler::LoweredMod& lowered, std::span<const Tensor> captures, const Extent& extent);
/// An SVG of the Mod, with these captures and parameters, all on the host.
std::string draw(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// The contents of that SVG.
Drawing drawing(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// The oracle's values of pairs, in cells. A row of cells shows its middle query. Each cell has the mean score of its
/// kept pairs, the mean probability of all its pairs after the prob mod, and the mean derivative of the probability by
/// the pair's own s over its kept pairs.
struct Numbers {
  Heat score, prob, grad;
};
Numbers numbers(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// A picture evaluates every pair of a mask only if no axis is longer than this.
inline constexpr std::int32_t most_pairs_across = 512;
/// For every pair of one batch entry and head, row by row, whether the mask keeps it.
std::vector<char> kept_pairs(const compiler::LoweredMod& lowered, const compiler::Args& args, const Extent& e,
                             std::int32_t b, std::int32_t h, const Tiles::Progress& progress = {});

/// The facts about a mask at real sizes.
struct Kept {
  TileLists lists;
  std::optional<std::int64_t> live{};  ///< pairs over all batch entries and heads, if they are counted
  std::vector<char> pairs{};           ///< of the batch entry and head that are shown; may be empty
};
/// The kept pairs of the one batch entry and head that a view shows; the lists are only for that one. Throws if there
/// are more tiles than can be evaluated in some seconds.
Kept kept(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);
/// The tiles, with their counts below the title.
Drawing tiles_drawing(std::string title, const Kept& kept, std::int32_t b, std::int32_t h);
/// The picture as an SVG; without its pairs if they would make the file too large for a page.
std::string compact_svg(Drawing drawing);

}  // namespace attune::runtime
