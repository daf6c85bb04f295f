// python/core/numpy/recall.cpp — finds the attention of an earlier call with equal functions, texts and keywords
#include "python/core/numpy/recall.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

namespace attune::python {
namespace {

using As = Expected::As;

// More than Python's own cache keeps; Python asks its cache for attentions that are forgotten here.
constexpr std::size_t most_known = 1024;

/// Matches a keyword of the call. A number is a parameter of its own.
bool finds_keyword(Walk<Leaves>& walk, Leaves& leaves, nb::handle thing, const Expected& expected) {
  const bool whole = PyLong_CheckExact(thing.ptr());
  if (!whole && !PyFloat_CheckExact(thing.ptr())) return walk.finds(thing, expected);
  if (expected.as != As::param || expected.kind != (whole ? 'i' : 'f')) return false;
  Leaf* const leaf = leaves.add(thing, expected);
  return leaf && read_number(thing, expected.kind, leaf->number);
}

/// Attentions by a hash of their parts: the value of a text, the code of a function. The GIL guards it.
class Memory {
 public:
  using Places = std::array<std::size_t, 8>;

  /// Writes the places of the attentions with this hash and returns their count.
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
    // `known` now holds the replaced entry. It is destroyed last, because that may run Python code.
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
  static auto* const all = new Memory;  // never freed: Python may end first
  return *all;
}

/// True if the call's arguments match those of a known attention.
bool finds(const Known& known, const Said& said, const std::array<nb::object, 4>& within, Leaves& leaves) {
  if (known.names.size() != said.keywords) return false;
  leaves.clear();
  Walk<Leaves> walk(leaves);
  for (std::size_t i = 0; i < said.keywords; ++i)
    if (!known.names[i].is(said.names[i])) return false;
  for (std::size_t i = 0; i < said.way.size(); ++i)
    if (!walk.finds(said.way[i], known.way[i])) return false;
  for (std::size_t i = 0; i < said.keywords; ++i)
    if (!finds_keyword(walk, leaves, said.things[i], known.things[i])) return false;
  for (std::size_t i = 0; i < within.size(); ++i)
    if (!walk.finds(within[i], known.parts[i])) return false;
  return true;
}

/// Hashes the parts and unwraps them into `within`; false if Python must make the call.
bool hash_parts(const Said& said, std::array<nb::object, 4>& within, std::size_t& hash) {
  hash = said.keywords;
  for (std::size_t i = 0; i < within.size(); ++i) {
    std::size_t one = 0;
    if (!said.parts[i].is_none()) {
      within[i] = within_parts(said.parts[i]);
      if (!within[i].is_valid()) return false;
      if (PyUnicode_CheckExact(within[i].ptr()))
        one = static_cast<std::size_t>(PyObject_Hash(within[i].ptr()));
      else if (Py_TYPE(within[i].ptr()) == vocabulary().function_type)
        one = std::hash<PyObject*>()(attribute(within[i], vocabulary().code).ptr()) >> 4;
      else
        return false;
    }
    hash = hash * 0x9e3779b97f4a7c15u + one;
  }
  return true;
}

}  // namespace

void Leaves::clear() {
  for (std::size_t i = 0; i < count; ++i) all[i].thing.reset();
  count = 0;
}

Leaf* Leaves::add(nb::handle thing, const Expected& expected) {
  if (expected.leaf != count || count == most) return nullptr;
  Leaf& leaf = all[count++];
  leaf.thing = nb::borrow(thing);
  return &leaf;
}

bool Leaves::finds(nb::handle thing, const Expected& expected) {
  for (std::size_t i = 0; i < count; ++i)
    if (all[i].thing.is(thing)) return i == expected.leaf;
  Leaf* const leaf = add(thing, expected);
  if (!leaf) return false;
  if (expected.as == As::array)
    return leaf->tensor.read(thing) && leaf->tensor.kind() == expected.kind &&
           leaf->tensor.tensor().ndim == expected.rank;
  if (Py_TYPE(thing.ptr()) != vocabulary().param) return false;
  const nb::object kind = attribute(thing, vocabulary().kind), value = attribute(thing, vocabulary().value);
  return kind.is_valid() && value.is_valid() && PyUnicode_Check(kind.ptr()) &&
         PyUnicode_ReadChar(kind.ptr(), 0) == static_cast<Py_UCS4>(expected.kind) &&
         read_number(value, expected.kind, leaf->number);
}

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
