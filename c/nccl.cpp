// c/nccl.cpp — NCCL transports as an attune_transport, whose functions attune implements
#include <attune/error.h>
#include <attune/ranks.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "c/error.h"
#include "c/ranks.h"

namespace attune::c {
namespace {

/// The status that an exchange or a stop returns. Only a Sharding gets the Error itself: it calls the transport
/// directly, not through C.
template <class Body>
std::int32_t told_as_number(const Body& body) {
  attune_error* const error = guarded(body);
  attune_error_free(error);
  return error ? 1 : 0;
}

std::vector<Transport::Chunk> parts_of(const attune_chunk* from, std::size_t count) {
  std::vector<Transport::Chunk> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back({from[i].peer, from[i].data, from[i].bytes});
  return out;
}

std::int32_t exchange(void* user, const attune_chunk* send, std::size_t n_send, const attune_chunk* receive,
                      std::size_t n_receive, void* stream) {
  return told_as_number([&] {
    static_cast<const Transport*>(user)->exchange(parts_of(send, n_send), parts_of(receive, n_receive), stream);
  });
}
void stop(void* user) {
  told_as_number([&] { static_cast<const Transport*>(user)->stop(); });
}

Transport made_of(const attune_nccl& how) {
  const double seconds = how.seconds == 0 ? 60 : how.seconds;
  if ((how.id != nullptr) == (how.communicator != nullptr))
    throw Error("bad-choice", "attune_nccl_new takes an id or a communicator", {},
                how.id ? "both are given" : "neither is given", "pass one of them, and NULL for the other");
  if (how.communicator) return nccl(how.communicator, how.device, seconds, Line{});
  std::array<std::byte, ATTUNE_NCCL_ID> id;
  std::memcpy(id.data(), how.id, id.size());
  return nccl(id, how.rank, how.count, how.device, seconds, Line{});
}

}  // namespace

const Transport* nccl_of(const attune_transport& given) {
  return given.exchange == exchange ? static_cast<const Transport*>(given.user) : nullptr;
}

}  // namespace attune::c

using namespace attune;

attune_error* attune_nccl_id(void* id) {
  return c::guarded([&] {
    c::require(id, "attune_nccl_id", "id");
    const auto made = nccl_id(Line{});
    std::memcpy(id, made.data(), made.size());
  });
}

attune_error* attune_nccl_new(const attune_nccl* how, attune_transport* transport) {
  return c::guarded([&] {
    const attune_nccl from = c::given(how, "attune_nccl_new", "how");
    const std::uint32_t size = c::given(transport, "attune_nccl_new", "transport").size;
    auto made = std::make_unique<Transport>(c::made_of(from));
    attune_transport out{};
    out.size = size;
    out.rank = made->rank, out.count = made->count;
    out.exchange = c::exchange, out.stop = c::stop;
    out.user = made.release();
    std::memcpy(transport, &out, std::min<std::size_t>(size, sizeof out));
  });
}

void attune_nccl_free(attune_transport* transport) {
  if (!transport || !c::nccl_of(*transport)) return;
  delete static_cast<Transport*>(transport->user);
  transport->user = nullptr;
  transport->exchange = nullptr;
  transport->stop = nullptr;
}
