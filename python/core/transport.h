// python/core/transport.h — how ranks exchange bytes: by functions of Python, or by NCCL
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>

#include "python/core/raised.h"

namespace attune::python {

/// How ranks exchange bytes, by functions of Python: exchange(send, receive, stream) with lists of (peer, memoryview),
/// sum(values, stream) with a memoryview of floats, and stop(). On a stream there are addresses of its device in place
/// of views. Or by NCCL.
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

  /// As the C ABI takes it.
  attune_transport given();
};

/// What one rank makes and hands to the others.
nb::bytes nccl_id();

/// By an id, or by the address of a communicator. `place`: rank, count and device.
Transport* nccl(const std::optional<nb::bytes>& id, std::uintptr_t communicator, const std::array<int, 3>& place,
                double seconds);

}  // namespace attune::python
