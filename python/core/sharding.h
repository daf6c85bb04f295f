// python/core/sharding.h — which rank holds which positions of a call
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/core/transport.h"

namespace attune::python {

/// Which rank holds which positions. Keeps the transport, whose functions its exchanges call.
struct Sharding {
  attune_sharding* handle = nullptr;
  nb::object transport;

  /// Takes the handle that `make` writes.
  template <class Make>
  Sharding(nb::object with, const Make& make) : transport(std::move(with)) {
    attune_error* error = nullptr;
    {
      const Released running;  // ranks wait for each other
      error = make(&handle);
    }
    ranks().raised.raise(error);
    check(error);
  }
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;
  ~Sharding() { attune_sharding_free(handle); }

  Transport& ranks() const { return nb::cast<Transport&>(transport); }

  std::vector<std::pair<std::int64_t, std::int64_t>> of(int rank, bool keys) const;
  nb::object positions(int rank) const;
  std::size_t received(int rank, std::size_t layer) const;
  std::string explain() const;
};

/// Makes a Sharding for calls of attentions. A layer is a tuple (attention, the call by name, captures, parameters).
/// `how` has the names of attune_how's members; None keeps the assignment of `before`.
Sharding* sharding_of(nb::object with, const nb::list& layers, nb::handle how, nb::handle before);

}  // namespace attune::python
