// python/core/quick.h — the usual call on NumPy's arrays, without what Python would add to it
#pragma once

#include "python/core/handle.h"

namespace attune::python {

/// Adds `quick` to the module: a decorator of Attention.__call__, which answers usual calls itself, and calls the
/// decorated function for all others, mistakes too. Both give the same bits.
void add_quick(nb::module_& m, HandleOf handle_of);

}  // namespace attune::python
