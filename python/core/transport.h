// python/core/transport.h — how ranks exchange bytes: by Python functions, or by NCCL
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>

#include "python/core/raised.h"

namespace attune::python {

/// How ranks exchange bytes: by NCCL, or by the Python functions exchange(send, receive, stream) with lists of (peer,
/// memoryview), sum(values, stream) with a memoryview of floats, and stop(). With a stream, device addresses replace
/// the views.
struct Transport {
  int rank, count;
  nb::object exchange{}, sum{}, stop{};
  Raised raised{};
  attune_transport by_nccl{};

  Transport(int own, int all, nb::object exchanges, nb::object sums, nb::object stops);
  explicit Transport(const attune_transport& nccl) : rank(nccl.rank), count(nccl.count), by_nccl(nccl) {}
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport();

  /// The transport as the C ABI takes it.
  attune_transport given();
};

/// NCCL's unique id: one rank makes it and hands it to the others.
nb::bytes nccl_id();

/// A transport by NCCL, from an id or from the address of a communicator. `place`: rank, count and device.
Transport* nccl(const std::optional<nb::bytes>& id, std::uintptr_t communicator, const std::array<int, 3>& place,
                double seconds);

}  // namespace attune::python
