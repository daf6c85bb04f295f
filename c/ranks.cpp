// c/ranks.cpp — ranks: transports made of C functions and of NCCL, and which rank holds which positions
#include "c/call.h"

#include <attune/attention.h>
#include <attune/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "c/error.h"

namespace attune::c {
namespace {

// NCCL transports, whose functions attune implements.

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

namespace {

/// Throws if a function of the transport returned a failure.
void check(const char* function, std::int32_t said) {
  if (said == 0) return;
  throw Error("ranks-transport", "this rank's transport has failed", {},
              fmt::format("`{}` returned {}", function, said),
              "check its error; then make new transports for all ranks");
}

/// C's chunks are contiguous: a chunk of n runs becomes n chunks.
std::vector<attune_chunk> parts_of(std::span<const Transport::Chunk> from) {
  std::vector<attune_chunk> out;
  for (const Transport::Chunk& part : from)
    for (std::size_t run = 0; run < part.runs; ++run)
      out.push_back({part.peer, 0, static_cast<std::byte*>(part.data) + run * part.stride, part.bytes / part.runs});
  return out;
}

Transport transport_of(const attune_transport* given) {
  const auto from = c::given(given, "attune_sharding_new", "with");
  if (const Transport* ours = nccl_of(from)) return *ours;
  Transport out{.rank = from.rank, .count = from.count};
  if (from.exchange)
    out.exchange = [from](std::span<const Transport::Chunk> send, std::span<const Transport::Chunk> receive,
                          void* stream) {
      const std::vector<attune_chunk> to = parts_of(send), by = parts_of(receive);
      check("exchange", from.exchange(from.user, to.data(), to.size(), by.data(), by.size(), stream));
    };
  if (from.sum)
    out.sum = [from](const Tensor& values, void* stream) {
      check("sum", from.sum(from.user, values.data, static_cast<std::size_t>(values.size()),
                            static_cast<std::int32_t>(size_of(values.dtype)), stream));
    };
  if (from.stop) out.stop = [from] { from.stop(from.user); };
  return out;
}

template <class Choice>
Choice choice_of(const char* name, std::int32_t value, Choice last) {
  if (value >= 0 && value <= static_cast<std::int32_t>(last)) return static_cast<Choice>(value);
  throw Error("bad-choice", fmt::format("`{}` cannot be {}", name, value), {},
              fmt::format("it is 0 to {}", static_cast<int>(last)), "take one of the names in attune/c.h");
}

static_assert(ATTUNE_CONTIGUOUS == static_cast<int>(Sharding::Assignment::contiguous) &&
              ATTUNE_ZIGZAG == static_cast<int>(Sharding::Assignment::zigzag) &&
              ATTUNE_GREEDY == static_cast<int>(Sharding::Assignment::greedy));
static_assert(ATTUNE_GATHER == static_cast<int>(Sharding::Travel::gather) &&
              ATTUNE_RING == static_cast<int>(Sharding::Travel::ring) &&
              ATTUNE_HEADS == static_cast<int>(Sharding::Travel::heads) &&
              ATTUNE_DECODE == static_cast<int>(Sharding::Travel::decode));

Sharding::How how_of(const attune_how* given) {
  Sharding::How out;
  if (!given) return out;
  const auto from = c::given(given, "attune_sharding_new", "how");
  out.assignment = choice_of("assignment", from.assignment, Sharding::Assignment::greedy);
  out.travel = choice_of("travel", from.travel, Sharding::Travel::decode);
  out.groups = from.groups;
  const auto take = [](auto value, auto& into) {
    if (value != 0) into = value;
  };
  take(from.block, out.block);
  take(from.per_node, out.per_node);
  take(from.own_gb_s, out.own_gb_s);
  take(from.node_gb_s, out.node_gb_s);
  take(from.tflops, out.tflops);
  take(from.memory_gb_s, out.memory_gb_s);
  take(from.latency_us, out.latency_us);
  return out;
}

/// Writes the first `room` elements.
template <class From, class Into, class As>
void give(const From& all, Into* into, std::size_t room, std::size_t* count, const As& as) {
  if (count) *count = all.size();
  if (!into) return;
  std::transform(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(room, all.size())), into, as);
}

}  // namespace
}  // namespace attune::c

using namespace attune;

attune_error* attune_sharding_new(const attune_attention* const* attentions, const attune_call* const* calls,
                                  size_t count, const attune_transport* with, const attune_how* how,
                                  const attune_sharding* before, attune_sharding** sharding) {
  return c::guarded([&] {
    constexpr const char* name = "attune_sharding_new";
    c::require(sharding, name, "sharding");
    if (count > 0) c::require(attentions, name, "attentions"), c::require(calls, name, "calls");
    std::vector<Attention> layers;
    std::vector<std::unique_ptr<const c::Call>> held;
    std::vector<Forward> wholes;
    for (std::size_t i = 0; i < count; ++i) {
      const c::Held attention(attentions[i], name);
      held.push_back(std::make_unique<const c::Call>(*attentions[i], calls[i], name));
      if (held.back()->backward)
        throw Error("bad-choice", "a Sharding is made for a backward", {}, "they are made for forward calls",
                    "set call.pass to ATTUNE_FORWARD");
      layers.push_back(attention->attention);
      wholes.push_back(held.back()->forward);
    }
    if (before && (with || how))
      throw Error("bad-choice", "a transport or choices are given together with `before`", {},
                  "those of `before` are kept, as its assignment is",
                  "pass NULL for `with` and `how`, or for `before`");
    const Line at = held.empty() ? Line{} : held.front()->at;
    *sharding = new attune_sharding{before ? Sharding(before->sharding, layers, wholes, at)
                                           : Sharding(layers, wholes, c::transport_of(with), c::how_of(how), at)};
  });
}

void attune_sharding_free(attune_sharding* sharding) { delete sharding; }

attune_error* attune_sharding_of(const attune_sharding* sharding, int32_t rank, int32_t keys, attune_range* ranges,
                                 size_t room, size_t* count) {
  return c::guarded([&] {
    c::require(sharding, "attune_sharding_of", "sharding");
    if (keys != 0 && keys != 1)
      throw Error("bad-choice", fmt::format("`keys` cannot be {}", keys), {},
                  "it is 0 (what the rank has of the queries) or 1 (of the keys)", "pass one of these");
    c::give(keys ? sharding->sharding.keys_of(rank) : sharding->sharding.of(rank), ranges, room, count,
            [](const Sharding::Range& s) {
              return attune_range{s.begin, s.end};
            });
  });
}

attune_error* attune_sharding_positions(const attune_sharding* sharding, int32_t rank, int32_t* positions, size_t room,
                                        size_t* count) {
  return c::guarded([&] {
    c::require(sharding, "attune_sharding_positions", "sharding");
    const Array<int> all = sharding->sharding.positions(rank);
    c::give(all.values(), positions, room, count, [](int position) { return position; });
  });
}

attune_error* attune_sharding_received(const attune_sharding* sharding, int32_t rank, size_t layer, size_t* bytes) {
  return c::guarded([&] {
    c::require(sharding, "attune_sharding_received", "sharding");
    c::require(bytes, "attune_sharding_received", "bytes");
    *bytes = sharding->sharding.received(rank, layer);
  });
}

attune_error* attune_sharding_explain(const attune_sharding* sharding, char** text) {
  return c::guarded([&] {
    c::require(sharding, "attune_sharding_explain", "sharding");
    c::require(text, "attune_sharding_explain", "text");
    *text = c::copied(sharding->sharding.explain());
  });
}

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
