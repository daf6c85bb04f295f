// python/core/recall.cpp — whether the functions, texts and keywords of a call say what those of an earlier call said
#include "python/core/recall.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <unordered_map>
#include <utility>

namespace attune::python {
namespace {

using As = Expected::As;

// More than Python keeps, which is asked first when one of these is gone.
constexpr std::size_t most_known = 1024;

PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

/// Names of attributes and of the parts of a key, and Python's types. All are kept to the end of the process.
struct Words {
  PyObject *code = word("__code__"), *closure = word("__closure__"), *contents = word("cell_contents"),
           *globals = word("__globals__"), *defaults = word("__defaults__"), *keyword_defaults = word("__kwdefaults__"),
           *attributes = word("__dict__"), *function = word("function"), *kind = word("_kind"), *value = word("_value");
  PyTypeObject *part = nullptr, *param = nullptr, *function_type = nullptr, *code_type = nullptr;
};
Words& words() {
  static Words all;
  return all;
}

nb::object attribute(nb::handle of, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(of.ptr(), name);
  if (!found) PyErr_Clear();
  return nb::steal(found);
}

/// The function within attune's Mask, Score and so on; itself if it is none.
nb::object within_parts(nb::handle thing) {
  nb::object at = nb::borrow(thing);
  while (at.is_valid() && Py_TYPE(at.ptr()) != words().function_type &&
         PyType_IsSubtype(Py_TYPE(at.ptr()), words().part))
    at = attribute(at, words().function);
  return at;
}

std::int64_t bits_of(nb::handle number) { return std::bit_cast<std::int64_t>(PyFloat_AsDouble(number.ptr())); }

// ---- from a key of Scan to what is expected

bool reads_as(nb::handle tag, const char* text) {
  return PyUnicode_CheckExact(tag.ptr()) && PyUnicode_CompareWithASCIIString(tag.ptr(), text) == 0;
}

/// A number, a text, a truth value or None; false for all else.
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

/// `given`: names that keywords of the call stand for.
bool expect(nb::handle key, const std::vector<nb::object>& given, Expected& into);

bool expect_function(const nb::tuple& key, const std::vector<nb::object>& given, Expected& into) {
  into.as = As::function;
  into.thing = key[0];
  for (std::size_t i = 1; i < key.size(); ++i) {
    const auto entry = nb::cast<nb::tuple>(key[i]);
    const nb::handle where = entry[0], name = entry[1];
    const bool cell = reads_as(where, "cell"), global = reads_as(where, "global");
    const bool attribute = reads_as(where, "attribute");
    if (!cell && !global && !attribute && !reads_as(where, "default")) return false;
    Expected& one = (cell        ? into.cells
                     : global    ? into.globals
                     : attribute ? into.attributes
                                 : into.defaults)
                        .emplace_back();
    one.name = nb::borrow(name);
    if (!one.name.is_valid()) return false;
    const bool is_given = (cell || global) &&
                          std::ranges::any_of(given, [&](const nb::object& n) { return n.is(name); });
    if (is_given)
      one.as = As::given;
    else if (!expect(entry[2], given, one))
      return false;
  }
  return true;
}

bool expect(nb::handle key, const std::vector<nb::object>& given, Expected& into) {
  if (key.is_none()) return true;
  const auto parts = nb::cast<nb::tuple>(key);
  const nb::handle tag = parts[0];
  if (reinterpret_cast<PyTypeObject*>(tag.type().ptr()) == words().code_type)
    return expect_function(parts, given, into);
  if (PyType_Check(tag.ptr())) {
    if (tag.is(reinterpret_cast<PyObject*>(&PyFloat_Type))) {
      into.as = As::bits;
      into.bits = nb::cast<std::int64_t>(parts[1]);
      return true;
    }
    const nb::handle thing = parts[1];
    return thing.type().is(tag) && expect_constant(thing, into);
  }
  if (reads_as(tag, "text")) return expect_constant(parts[1], into);
  if (reads_as(tag, "is") || reads_as(tag, "met")) {
    into.as = reads_as(tag, "is") ? As::is : As::met;
    into.thing = parts[1];
    return true;
  }
  const bool array = reads_as(tag, "array");
  if (!array && !reads_as(tag, "param")) return false;
  into.as = array ? As::array : As::param;
  into.kind = nb::cast<const char*>(parts[1])[0];
  into.rank = array ? nb::cast<int>(parts[2]) : 0;
  into.leaf = nb::cast<std::size_t>(parts[array ? 3 : 2]);
  return true;
}

// ---- whether it is found

/// A walk through what a call refers to, in the order of Scan.
class Walk {
 public:
  explicit Walk(Leaves& leaves) : leaves_(leaves) {
    for (std::size_t i = 0; i < leaves_.count; ++i) leaves_.all[i].thing.reset();
    leaves_.count = 0;
  }

