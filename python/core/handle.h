// python/core/handle.h — an attention of attune/c.h, and how its captures and parameters were declared
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// A capture or a parameter, by slot.
struct Declared {
  std::string name;
  nb::object word;  ///< the name as an interned str: keywords of a call are compared by address
  char kind;
  int rank;
};

struct Handle {
  attune_attention* attention = nullptr;
  std::vector<Declared> captures, params;

  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { attune_free(attention); }
};

}  // namespace attune::python
