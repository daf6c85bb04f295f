// python/core/jax.h — attentions inside XLA programs: the handlers that JAX registers
#pragma once

#include "python/core/handle.h"

namespace attune::python {

/// Adds `jax_handlers`, which returns the custom-call handlers as capsules, by XLA's platform name.
void add_jax(nb::module_& m, HandleOf handle_of);

}  // namespace attune::python
