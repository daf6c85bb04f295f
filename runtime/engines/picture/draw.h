// runtime/engines/picture/draw.h — what an attention keeps and how it weighs, of one batch entry and head, as a picture
#pragma once

#include <optional>
#include <span>
#include <string>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "runtime/engines/picture/svg.h"

namespace attune::runtime {

/// Which picture to draw.
struct View {
  Extent extent;
  std::int32_t b = 0, h = 0;
  /// Panels. None: tiles where pairs are removed, numbers where there is a score or q.
  bool tiles = false, score = false, prob = false, grad = false;
  bool plain = false;  ///< the panels alone, without words
  /// q [B, Hq, Sq, D] and k [Bk, Hkv, Skv, D] on the host: s is their product. Without them s is 0, and the picture
  /// shows what the score adds.
  Tensor q{}, k{};
  std::optional<double> scale{};  ///< default 1 / sqrt(D)
  std::int32_t cells = 96;        ///< of numbers, at most, along each axis
};

/// Throws where the scale is not finite, or q and k do not give the scores of what is shown.
void check(const View& view);

/// An SVG of the Mod, with these captures and parameters, all on the host.
std::string draw(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// What that SVG is made of.
Drawing drawing(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// What the oracle has of each pair, in cells. A row of cells is its middle query. Each cell has the mean score of its
/// pairs that are kept, the mean probability of all its pairs after the prob mod, and of those that are kept the mean
/// of how much the probability changes with the pair's own s.
struct Numbers {
  Heat score, prob, grad;
};
Numbers numbers(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// A picture evaluates every pair of a mask only if no axis is longer than this.
inline constexpr std::int32_t most_pairs_across = 512;
/// For every pair of one batch entry and head, row by row, whether the mask keeps it.
std::vector<char> kept_pairs(const compiler::LoweredMod& lowered, const compiler::Args& args, const Extent& e,
                             std::int32_t b, std::int32_t h, const Tiles::Progress& progress = {});

/// What is known of a mask at real sizes.
struct Kept {
  TileLists lists;
  std::optional<std::int64_t> live{};  ///< pairs over all batch entries and heads, if they are counted
  std::vector<char> pairs{};           ///< of the batch entry and head that are shown; may be empty
};
/// What is kept of the one batch entry and head that a view shows; its lists are of that one alone. Throws where there
/// are more tiles than can be looked at in some seconds.
Kept kept(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);
/// The tiles, with what they count to below the title.
Drawing tiles_drawing(std::string title, const Kept& kept, std::int32_t b, std::int32_t h);
/// The picture; without its pairs where they would make a file too large for a page.
std::string compact_svg(Drawing drawing);

}  // namespace attune::runtime
