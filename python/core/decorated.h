// python/core/decorated.h — an object of Python that stands for a function, and is called first
#pragma once

#include <nanobind/nanobind.h>

namespace attune::python {

namespace nb = nanobind;

/// All but calling it is the function's: its attributes, its class, what it is a method of.
nb::object decorated(vectorcallfunc call, nb::handle function);

/// The function that it stands for.
PyObject* decorated_function(PyObject* self);

}  // namespace attune::python
