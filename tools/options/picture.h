// tools/options/picture.h — options for a picture: its size, an attention and its data; and pictures as characters for
// a terminal
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/picture/draw.h"
#include "runtime/engines/picture/svg.h"
#include "tools/options/text.h"

namespace CLI {
class App;
}

namespace attune::tools {

struct ExtentOptions {
  std::int64_t q_len = 128;
  std::string tile = "16x16";
  std::optional<std::int64_t> kv_len{};
  std::int64_t q_offset = 0, batch = 1, heads = 1, b = 0, h = 0;

  /// The help shows the members' present values as defaults. `beside_call`: --seq and --kv-seq are the call's.
  void add_to(CLI::App& verb, bool beside_call = false);
  /// Refuses sizes out of range, and more pairs than 64 bits can count.
  runtime::Extent extent() const;
};

/// A lowered attention with data, and its view. It owns everything that it refers to.
struct Pictured {
  TextAttention text;
  compiler::BoundMod traced;
  compiler::LoweredMod lowered;
  runtime::Owned q, k;
  runtime::View view;
  std::vector<std::string> declared{};  ///< captured tensors that were given as a type, and filled
};

struct PictureOptions {
  TextOptions text;
  ExtentOptions extent;
  std::optional<std::string> q, k;
  std::optional<double> scale;
  std::optional<std::int64_t> random;
  std::vector<std::string> fills;

  void add_to(CLI::App& verb, bool beside_call = false);
  /// Options of attune plot that show the same picture.
  std::vector<std::string> look(const Pictured& of) const;
  /// `unfilled`: true fills captured tensors without data with the default of their type; false makes them an Error.
  /// `steps` may be null.
  Pictured pictured(bool unfilled, compiler::Steps* steps) const;
};

/// The largest whole number of an expression: pictures should be large enough to show what it does.
std::int64_t largest_literal(const ir::Expr& root);

/// Cells as lines of text, and what its characters mean, on a line without its end. In a locale that has blocks, and
/// unless `ascii`, two rows a line: a full cell is a whole block, a partial one its left half. Else letters.
struct Characters {
  std::string lines, legend;
};
Characters characters(const runtime::Grid& grid, bool ascii = false);

/// A digit for each cell of every other row: 1 to 9 for positive numbers (9: the largest), a to i for negative ones (i:
/// the least), 0 near 0, blank if no pair is kept. For probabilities, 9 is the row's largest.
std::string digits(const runtime::Heat& heat);

}  // namespace attune::tools
