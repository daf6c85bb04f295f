// python/core/module.h — what files with many functions of Python add to the module
#pragma once

#include "python/core/handle.h"

namespace attune::python {

/// Adds `jax_handlers`, which returns the custom-call handlers as capsules, by XLA's platform name.
void add_jax(nb::module_& m, HandleOf handle_of);

/// Adds `quick` and `quick_line` to the module: decorators of Attention.__call__ and of attention(). They make common
/// calls themselves and pass all others, including mistakes, to the decorated function. Both paths give the same bits.
/// attention() reports each attention that it makes to `remember`.
void add_quick(nb::module_& m, HandleOf handle_of);

}  // namespace attune::python
