// python/core/named.h — sets members of C structs, and a call's other options, from a dict of names
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

namespace attune::python {

namespace nb = nanobind;

/// Interned Python strings, in the order of a table whose rows have a `name`.
template <std::size_t N>
class Names {
 public:
  template <class Row>
  explicit Names(const Row (&rows)[N]) {
    for (std::size_t i = 0; i < N; ++i) words_[i] = PyUnicode_InternFromString(rows[i].name);
  }

  /// The row with this name; N if there is none.
  std::size_t find(nb::handle name) const {
    const auto same = std::ranges::find(words_, name.ptr());
    if (same != words_.end()) return static_cast<std::size_t>(same - words_.begin());
    const auto equal = std::ranges::find_if(words_, [&](PyObject* w) { return PyUnicode_Compare(w, name.ptr()) == 0; });
    return static_cast<std::size_t>(equal - words_.begin());
  }

 private:
  std::array<PyObject*, N> words_;  // kept until the process ends
};

[[noreturn]] inline void refuse_name(nb::handle name) {
  PyErr_SetObject(PyExc_KeyError, name.ptr());
  throw nb::python_error();
}

/// visit(name, value) for the entries of a dict whose value is not None.
template <class Visitor>
void each_named(nb::handle named, const Visitor& visit) {
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(named.ptr(), &at, &name, &value))
    if (value != Py_None) visit(nb::handle(name), nb::handle(value));
}

/// A member of a struct that is a number.
template <class Struct>
struct NumberOf {
  const char* name;
  std::variant<std::int32_t Struct::*, std::int64_t Struct::*, double Struct::*> member;

  void set(Struct& into, nb::handle value) const {
    std::visit([&]<class Number>(Number Struct::*at) { into.*at = nb::cast<Number>(value); }, member);
  }
};

/// Sets the members that a dict names.
template <class Struct, std::size_t N>
void set_named(nb::handle named, const NumberOf<Struct> (&rows)[N], Struct& into) {
  static const Names<N> names(rows);  // a table for each struct
  each_named(named, [&](nb::handle name, nb::handle value) {
    const std::size_t row = names.find(name);
    if (row == N) refuse_name(name);
    rows[row].set(into, value);
  });
}

}  // namespace attune::python
