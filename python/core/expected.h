// python/core/expected.h — what a key of attune/_scan.py expects a later call to refer to
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attune::python {

namespace nb = nanobind;

/// What a later call must refer to at one place: one entry of a key, as Scan.refer writes it.
struct Expected {
  enum class As : std::uint8_t { nothing, given, is, equal, bits, array, param, met, function, tuple, partial };
  As as = As::nothing;
  char kind = 0;
  int rank = 0;
  std::size_t leaf = 0;  ///< the number of an array or a parameter; of a function that was met, which one
  std::int64_t bits = 0;
  nb::object thing{};           ///< itself, the code of a function, or the type of a tuple
  nb::object name{};            ///< of a global, an attribute or a keyword
  std::vector<Expected> items;  ///< of a tuple; of a partial its function and its arguments
  std::vector<Expected> cells, globals, defaults, keywords, attributes;  ///< what a function refers to
};

/// Names of attributes, and Python types. All are kept until the process ends.
struct Vocabulary {
  PyObject *code, *closure, *contents, *globals, *defaults, *keyword_defaults, *attributes, *function, *kind, *value,
      *partial_function, *partial_args, *partial_keywords;
  PyTypeObject *part = nullptr, *param = nullptr, *function_type = nullptr, *code_type = nullptr, *partial = nullptr;
};
Vocabulary& vocabulary();

/// Looks up the Python types of the vocabulary, before the first call; `function` is any function.
void find_types(nb::handle function);

/// Null without an exception if there is none.
nb::object attribute(nb::handle of, PyObject* name);

/// The function inside attune's Mask, Score and so on; any other object as it is.
nb::object within_parts(nb::handle thing);

std::int64_t bits_of(nb::handle number);

/// True for a number, a text, a truth value and None.
bool expect_constant(nb::handle thing, Expected& into);

/// Reads a part of a key; false if it has kinds of things that only Python knows. `given`: names that the call's
/// keywords replace.
bool expect(nb::handle key, const std::vector<nb::object>& given, Expected& into);

}  // namespace attune::python
