// python/core/sharding.h — which rank holds which positions of a call, and how ranks exchange bytes
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/core/raised.h"

namespace attune::python {

/// How ranks exchange bytes: by NCCL, or by the Python functions exchange(send, receive, stream) with lists of (peer,
/// memoryview), sum(values, stream) with a memoryview of floats, and stop(). With a stream, device addresses replace
/// the views.
struct Transport : Pinned {
  int rank, count;
  nb::object exchange{}, sum{}, stop{};
  Raised raised{};
  attune_transport by_nccl{};

  Transport(int own, int all, nb::object exchanges, nb::object sums, nb::object stops);
  explicit Transport(const attune_transport& nccl) : rank(nccl.rank), count(nccl.count), by_nccl(nccl) {}
  ~Transport();

  /// The transport as the C ABI takes it.
  attune_transport given();
};

/// NCCL's unique id: one rank makes it and hands it to the others.
nb::bytes nccl_id();

/// A transport by NCCL, from an id or from the address of a communicator. `place`: rank, count and device.
Transport* nccl(const std::optional<nb::bytes>& id, std::uintptr_t communicator, const std::array<int, 3>& place,
                double seconds);

/// Which rank holds which positions. Keeps the transport, whose functions its exchanges call.
struct Sharding : Pinned {
  attune_sharding* handle = nullptr;
  nb::object transport;

  /// Takes the handle that `make` writes.
  template <class Make>
  Sharding(nb::object with, const Make& make) : transport(std::move(with)) {
    attune_error* const error = released([&] { return make(&handle); });  // ranks wait for each other
    ranks().raised.raise(error);
    check(error);
  }
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
