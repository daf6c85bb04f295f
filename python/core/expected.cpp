// python/core/expected.cpp — reads keys of attune/_scan.py, and compares what functions refer to with them
#include "python/core/expected.h"

#include <bit>

namespace attune::python {
namespace {

using As = Expected::As;

bool reads_as(nb::handle tag, const char* text) {
  return PyUnicode_CheckExact(tag.ptr()) && PyUnicode_CompareWithASCIIString(tag.ptr(), text) == 0;
}

/// Reads a tuple of keys, from `first` on.
bool expect_items(const nb::tuple& keys, std::size_t first, const std::vector<nb::object>& given,
                  std::vector<Expected>& into) {
  for (std::size_t i = first; i < keys.size(); ++i)
    if (!expect(keys[i], given, into.emplace_back())) return false;
  return true;
}

/// Pairs of a name and a key.
bool expect_named(nb::handle name, nb::handle key, const std::vector<nb::object>& given, std::vector<Expected>& into) {
  Expected& one = into.emplace_back();
  one.name = nb::borrow(name);
  return expect(key, given, one);
}

/// (partial, function, (arguments), (name, keyword)...)
bool expect_partial(const nb::tuple& key, const std::vector<nb::object>& given, Expected& into) {
  into.as = As::partial;
  if (!expect(key[1], given, into.items.emplace_back())) return false;
  if (!expect_items(nb::cast<nb::tuple>(key[2]), 0, given, into.items)) return false;
  for (std::size_t i = 3; i < key.size(); ++i) {
    const auto pair = nb::cast<nb::tuple>(key[i]);
    if (!expect_named(pair[0], pair[1], given, into.keywords)) return false;
  }
  return true;
}

/// (code, (where, name, key)...)
bool expect_function(const nb::tuple& key, const std::vector<nb::object>& given, Expected& into) {
  into.as = As::function;
  into.thing = key[0];
  for (std::size_t i = 1; i < key.size(); ++i) {
    const auto entry = nb::cast<nb::tuple>(key[i]);
    const nb::handle where = entry[0], name = entry[1];
    const bool cell = reads_as(where, "cell"), global = reads_as(where, "global");
    std::vector<Expected>* const list = cell                           ? &into.cells
                                        : global                       ? &into.globals
                                        : reads_as(where, "attribute") ? &into.attributes
                                        : reads_as(where, "keyword")   ? &into.keywords
                                        : reads_as(where, "default")   ? &into.defaults
                                                                       : nullptr;
    if (!list) return false;
    const bool is_given = (cell || global) &&
                          std::ranges::any_of(given, [&](const nb::object& n) { return n.is(name); });
    if (!is_given) {
      if (!expect_named(name, entry[2], given, *list)) return false;
      continue;
    }
    list->emplace_back().as = As::given;
    list->back().name = nb::borrow(name);
  }
  return true;
}

/// A number or a text, (type, value); a tuple, (type, key...); or a partial.
bool expect_typed(const nb::tuple& key, const std::vector<nb::object>& given, Expected& into) {
  const nb::handle type = key[0];
  auto* const as_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (as_type == &PyFloat_Type) {
    into.as = As::bits;
    into.bits = nb::cast<std::int64_t>(key[1]);
    return true;
  }
  if (PyType_IsSubtype(as_type, vocabulary().partial)) return expect_partial(key, given, into);
  if (PyType_IsSubtype(as_type, &PyTuple_Type)) {
    into.as = As::tuple;
    into.thing = nb::borrow(type);
    return expect_items(key, 1, given, into.items);
  }
  const nb::handle thing = key[1];
  return thing.type().is(type) && expect_constant(thing, into);
}

}  // namespace

Vocabulary& vocabulary() {
  static Vocabulary all{word("__code__"),     word("__closure__"),    word("cell_contents"), word("__globals__"),
                        word("__defaults__"), word("__kwdefaults__"), word("__dict__"),      word("function"),
                        word("_kind"),        word("_value"),         word("func"),          word("args"),
                        word("keywords"),     word("shape")};
  return all;
}

void find_types(nb::handle function) {
  const auto kept = [](const char* module, const char* name) {
    nb::object type = nb::module_::import_(module).attr(name);
    return reinterpret_cast<PyTypeObject*>(type.release().ptr());
  };
  Vocabulary& w = vocabulary();
  w.part = kept("attune._scan", "Component"), w.param = kept("attune._leaves", "Param");
  w.partial = kept("functools", "partial");
  w.function_type = Py_TYPE(function.ptr());
  w.code_type = Py_TYPE(attribute(function, w.code).ptr());
}

nb::object attribute(nb::handle of, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(of.ptr(), name);
  if (!found) PyErr_Clear();
  return nb::steal(found);
}

nb::object within_parts(nb::handle thing) {
  nb::object at = nb::borrow(thing);
  while (at.is_valid() && Py_TYPE(at.ptr()) != vocabulary().function_type &&
         PyType_IsSubtype(Py_TYPE(at.ptr()), vocabulary().part))
    at = attribute(at, vocabulary().function);
  return at;
}

std::int64_t bits_of(nb::handle number) { return std::bit_cast<std::int64_t>(PyFloat_AsDouble(number.ptr())); }

bool expect_constant(nb::handle thing, Expected& into) {
  into.thing = nb::borrow(thing);
  if (thing.is_none() || PyBool_Check(thing.ptr())) {
    into.as = As::is;
  } else if (PyLong_CheckExact(thing.ptr()) || PyUnicode_CheckExact(thing.ptr()) || PyBytes_CheckExact(thing.ptr())) {
    into.as = As::equal;
  } else if (PyFloat_CheckExact(thing.ptr())) {
    into.as = As::bits;
    into.bits = bits_of(thing);
  } else {
    return false;
  }
  return true;
}

bool expect(nb::handle key, const std::vector<nb::object>& given, Expected& into) {
  if (key.is_none()) return true;
  const auto parts = nb::cast<nb::tuple>(key);
  const nb::handle tag = parts[0];
  if (reinterpret_cast<PyTypeObject*>(tag.type().ptr()) == vocabulary().code_type)
    return expect_function(parts, given, into);
  if (PyType_Check(tag.ptr())) return expect_typed(parts, given, into);
  if (reads_as(tag, "text")) return expect_constant(parts[1], into);
  if (reads_as(tag, "is")) {
    into.as = As::is;
    into.thing = parts[1];
    return true;
  }
  const bool array = reads_as(tag, "array");
  if (reads_as(tag, "met")) {
    into.as = As::met;
  } else if (array || reads_as(tag, "param")) {
    into.as = array ? As::array : As::param;
    into.kind = nb::cast<const char*>(parts[1])[0];
    into.rank = array ? nb::cast<int>(parts[2]) : 0;
  } else {
    return false;
  }
  into.leaf = nb::cast<std::size_t>(parts[parts.size() - 1]);
  return true;
}

namespace {

struct Same {
  const std::vector<std::pair<nb::object, nb::object>>& things;

  bool finds(nb::handle thing, const Expected& expected) const {
    if (!thing.is(things[expected.leaf].first)) return false;
    const nb::object shape = attribute(thing, vocabulary().shape);
    const int equal = shape.is_valid()
                          ? PyObject_RichCompareBool(shape.ptr(), things[expected.leaf].second.ptr(), Py_EQ)
                          : 0;
    if (equal < 0) PyErr_Clear();
    return equal == 1;
  }
};

}  // namespace

Meaning::Meaning(const nb::tuple& keys, const nb::list& things) {
  for (const nb::handle key : keys) known_ = known_ && expect(key, {}, expected_.emplace_back());
  for (const nb::handle thing : things) {
    nb::object shape = attribute(thing, vocabulary().shape);
    known_ = known_ && shape.is_valid();
    things_.emplace_back(nb::borrow(thing), std::move(shape));
  }
}

bool Meaning::stays(nb::handle score, nb::handle mask) const {
  if (!known_) return false;
  Same leaves{things_};
  Walk<Same> walk(leaves);
  return walk.finds(score, expected_[0]) && walk.finds(mask, expected_[1]);
}

}  // namespace attune::python
