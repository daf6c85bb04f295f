// python/core/quick.h — the usual call on NumPy's arrays, without what Python would add to it
#pragma once

#include "python/core/handle.h"

namespace attune::python {

/// Adds to the module `quick` and `quick_line`, decorators of Attention.__call__ and of attention(): they answer usual
/// calls themselves, and call the decorated function for all others, mistakes too. Both give the same bits. attention()
/// tells `remember` of the attentions that it makes.
void add_quick(nb::module_& m, HandleOf handle_of);

}  // namespace attune::python
