// tools/picture_options.h — options that say what a picture shows: an attention, its sizes, and data for it
#pragma once

#include "runtime/engines/picture/draw.h"
#include "tools/extent_options.h"
#include "tools/text.h"

namespace attune::tools {

/// A lowered attention with data, and the view of it; refers to nothing else.
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
  /// `unfilled`: captured tensors without data get what suits their type; otherwise they are an Error. `steps` may be
  /// null.
  Pictured pictured(bool unfilled, compiler::Steps* steps) const;
};

}  // namespace attune::tools
