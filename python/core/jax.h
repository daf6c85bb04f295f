// python/core/jax.h — attentions inside XLA's programs: the handlers that JAX registers
#pragma once

#include "python/core/handle.h"

namespace attune::python {

/// Adds `jax_handlers`, which gives the handlers of custom calls as capsules, by XLA's name of the platform.
void add_jax(nb::module_& m, HandleOf handle_of);

}  // namespace attune::python
