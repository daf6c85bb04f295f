// python/core/expected.h — what a key of attune/_scan.py says that a call must find again
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attune::python {

namespace nb = nanobind;

/// What must be found again where a function refers to something: what Scan.refer has for it in a key.
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

/// Names of attributes, and types of Python. All are kept to the end of the process.
struct Vocabulary {
  PyObject *code, *closure, *contents, *globals, *defaults, *keyword_defaults, *attributes, *function, *kind, *value,
      *partial_function, *partial_args, *partial_keywords;
  PyTypeObject *part = nullptr, *param = nullptr, *function_type = nullptr, *code_type = nullptr, *partial = nullptr;
};
Vocabulary& vocabulary();

/// Finds the types of Python that it knows, before the first call; `function` is any.
void find_types(nb::handle function);

/// Null, and no exception, where there is none.
nb::object attribute(nb::handle of, PyObject* name);

/// The function within attune's Mask, Score and so on; itself if it is none.
nb::object within_parts(nb::handle thing);

std::int64_t bits_of(nb::handle number);

/// A number, a text, a truth value or None; false for all else.
bool expect_constant(nb::handle thing, Expected& into);

/// A part of a key; false for kinds of things that only Python knows. `given`: names that keywords of the call stand
/// for.
bool expect(nb::handle key, const std::vector<nb::object>& given, Expected& into);

}  // namespace attune::python
