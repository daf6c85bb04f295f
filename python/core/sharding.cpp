// python/core/sharding.cpp — makes a Sharding from attentions and their calls, and answers queries about it
#include "python/core/sharding.h"

#include <nanobind/stl/string.h>

#include <memory>

#include "python/core/attention.h"
#include "python/core/call.h"
#include "python/core/named.h"

namespace attune::python {
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

std::string Sharding::explain() const {
  char* text = nullptr;
  check(attune_sharding_explain(handle, &text));
  return taken(text);
}

Sharding* sharding_of(nb::object with, const nb::list& layers, nb::handle how, nb::handle before) {
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<const attune_attention*> attentions;
  std::vector<const attune_call*> at;
  for (const nb::handle layer : layers) {
    const auto parts = nb::cast<nb::tuple>(layer);
    const auto& attention = nb::cast<const Attention&>(parts[0]);
    calls.push_back(std::make_unique<Call>(attention, ATTUNE_FORWARD));
    calls.back()->take(parts[1]);
    calls.back()->bind(nb::cast<nb::tuple>(parts[2]), nb::none(), nb::cast<nb::tuple>(parts[3]));
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
