// tools/tune.h — a search for the fastest of many variants, each measured beside the usual one
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codegen/variant.h"

namespace attune::tools {

struct Trial {
  codegen::Variant variant;
  double speed = 0;   ///< the usual one's time by its own; 0: it was not measured, see `wrong`
  std::string wrong;  ///< why it cannot be chosen, or empty
};

/// What is searched: neighbours of a variant, and how fast one is.
struct Grounds {
  std::function<std::vector<codegen::Variant>(const codegen::Variant&)> tiles, ways;
  std::function<Trial(const codegen::Variant&)> measure;
};

/// All that was measured, the fastest first. All tiles of the usual variant; then, from the three fastest of these, one
/// other member at a time for as long as that gains a hundredth.
std::vector<Trial> search(const codegen::Variant& usual, const Grounds& grounds);

}  // namespace attune::tools
