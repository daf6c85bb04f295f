// python/core/raised.h — errors of attune/c.h as Python exceptions, exceptions of callbacks, and texts
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <string>

#include <attune/c.h>

#include "python/core/gil.h"

namespace attune::python {

/// Raises an error of the C ABI as attune.Error or attune.Bug.
void check(attune_error* error);

/// Refuses an argument: raises an attune.Error.
[[noreturn]] void refuse(const char* code, const std::string& problem, const std::string& why, const std::string& fix);

/// A text for the library, which reads UTF-8 up to a zero byte. Refuses texts that contain 0 or have no UTF-8 form.
std::string utf8(const nb::str& text);

/// A text that the library gave.
std::string taken(char* text);

/// The text that a function of the C ABI writes to its last argument.
template <class Function, class... Given>
std::string written(const Function& function, Given... given) {
  char* text = nullptr;
  check(function(given..., &text));
  return taken(text);
}

/// The exception of a Python function that C called; raised after C has returned.
class Raised : Pinned {
 public:
  ~Raised() { Py_XDECREF(exception_); }

  explicit operator bool() const { return exception_ != nullptr; }

  /// Runs `body`, with the GIL taken, and keeps the first exception; false where there was one, or where Python is
  /// ending.
  template <class Body>
  bool guard(const Body& body) {
    const Acquired gil;
    if (!gil) return false;
    try {
      body();
      return true;
    } catch (nb::python_error& error) {
      keep(error);
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      nb::python_error as_python;
      keep(as_python);
    } catch (...) {
      stay();  // Python ends this thread
    }
    return false;
  }

  /// Raises the kept exception, if there is one, and frees the call's own error.
  void raise(attune_error* instead_of);

 private:
  void keep(nb::python_error& error) {
    if (!exception_) exception_ = nb::borrow(error.value()).release().ptr();
  }

  PyObject* exception_ = nullptr;  // a reference
};

}  // namespace attune::python