  /// A keyword of the call: a number is a parameter of its own.
  bool finds_keyword(nb::handle thing, const Expected& expected) {
    const bool whole = PyLong_CheckExact(thing.ptr());
    if (!whole && !PyFloat_CheckExact(thing.ptr())) return finds(thing, expected);
    if (expected.as != As::param || expected.kind != (whole ? 'i' : 'f')) return false;
    Leaf* const leaf = add(thing, expected);
    return leaf && read_number(thing, expected.kind, leaf->number);
  }

  bool finds(nb::handle thing, const Expected& expected) {
    if (expected.as == As::given) return true;
    if (!thing.is_valid()) return expected.as == As::nothing;
    switch (expected.as) {
      case As::is: return thing.is(expected.thing);
      case As::equal:
        return thing.is(expected.thing) || (thing.type().is(expected.thing.type()) && equal(thing, expected.thing));
      case As::bits: return PyFloat_CheckExact(thing.ptr()) && bits_of(thing) == expected.bits;
      case As::array:
      case As::param: return finds_leaf(thing, expected);
      case As::met:
      case As::function: return finds_function(within_parts(thing), expected);
      default: return false;
    }
  }

 private:
  static bool equal(nb::handle a, nb::handle b) {
    const int is = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
    if (is < 0) PyErr_Clear();
    return is == 1;
  }

  Leaf* add(nb::handle thing, const Expected& expected) {
    if (expected.leaf != leaves_.count || leaves_.count == Leaves::most) return nullptr;
    Leaf& leaf = leaves_.all[leaves_.count++];
    leaf.thing = nb::borrow(thing);
    return &leaf;
  }

  bool finds_leaf(nb::handle thing, const Expected& expected) {
    for (std::size_t i = 0; i < leaves_.count; ++i)
      if (leaves_.all[i].thing.is(thing)) return i == expected.leaf;
    Leaf* const leaf = add(thing, expected);
    if (!leaf) return false;
    if (expected.as == As::array)
      return leaf->tensor.read(thing) && leaf->tensor.kind() == expected.kind &&
             leaf->tensor.tensor().ndim == expected.rank;
    if (Py_TYPE(thing.ptr()) != words().param) return false;
    const nb::object kind = attribute(thing, words().kind), value = attribute(thing, words().value);
    return kind.is_valid() && value.is_valid() && PyUnicode_Check(kind.ptr()) &&
           PyUnicode_ReadChar(kind.ptr(), 0) == static_cast<Py_UCS4>(expected.kind) &&
           read_number(value, expected.kind, leaf->number);
  }

  bool finds_function(const nb::object& function, const Expected& expected) {
    if (!function.is_valid() || Py_TYPE(function.ptr()) != words().function_type) return false;
    if (!attribute(function, words().code).is(expected.thing)) return false;
    const auto end = met_.begin() + static_cast<std::ptrdiff_t>(met_count_);
    const bool met = std::find(met_.begin(), end, function.ptr()) != end;
    if (met || expected.as == As::met) return met && expected.as == As::met;
    if (met_count_ == met_.size()) return false;
    met_[met_count_++] = function.ptr();  // alive as long as what refers to it
    return finds_cells(function, expected.cells) && finds_globals(function, expected.globals) &&
           finds_defaults(function, expected.defaults) && finds_attributes(function, expected.attributes);
  }

