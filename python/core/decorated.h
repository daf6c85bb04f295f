// python/core/decorated.h — a Python object that wraps a function and intercepts its calls
#pragma once

#include <nanobind/nanobind.h>

namespace attune::python {

namespace nb = nanobind;

/// Only calls are intercepted: attributes, class and binding to an object are the function's.
nb::object decorated(vectorcallfunc call, nb::handle function);

/// The wrapped function.
PyObject* decorated_function(PyObject* self);

}  // namespace attune::python
