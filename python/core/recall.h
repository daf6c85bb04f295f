// python/core/recall.h — whether the functions, texts and keywords of a call say what those of an earlier call said
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "python/core/expected.h"
#include "python/core/handle.h"
#include "python/core/numpy.h"

namespace attune::python {

/// A thing that expressions read: a tensor, or the number of a parameter.
struct Leaf {
  nb::object thing{};
  NumpyTensor tensor;  // set by `recall`, as the number is
  double number;
};

/// The tensors and parameters that functions and keywords refer to, in the order of Scan in attune/_scan.py.
struct Leaves {
  static constexpr std::size_t most = 16;
  std::array<Leaf, most> all;
  std::size_t count = 0;

  void clear();
  /// The next leaf; null where another one is expected.
  Leaf* add(nb::handle thing, const Expected& expected);
  bool finds(nb::handle thing, const Expected& expected);
};

/// What a call of attention() says of its attention.
struct Said {
  std::array<nb::handle, 4> parts;  ///< score, mask, prob and sink
  std::array<nb::handle, 3> way;    ///< scale, target and exact
  /// Keywords that are none of the call's own: captures and parameters.
  std::array<nb::handle, 8> names{}, things{};
  std::size_t keywords = 0;
};

/// An attention, and what was said to call for it. Its leaves are not kept alive.
struct Known {
  std::array<Expected, 4> parts;
  std::array<Expected, 3> way;
  std::vector<nb::object> names;
  std::vector<Expected> things;
  nb::object core;
  const Handle* handle;
  std::vector<std::size_t> captures, params;  ///< by slot, the number of the leaf
};

/// The attention that was remembered for the same, with the leaves of this call; or null. It decides as Scan does, and
/// knows fewer kinds of things: for others Python must look.
std::shared_ptr<const Known> recall(const Said& said, Leaves& leaves);

/// Remembers an attention under the key of its Scan, unless that has kinds of things which `recall` does not know.
void remember(const Said& said, const nb::tuple& key, nb::object core, const Handle* handle,
              std::vector<std::size_t> captures, std::vector<std::size_t> params);

/// The number of a parameter of this kind: false, and no exception, for what Python must look at.
bool read_number(nb::handle given, char kind, double& into);

}  // namespace attune::python
