// python/core/quick.h — the fast path of common calls on NumPy arrays, without Python's overhead
#pragma once

#include "python/core/handle.h"

namespace attune::python {

/// Adds `quick` and `quick_line` to the module: decorators of Attention.__call__ and of attention(). They make common
/// calls themselves and pass all others, including mistakes, to the decorated function. Both paths give the same bits.
/// attention() reports each attention that it makes to `remember`.
void add_quick(nb::module_& m, HandleOf handle_of);

}  // namespace attune::python
