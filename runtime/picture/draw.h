// runtime/picture/draw.h — what an attention keeps and how it weighs, of one batch entry and head, as a picture
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "runtime/picture/svg.h"

namespace attune::runtime {

/// Which picture to draw.
struct View {
  Extent extent;
  std::int32_t b = 0, h = 0;
  /// Panels. None: tiles where pairs are removed, numbers where there is a score or q.
  bool tiles = false, score = false, prob = false;
  /// q [B, Hq, Sq, D] and k [Bk, Hkv, Skv, D] on the host: s is their product. Without them s is 0, and the picture
  /// shows what the score adds.
  Tensor q{}, k{};
  std::optional<double> scale{};  ///< default 1 / sqrt(D)
};

/// An SVG of the Mod, with these captures and parameters, all on the host.
std::string draw(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// Scores, and what becomes of them in the softmax, in cells of at most 96 along each axis. A row of cells is its
/// middle query: each cell has the mean score of its pairs that are kept, and the sum of their probabilities.
std::array<Heat, 2> numbers(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view);

/// A picture evaluates every pair of a mask only if no axis is longer than this.
inline constexpr std::int32_t most_pairs_across = 512;
/// For every pair of one batch entry and head, row by row, whether the mask keeps it.
std::vector<char> kept_pairs(const compiler::LoweredMod& lowered, const compiler::Args& args, const Extent& e,
                             std::int32_t b, std::int32_t h);

/// What is known of a mask at real sizes.
struct Kept {
  TileLists lists;
  std::optional<std::int64_t> live{};  ///< pairs over all batch entries and heads, if they are counted
  std::vector<char> pairs{};           ///< of the batch entry and head that are shown; may be empty
};
/// The tiles, with what they count to below the title.
Drawing tiles_drawing(std::string title, const Kept& kept, std::int32_t b, std::int32_t h);
/// The picture; without its pairs where they would make a file too large for a page.
std::string compact_svg(Drawing drawing);

}  // namespace attune::runtime
