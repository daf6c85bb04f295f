// runtime/ranks/plan/picture.h — a plan as a picture: who holds what, what travels, and a time line of each rank, as
// SVG
#pragma once

#include <string>

#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

/// Of the chosen schedule of a layer. `title`: the mask, in one line.
std::string picture(const Plan& ranks, std::size_t layer, std::string_view title);

}  // namespace attune::runtime::ranks
