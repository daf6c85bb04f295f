// c/describe.h — what the compiler made of an attention, as JSON
#pragma once

#include <string>

#include "c/attention.h"

namespace attune::c {

/// As attune_describe documents it.
std::string describe(const attune_attention& attention);

}  // namespace attune::c
