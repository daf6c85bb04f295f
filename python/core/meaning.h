// python/core/meaning.h — what functions of Python referred to when they were looked at, to ask whether they still do
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "python/core/expected.h"

namespace attune::python {

/// Of a score and a mask that are traced for the very tensors that they refer to, as those of torch are.
class Meaning {
 public:
  /// `keys`: of the two functions, as Scan has them, and `things` its leaves. Not for kinds of things that only Python
  /// knows: it then never stays.
  Meaning(const nb::tuple& keys, const nb::list& things);

  /// True while they refer to the same things, to the same tensors with the same shapes. Every call through torch asks,
  /// so the two are arguments, not a tuple of them.
  bool stays(nb::handle score, nb::handle mask) const;

 private:
  std::vector<Expected> expected_;
  std::vector<std::pair<nb::object, nb::object>> things_;  // with their shapes
  bool known_ = true;
};

}  // namespace attune::python
