// python/core/expected.h — what a key of attune/_scan.py expects a later call to refer to, and whether it does
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
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

/// An interned str, kept until the process ends.
inline PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

/// Names of attributes, and Python types. All are kept until the process ends.
struct Vocabulary {
  PyObject *code, *closure, *contents, *globals, *defaults, *keyword_defaults, *attributes, *function, *kind, *value,
      *partial_function, *partial_args, *partial_keywords, *shape;
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

/// Walks through what a call refers to, in the order of Scan in attune/_scan.py. `Leaves` has finds(thing, expected):
/// true if the tensor or parameter is the expected leaf.
template <class Leaves>
class Walk {
 public:
  using As = Expected::As;

  explicit Walk(Leaves& leaves) : leaves_(leaves) {}

  bool finds(nb::handle thing, const Expected& expected) {
    if (expected.as == As::given) return true;
    if (!thing.is_valid()) return expected.as == As::nothing;
    switch (expected.as) {
      case As::is: return thing.is(expected.thing);
      case As::equal:
        return thing.is(expected.thing) || (thing.type().is(expected.thing.type()) && equal(thing, expected.thing));
      case As::bits: return PyFloat_CheckExact(thing.ptr()) && bits_of(thing) == expected.bits;
      case As::array:
      case As::param: return leaves_.finds(thing, expected);
      case As::met: return finds_met(within_parts(thing), expected.leaf);
      case As::function: return finds_function(within_parts(thing), expected);
      case As::tuple: return thing.type().is(expected.thing) && finds_items(thing, expected.items, 0);
      case As::partial: return finds_partial(thing, expected);
      default: return false;
    }
  }

 private:
  using List = std::vector<Expected>;

  static bool equal(nb::handle a, nb::handle b) {
    const int is = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
    if (is < 0) PyErr_Clear();
    return is == 1;
  }

  bool finds_met(const nb::object& function, std::size_t which) {
    return which < met_count_ && function.ptr() == met_[which];
  }

  bool finds_function(const nb::object& function, const Expected& expected) {
    if (!function.is_valid() || Py_TYPE(function.ptr()) != vocabulary().function_type) return false;
    if (!attribute(function, vocabulary().code).is(expected.thing)) return false;
    const auto end = met_.begin() + static_cast<std::ptrdiff_t>(met_count_);
    if (met_count_ == met_.size() || std::find(met_.begin(), end, function.ptr()) != end) return false;
    met_[met_count_++] = function.ptr();  // kept alive by what refers to it
    return finds_cells(function, expected.cells) && finds_globals(function, expected.globals) &&
           finds_defaults(function, expected.defaults) && finds_keywords(function, expected.keywords) &&
           finds_all_named(attribute(function, vocabulary().attributes), expected.attributes);
  }

  bool finds_cells(const nb::object& function, const List& expected) {
    if (expected.empty()) return true;  // its code has no free variables
    const nb::object cells = attribute(function, vocabulary().closure);
    if (!PyTuple_CheckExact(cells.ptr()) || PyTuple_Size(cells.ptr()) != static_cast<Py_ssize_t>(expected.size()))
      return false;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i].as == As::given) continue;
      const nb::handle cell = PyTuple_GetItem(cells.ptr(), static_cast<Py_ssize_t>(i));
      if (!finds(attribute(cell, vocabulary().contents), expected[i])) return false;
    }
    return true;
  }

  bool finds_globals(const nb::object& function, const List& expected) {
    return expected.empty() || finds_names(attribute(function, vocabulary().globals), expected);
  }

  bool finds_names(const nb::object& scope, const List& expected) {
    if (!PyDict_CheckExact(scope.ptr())) return false;
    for (const Expected& one : expected) {
      if (one.as == As::given) continue;
      const nb::object thing = nb::borrow(PyDict_GetItemWithError(scope.ptr(), one.name.ptr()));
      if (PyErr_Occurred()) PyErr_Clear();
      if (!finds(thing, one)) return false;
    }
    return true;
  }

  /// Matches a dict that has exactly these names.
  bool finds_all_named(const nb::object& scope, const List& expected) {
    return scope.is_valid() && PyDict_CheckExact(scope.ptr()) &&
           PyDict_Size(scope.ptr()) == static_cast<Py_ssize_t>(expected.size()) && finds_names(scope, expected);
  }

  bool finds_keywords(const nb::object& function, const List& expected) {
    const nb::object defaults = attribute(function, vocabulary().keyword_defaults);
    return defaults.is_none() ? expected.empty() : finds_all_named(defaults, expected);
  }

  bool finds_defaults(const nb::object& function, const List& expected) {
    const nb::object defaults = attribute(function, vocabulary().defaults);
    return defaults.is_none() ? expected.empty() : finds_items(defaults, expected, 0);
  }

  /// Matches a tuple of what is expected, from `first` on.
  bool finds_items(nb::handle items, const List& expected, std::size_t first) {
    if (!PyTuple_Check(items.ptr())) return false;
    const auto count = static_cast<Py_ssize_t>(expected.size() - first);
    if (PyTuple_Size(items.ptr()) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!finds(PyTuple_GetItem(items.ptr(), i), expected[first + static_cast<std::size_t>(i)])) return false;
    return true;
  }

  bool finds_partial(nb::handle thing, const Expected& expected) {
    if (Py_TYPE(thing.ptr()) != vocabulary().partial) return false;
    return finds(attribute(thing, vocabulary().partial_function), expected.items[0]) &&
           finds_items(attribute(thing, vocabulary().partial_args), expected.items, 1) &&
           finds_all_named(attribute(thing, vocabulary().partial_keywords), expected.keywords);
  }

  Leaves& leaves_;
  std::array<PyObject*, 64> met_;
  std::size_t met_count_ = 0;
};

/// What a score and a mask refer to, if tracing depends on the identity of their tensors, as it does for torch.
class Meaning {
 public:
  /// `keys`: Scan's keys of the two functions; `things`: Scan's leaves. If a key has kinds of things that only Python
  /// knows, `stays` is always false.
  Meaning(const nb::tuple& keys, const nb::list& things);

  /// True while the functions refer to the same things: the same tensors with the same shapes. Every call through torch
  /// asks, so the functions are two arguments and not a tuple.
  bool stays(nb::handle score, nb::handle mask) const;

 private:
  std::vector<Expected> expected_;
  std::vector<std::pair<nb::object, nb::object>> things_;  // with their shapes
  bool known_ = true;
};

}  // namespace attune::python
