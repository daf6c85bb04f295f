// python/core/sharding.cpp — makes a Sharding from attentions and their calls, and answers queries about it; exchanges
// of ranks, called by C from any of its threads
#include "python/core/sharding.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "python/core/attention.h"
#include "python/core/call.h"
#include "python/core/named.h"

namespace attune::python {
namespace {

/// Memory of C, shown to a Python function while it runs. Views that the function keeps are empty afterwards.
class Views : Pinned {
 public:
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
  check(released([&] { return attune_nccl_new(&how, &made); }));  // ranks wait for each other
  return new Transport(made);
}

namespace {

constexpr NumberOf<attune_how> how_rows[] = {
    {"assignment", &attune_how::assignment},   {"travel", &attune_how::travel},
    {"groups", &attune_how::groups},           {"block", &attune_how::block},
    {"per_node", &attune_how::per_node},       {"own_gb_s", &attune_how::own_gb_s},
    {"node_gb_s", &attune_how::node_gb_s},     {"tflops", &attune_how::tflops},
    {"memory_gb_s", &attune_how::memory_gb_s}, {"latency_us", &attune_how::latency_us}};

}  // namespace

std::vector<std::pair<std::int64_t, std::int64_t>> Sharding::of(int rank, bool keys) const {
  std::size_t count = 0;
  check(attune_sharding_of(handle, rank, keys, nullptr, 0, &count));
  std::vector<attune_range> all(count);
  check(attune_sharding_of(handle, rank, keys, all.data(), all.size(), nullptr));
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (const attune_range& s : all) out.emplace_back(s.begin, s.end);
  return out;
}

nb::object Sharding::positions(int rank) const {
  std::size_t count = 0;
  check(attune_sharding_positions(handle, rank, nullptr, 0, &count));
  std::vector<std::int32_t> all(count);
  check(attune_sharding_positions(handle, rank, all.data(), all.size(), nullptr));
  return nb::steal(PyMemoryView_FromObject(nb::bytes(all.data(), all.size() * sizeof(std::int32_t)).ptr()))
      .attr("cast")("i");
}

std::size_t Sharding::received(int rank, std::size_t layer) const {
  std::size_t bytes = 0;
  check(attune_sharding_received(handle, rank, layer, &bytes));
  return bytes;
}

std::string Sharding::explain() const { return written(attune_sharding_explain, handle); }

Sharding* sharding_of(nb::object with, const nb::list& layers, nb::handle how, nb::handle before) {
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<const attune_attention*> attentions;
  std::vector<const attune_call*> at;
  for (const nb::handle layer : layers) {
    const auto parts = nb::cast<nb::tuple>(layer);
    const auto& attention = nb::cast<const Attention&>(parts[0]);
    calls.push_back(std::make_unique<Call>(attention, ATTUNE_FORWARD, parts[1], nb::cast<nb::tuple>(parts[2]),
                                           nb::none(), nb::cast<nb::tuple>(parts[3])));
    attentions.push_back(attention.attention);
    at.push_back(&calls.back()->call);
  }
  if (!before.is_none()) {
    const auto& sharded = nb::cast<const Sharding&>(before);
    return new Sharding(sharded.transport, [&](attune_sharding** into) {
      return attune_sharding_new(attentions.data(), at.data(), at.size(), nullptr, nullptr, sharded.handle, into);
    });
  }
  attune_how h{};
  h.size = sizeof h;
  set_named(how, how_rows, h);
  const attune_transport transport = nb::cast<Transport&>(with).given();
  return new Sharding(with, [&](attune_sharding** into) {
    return attune_sharding_new(attentions.data(), at.data(), at.size(), &transport, &h, nullptr, into);
  });
}

}  // namespace attune::python
