// tools/picture_options.h — options for the contents of a picture: an attention, its sizes and its data
#pragma once

#include "runtime/engines/picture/draw.h"
#include "tools/extent_options.h"
#include "tools/text.h"

namespace attune::tools {

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

}  // namespace attune::tools
