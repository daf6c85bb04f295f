// c/describe.h — describes the compiler's result for an attention, as JSON
#pragma once

#include <string>

#include "c/attention.h"

namespace attune::c {

/// The JSON that attune_describe documents.
std::string describe(const attune_attention& attention);

}  // namespace attune::c
