// python/core/meaning.cpp — compares what functions refer to now with what they referred to, tensor by tensor
#include "python/core/meaning.h"

#include "python/core/walk.h"

namespace attune::python {
namespace {

PyObject* shape_word() {
  static PyObject* const word = PyUnicode_InternFromString("shape");
  return word;
}

struct Same {
  const std::vector<std::pair<nb::object, nb::object>>& things;

  bool finds(nb::handle thing, const Expected& expected) const {
    if (!thing.is(things[expected.leaf].first)) return false;
    const nb::object shape = attribute(thing, shape_word());
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
    nb::object shape = attribute(thing, shape_word());
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