  bool finds_cells(const nb::object& function, const std::vector<Expected>& expected) {
    if (expected.empty()) return true;  // its code has no free variables
    const nb::object cells = attribute(function, words().closure);
    if (!PyTuple_CheckExact(cells.ptr()) || PyTuple_Size(cells.ptr()) != static_cast<Py_ssize_t>(expected.size()))
      return false;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i].as == As::given) continue;
      const nb::handle cell = PyTuple_GetItem(cells.ptr(), static_cast<Py_ssize_t>(i));
      if (!finds(attribute(cell, words().contents), expected[i])) return false;
    }
    return true;
  }

  bool finds_globals(const nb::object& function, const std::vector<Expected>& expected) {
    if (expected.empty()) return true;
    return finds_names(attribute(function, words().globals), expected);
  }

  bool finds_attributes(const nb::object& function, const std::vector<Expected>& expected) {
    const nb::object scope = attribute(function, words().attributes);
    return scope.is_valid() && PyDict_CheckExact(scope.ptr()) &&
           PyDict_Size(scope.ptr()) == static_cast<Py_ssize_t>(expected.size()) && finds_names(scope, expected);
  }

  bool finds_names(const nb::object& scope, const std::vector<Expected>& expected) {
    if (!PyDict_CheckExact(scope.ptr())) return false;
    for (const Expected& one : expected) {
      if (one.as == As::given) continue;
      const nb::object thing = nb::borrow(PyDict_GetItemWithError(scope.ptr(), one.name.ptr()));
      if (PyErr_Occurred()) PyErr_Clear();
      if (!finds(thing, one)) return false;
    }
    return true;
  }

  bool finds_defaults(const nb::object& function, const std::vector<Expected>& expected) {
    if (!attribute(function, words().keyword_defaults).is_none()) return false;
    const nb::object defaults = attribute(function, words().defaults);
    if (defaults.is_none()) return expected.empty();
    if (!PyTuple_CheckExact(defaults.ptr()) || PyTuple_Size(defaults.ptr()) != static_cast<Py_ssize_t>(expected.size()))
      return false;
    for (std::size_t i = 0; i < expected.size(); ++i)
      if (!finds(PyTuple_GetItem(defaults.ptr(), static_cast<Py_ssize_t>(i)), expected[i])) return false;
    return true;
  }

  Leaves& leaves_;
  std::array<PyObject*, 16> met_;
  std::size_t met_count_ = 0;
};

// ---- what is remembered

/// Attentions by a hash of their parts: the value of a text, the code of a function. Touched with the GIL alone.
class Memory {
 public:
  using Places = std::array<std::size_t, 8>;

  /// The places of the attentions with this hash; how many.
  std::size_t find(std::size_t hash, Places& places) const {
    std::size_t count = 0;
    const auto [begin, end] = places_.equal_range(hash);
    for (auto at = begin; at != end; ++at) places[count++] = at->second;
    return count;
  }

  std::shared_ptr<const Known> at(std::size_t place) const { return known_[place].known; }

  void put(std::size_t hash, std::shared_ptr<const Known> known) {
    Places places;
    const std::size_t count = find(hash, places);
    std::size_t place = known_.size();
    if (count == places.size()) {
      place = *std::ranges::min_element(places, {}, [&](std::size_t p) { return known_[p].age; });
    } else if (place == most_known) {
      place = next_++ % most_known;
      const auto [begin, end] = places_.equal_range(known_[place].hash);
      places_.erase(std::find_if(begin, end, [&](const auto& one) { return one.second == place; }));
      places_.emplace(hash, place);
    } else {
      known_.emplace_back();
      places_.emplace(hash, place);
    }
    // `known` becomes the former one, which goes last: that may run code of Python.
    known_[place].hash = hash, known_[place].age = ++age_;
    std::swap(known_[place].known, known);
  }

 private:
  struct Row {
    std::size_t hash, age;
    std::shared_ptr<const Known> known;
  };
  std::vector<Row> known_;
  std::unordered_multimap<std::size_t, std::size_t> places_;
  std::size_t next_ = 0, age_ = 0;
};
Memory& memory() {
  static auto* const all = new Memory;  // never freed: Python may be gone before
  return *all;
}

