// runtime/ranks/transport/transport.cpp — collective operations on a transport: comparing digests, adding up numbers
#include "runtime/ranks/transport/transport.h"

#include <cstring>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace attune::runtime::ranks {

namespace {

/// Sends the same bytes to every other rank, and receives the bytes of each.
void to_all(const Transport& with, std::span<const std::byte> own, std::span<std::byte> all, void* stream) {
  std::vector<Transport::Chunk> send, receive;
  for (int peer = 0; peer < with.count; ++peer) {
    std::byte* const theirs = all.data() + static_cast<std::size_t>(peer) * own.size();
    if (peer == with.rank) {
      std::memcpy(theirs, own.data(), own.size());
      continue;
    }
    send.push_back({peer, const_cast<std::byte*>(own.data()), own.size()});
    receive.push_back({peer, theirs, own.size()});
  }
  with.exchange(send, receive, stream);
}

}  // namespace

void compare(const Transport& with, const ir::Digest& digest, std::string_view what, void* stream) {
  if (with.count == 1 || !with.exchange) return;
  std::vector<ir::Digest> all(static_cast<std::size_t>(with.count));
  to_all(with, std::as_bytes(std::span(&digest, 1)), std::as_writable_bytes(std::span(all)), stream);
  std::vector<int> others;
  for (int peer = 0; peer < with.count; ++peer)
    if (all[static_cast<std::size_t>(peer)] != digest) others.push_back(peer);
  if (others.empty()) return;
  throw Error("ranks-differ", fmt::format("ranks do not agree on {}", what), {},
              fmt::format("rank {} has {}, and rank{} {} {} something else", with.rank, digest.hex().substr(0, 8),
                          others.size() > 1 ? "s" : "", fmt::join(others, ", "), others.size() > 1 ? "have" : "has"),
              "make it from the same attentions, data, lengths and choices on every rank");
}

void sum(const Transport& with, const Tensor& values, void* stream) {
  if (with.count == 1) return;
  if (with.sum) return with.sum(values, stream);
  const auto bytes = static_cast<std::size_t>(values.size()) * size_of(values.dtype);
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(with.count));
  to_all(with, {static_cast<const std::byte*>(values.data), bytes}, all, stream);
  const auto add = [&](auto* into) {
    const auto* from = reinterpret_cast<const std::remove_pointer_t<decltype(into)>*>(all.data());
    for (std::int64_t i = 0; i < values.size(); ++i) {
      double total = 0;
      for (int rank = 0; rank < with.count; ++rank) total += static_cast<double>(from[rank * values.size() + i]);
      into[i] = static_cast<std::remove_pointer_t<decltype(into)>>(total);
    }
  };
  values.dtype == DType::f64 ? add(static_cast<double*>(values.data)) : add(static_cast<float*>(values.data));
}

}  // namespace attune::runtime::ranks
