// python/core/shares.h — who holds which positions of a call over ranks
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/core/transport.h"

namespace attune::python {

/// Who holds which positions. Keeps the functions that its exchanges call.
struct Shares {
  attune_shares* handle = nullptr;
  nb::object transport;

  /// Takes the handle that `make` writes.
  template <class Make>
  Shares(nb::object with, const Make& make) : transport(std::move(with)) {
    attune_error* error = nullptr;
    {
      const Released running;  // ranks wait for each other
      error = make(&handle);
    }
    ranks().raised.raise(error);
    check(error);
  }
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;
  ~Shares() { attune_shares_free(handle); }

  Transport& ranks() const { return nb::cast<Transport&>(transport); }

  std::vector<std::pair<std::int64_t, std::int64_t>> of(int rank, bool keys) const;
  nb::object positions(int rank) const;
  std::size_t received(int rank, std::size_t layer) const;
  std::string explain() const;
};

/// Shares for calls of attentions: each a tuple (attention, the call by name, captures, parameters). `how` is by the
/// names of attune_how; None keeps the deal of `before`.
Shares* shares_of(nb::object with, const nb::list& layers, nb::handle how, nb::handle before);

}  // namespace attune::python
