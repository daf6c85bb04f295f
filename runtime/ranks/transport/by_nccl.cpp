// runtime/ranks/transport/by_nccl.cpp — the functions of attune/ranks.h that make NCCL transports
#include <bit>

#include <fmt/format.h>

#include "runtime/machine/placed.h"
#include "runtime/ranks/transport/communicator.h"

namespace attune {
namespace {

template <class... A>
Transport transport_by(Line at, A... arguments) {
  return runtime::placed(at, [&] {
    const auto made = std::make_shared<runtime::ranks::Communicator>(arguments...);
    return Transport{.rank = made->rank(),
                     .count = made->count(),
                     .exchange = [made](std::span<const Transport::Chunk> send,
                                        std::span<const Transport::Chunk> receive,
                                        void* stream) { made->exchange(send, receive, stream); },
                     .stop = [made] { made->stop(); }};
  });
}

}  // namespace

std::array<std::byte, 128> nccl_id(Line at) {
  return runtime::placed(at, [] {
    using namespace runtime::ranks;
    const Nccl& nccl = nccl_to_open();
    NcclId id;
    if (const NcclResult result = nccl.ncclGetUniqueId(&id); result != NcclResult::success)
      throw nccl_error(nccl, nullptr, result, "ncclGetUniqueId");
    return std::bit_cast<std::array<std::byte, 128>>(id);
  });
}

Transport nccl(const std::array<std::byte, 128>& id, int rank, int count, int device, double seconds, Line at) {
  runtime::placed(at, [&] {
    if (count < 1 || rank < 0 || rank >= count)
      throw Error("ranks-count", fmt::format("there is no rank {} of {}", rank, count), {},
                  "ranks are numbered from 0 to one less than their count",
                  "pass this rank's number, and how many there are");
  });
  return transport_by(at, std::bit_cast<runtime::ranks::NcclId>(id), rank, count, device, seconds);
}

Transport nccl(void* communicator, int device, double seconds, Line at) {
  return transport_by(at, static_cast<runtime::ranks::NcclComm>(communicator), device, seconds);
}

}  // namespace attune