/// What a call says, found again in what is known.
bool finds(const Known& known, const Said& said, const std::array<nb::object, 4>& within, Leaves& leaves) {
  if (known.names.size() != said.keywords) return false;
  Walk walk(leaves);
  for (std::size_t i = 0; i < said.keywords; ++i)
    if (!known.names[i].is(said.names[i])) return false;
  for (std::size_t i = 0; i < said.way.size(); ++i)
    if (!walk.finds(said.way[i], known.way[i])) return false;
  for (std::size_t i = 0; i < said.keywords; ++i)
    if (!walk.finds_keyword(said.things[i], known.things[i])) return false;
  for (std::size_t i = 0; i < within.size(); ++i)
    if (!walk.finds(within[i], known.parts[i])) return false;
  return true;
}

/// What parts are looked up by, and what is within them; false for what Python must look at.
bool hash_parts(const Said& said, std::array<nb::object, 4>& within, std::size_t& hash) {
  hash = said.keywords;
  for (std::size_t i = 0; i < within.size(); ++i) {
    std::size_t one = 0;
    if (!said.parts[i].is_none()) {
      within[i] = within_parts(said.parts[i]);
      if (!within[i].is_valid()) return false;
      if (PyUnicode_CheckExact(within[i].ptr()))
        one = static_cast<std::size_t>(PyObject_Hash(within[i].ptr()));
      else if (Py_TYPE(within[i].ptr()) == words().function_type)
        one = std::hash<PyObject*>()(attribute(within[i], words().code).ptr()) >> 4;
      else
        return false;
    }
    hash = hash * 0x9e3779b97f4a7c15u + one;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Known> recall(const Said& said, Leaves& leaves) {
  std::array<nb::object, 4> within;
  std::size_t hash = 0;
  if (!hash_parts(said, within, hash)) return nullptr;
  Memory::Places places;
  const std::size_t count = memory().find(hash, places);
  for (std::size_t i = 0; i < count; ++i)
    if (auto known = memory().at(places[i]); finds(*known, said, within, leaves)) return known;
  return nullptr;
}

void remember(const Said& said, const nb::tuple& key, nb::object core, const Handle* handle,
              std::vector<std::size_t> captures, std::vector<std::size_t> params) {
  Leaves leaves;
  std::array<nb::object, 4> within;
  std::size_t hash = 0;
  if (!hash_parts(said, within, hash) || recall(said, leaves)) return;
  auto known = std::make_shared<Known>();
  for (std::size_t i = 0; i < said.keywords; ++i) known->names.push_back(nb::borrow(said.names[i]));
  known->things.resize(said.keywords);
  std::size_t at = 0;
  for (Expected& thing : known->things)
    if (!expect(nb::cast<nb::tuple>(key[at++])[1], known->names, thing)) return;
  for (std::size_t i = 0; i < within.size(); ++i) {
    if (!within[i].is_valid()) continue;
    at += 1;  // the name of the part
    if (!expect(key[at++], known->names, known->parts[i])) return;
  }
  for (std::size_t i = 0; i < said.way.size(); ++i)
    if (!expect_constant(said.way[i], known->way[i])) return;
  if (!finds(*known, said, within, leaves)) return;  // it captures tensors that are not NumPy's, say
  known->core = std::move(core), known->handle = handle;
  known->captures = std::move(captures), known->params = std::move(params);
  memory().put(hash, std::move(known));
}

void find_types(nb::handle function) {
  const auto kept = [](const char* module, const char* name) {
    nb::object type = nb::module_::import_(module).attr(name);
    return reinterpret_cast<PyTypeObject*>(type.release().ptr());
  };
  Words& w = words();
  w.part = kept("attune._parts", "Part"), w.param = kept("attune.expr", "Param");
  w.function_type = Py_TYPE(function.ptr());
  w.code_type = Py_TYPE(attribute(function, w.code).ptr());
}

bool read_number(nb::handle given, char kind, double& into) {
  if (PyFloat_CheckExact(given.ptr()) && kind == 'f') {
    into = PyFloat_AsDouble(given.ptr());
    return true;
  }
  if (!PyLong_CheckExact(given.ptr())) return false;
  into = PyLong_AsDouble(given.ptr());
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

}  // namespace attune::python
