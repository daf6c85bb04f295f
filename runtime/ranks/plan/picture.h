// runtime/ranks/plan/picture.h — a plan as an SVG: what each rank holds, what it receives, and its time line
#pragma once

#include <string>

#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

/// Draws the chosen schedule of a layer. `title`: the mask, in one line.
std::string picture(const Plan& ranks, std::size_t layer, std::string_view title);

}  // namespace attune::runtime::ranks
