// tools/measure/tune.h — searches many variants for the fastest, measuring each next to the usual one
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codegen/choose/kind.h"

namespace attune::tools {

struct Trial {
  codegen::Variant variant;
  double speed = 0;   ///< the usual one's time divided by its own; 0: not measured, see `wrong`
  std::string wrong;  ///< why it cannot be chosen, or empty
};

/// The search space: neighbours of a variant, and how fast one is.
struct Grounds {
  std::function<std::vector<codegen::Variant>(const codegen::Variant&)> tiles, ways;
  std::function<Trial(const codegen::Variant&)> measure;
};

/// All measured variants, the fastest first. Tries all tiles of the usual variant; then, from the three fastest,
/// changes one other member at a time while that gains 1 in 100.
std::vector<Trial> search(const codegen::Variant& usual, const Grounds& grounds);

}  // namespace attune::tools
