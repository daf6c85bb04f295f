// python/core/memory.h — memory that attune owns, as an object that speaks DLPack
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// Memory of results for array libraries whose own arrays are immutable.
struct Memory {
  attune_tensor* tensor = nullptr;
  explicit Memory(attune_tensor* given) : tensor(given) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { attune_dealloc(tensor); }
};

/// The memory as a DLPack capsule.
nb::object exported(nb::object self);

/// New memory of the type and device of `like`.
nb::object empty(nb::handle like, const std::vector<std::int64_t>& shape, bool f32);

}  // namespace attune::python
