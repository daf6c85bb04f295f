// python/core/meaning.h — what Python functions referred to when they were traced, and whether they still do
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "python/core/expected.h"

namespace attune::python {

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
