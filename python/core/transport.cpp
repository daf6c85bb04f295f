// python/core/transport.cpp — exchanges of ranks, called by C from any of its threads
#include "python/core/transport.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace attune::python {
namespace {

/// Memory of C, shown to a Python function while it runs. Views that the function keeps are empty afterwards.
class Views {
 public:
  Views() = default;
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;
  ~Views() {
    while (!all_.empty()) {  // a view of a view goes first
      if (nb::steal(PyObject_CallMethod(all_.back().ptr(), "release", nullptr)).ptr() == nullptr) PyErr_Clear();
      all_.pop_back();
    }
  }

  nb::object of(void* data, std::size_t bytes) {
    static char none = 0;
    return kept(nb::steal(
        PyMemoryView_FromMemory(data ? static_cast<char*>(data) : &none, static_cast<Py_ssize_t>(bytes), PyBUF_WRITE)));
  }

  nb::object floats(void* data, std::size_t count, std::int32_t bytes) {
    return kept(of(data, count * static_cast<std::size_t>(bytes)).attr("cast")(bytes == 8 ? "d" : "f"));
  }

  nb::list of(const attune_chunk* parts, std::size_t count, bool on_device) {
    nb::list out;
    for (std::size_t i = 0; i < count; ++i)
      if (on_device) {
        out.append(nb::make_tuple(parts[i].peer, reinterpret_cast<std::uintptr_t>(parts[i].data), parts[i].bytes));
      } else {
        out.append(nb::make_tuple(parts[i].peer, of(parts[i].data, parts[i].bytes)));
      }
    return out;
  }

 private:
  nb::object kept(nb::object view) {
    if (!view) throw nb::python_error();
    all_.push_back(std::move(view));
    return all_.back();
  }

  std::vector<nb::object> all_{};
};

template <class Body>
std::int32_t guarded(void* user, const Body& body) {
  auto& self = *static_cast<Transport*>(user);
  const bool done = self.raised.guard([&] {
    Views views;
    body(self, views);
  });
  return !done;
}

std::int32_t exchanged(void* user, const attune_chunk* send, std::size_t n_send, const attune_chunk* receive,
                       std::size_t n_receive, void* stream) {
  return guarded(user, [&](Transport& self, Views& views) {
    called_back(self.exchange, nb::make_tuple(views.of(send, n_send, stream), views.of(receive, n_receive, stream),
                                              reinterpret_cast<std::uintptr_t>(stream)));
  });
}

std::int32_t summed(void* user, void* values, std::size_t count, std::int32_t bytes, void* stream) {
  return guarded(user, [&](Transport& self, Views& views) {
    const auto on = reinterpret_cast<std::uintptr_t>(stream);
    if (stream)
      called_back(self.sum, nb::make_tuple(nb::make_tuple(reinterpret_cast<std::uintptr_t>(values), count, bytes), on));
    else
      called_back(self.sum, nb::make_tuple(views.floats(values, count, bytes), on));
  });
}

void stopped(void* user) {
  guarded(user, [](Transport& self, Views&) { called_back(self.stop, nb::make_tuple()); });
}

}  // namespace

Transport::Transport(int own, int all, nb::object exchanges, nb::object sums, nb::object stops)
    : rank(own), count(all), exchange(std::move(exchanges)), sum(std::move(sums)), stop(std::move(stops)) {}

Transport::~Transport() {
  // May wait for exchanges on streams.
  const Released waiting;
  attune_nccl_free(&by_nccl);
}

attune_transport Transport::given() {
  if (by_nccl.exchange) return by_nccl;
  attune_transport out{};
  out.size = sizeof out;
  out.rank = rank, out.count = count, out.user = this;
  if (!exchange.is_none()) out.exchange = exchanged;
  if (!sum.is_none()) out.sum = summed;
  if (!stop.is_none()) out.stop = stopped;
  return out;
}

nb::bytes nccl_id() {
  char id[ATTUNE_NCCL_ID];
  check(attune_nccl_id(id));
  return nb::bytes(id, sizeof id);
}

Transport* nccl(const std::optional<nb::bytes>& id, std::uintptr_t communicator, const std::array<int, 3>& place,
                double seconds) {
  attune_nccl how{};
  how.size = sizeof how;
  how.rank = place[0], how.count = place[1], how.device = place[2];
  how.id = id ? id->c_str() : nullptr;
  how.communicator = reinterpret_cast<void*>(communicator);
  how.seconds = seconds;
  attune_transport made{};
  made.size = sizeof made;
  attune_error* error = nullptr;
  {
    const Released running;  // ranks wait for each other
    error = attune_nccl_new(&how, &made);
  }
  check(error);
  return new Transport(made);
}

}  // namespace attune::python
