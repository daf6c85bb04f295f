// python/core/numpy/recall.h — finds the attention of an earlier call with equal functions, texts and keywords
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "python/core/expected.h"
#include "python/core/handle.h"
#include "python/core/numpy/numpy.h"

namespace attune::python {

/// A tensor or a parameter's number that expressions read.
struct Leaf {
  nb::object thing{};
  NumpyTensor tensor;  // `recall` sets the tensor or the number
  double number;
};

/// The tensors and parameters that functions and keywords refer to, in the order of Scan in attune/_scan.py.
struct Leaves {
  static constexpr std::size_t most = 16;
  std::array<Leaf, most> all;
  std::size_t count = 0;

  void clear();
  /// Adds the next leaf; null if `expected` is another one.
  Leaf* add(nb::handle thing, const Expected& expected);
  bool finds(nb::handle thing, const Expected& expected);
};

/// The arguments of attention() that describe the attention.
struct Said {
  std::array<nb::handle, 4> parts;  ///< score, mask, prob and sink
  std::array<nb::handle, 3> way;    ///< scale, target and exact
  /// Keywords that are captures or parameters.
  std::array<nb::handle, 8> names{}, things{};
  std::size_t keywords = 0;
};

/// An attention, and the arguments that it was made for. It does not keep its leaves alive.
struct Known {
  std::array<Expected, 4> parts;
  std::array<Expected, 3> way;
  std::vector<nb::object> names;
  std::vector<Expected> things;
  nb::object core;
  const Handle* handle;
  std::vector<std::size_t> captures, params;  ///< by slot, the number of the leaf
};

/// The attention remembered for equal arguments, with the leaves of this call; or null. Decides like Scan, but knows
/// fewer kinds of things; Python handles the others.
std::shared_ptr<const Known> recall(const Said& said, Leaves& leaves);

/// Remembers an attention under the key of its Scan, unless the key has kinds of things that `recall` does not know.
void remember(const Said& said, const nb::tuple& key, nb::object core, const Handle* handle,
              std::vector<std::size_t> captures, std::vector<std::size_t> params);

/// Reads the number of a parameter of this kind; false without an exception if Python must handle it.
bool read_number(nb::handle given, char kind, double& into);

}  // namespace attune::python
