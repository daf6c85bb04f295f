// runtime/ranks/transport/transport.cpp — collective operations on a transport, and the transport of ranks that are
// threads of one process
#include "runtime/ranks/transport/transport.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/platform/memory.h"
#include "runtime/ranks/plan/local.h"

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

namespace attune {
namespace {

using runtime::cuda::Moment;

/// A call's stream, and the context that is current on its thread.
class OnDevice {
 public:
  explicit OnDevice(void* stream)
      : stream_(static_cast<runtime::cuda::cu::Stream>(stream)), context_(runtime::cuda::current_context()),
        began_(stream_) {}

  Moment now() const { return Moment(stream_); }
  void wait_for(const Moment& moment) const { moment.awaited_by(stream_); }
  /// Copies between this call's chunk and the peer's offered chunk, once the peer's stream has reached its call.
  void copy(const Transport::Chunk& from, const Transport::Chunk& to, const OnDevice& other) const {
    runtime::cuda::reach(other.context_);
    wait_for(other.began_);
    runtime::cuda::copy_runs(runs_of(from), runs_of(to), stream_);
  }

 private:
  static runtime::cuda::Runs runs_of(const Transport::Chunk& part) {
    return {.first = part.data, .bytes = part.bytes / part.runs, .count = part.runs, .stride = part.stride};
  }

  runtime::cuda::cu::Stream stream_;
  runtime::cuda::cu::Context context_;
  Moment began_;
};

/// The meeting point of the threads of one group. One side of each chunk offers its memory, and the other side takes
/// the offer and copies directly between the two. On the host the sender offers and the receiver copies. On devices the
/// receiver offers and the sender copies on its own stream, since that takes half as long to begin.
class Hub {
 public:
  Hub(int count, double seconds)
      : count_(count), seconds_(seconds), waiting_(static_cast<std::size_t>(count * count)) {}

  void exchange(int rank, std::span<const Transport::Chunk> send, std::span<const Transport::Chunk> receive,
                void* stream) {
    const std::span<const Transport::Chunk> offered = stream ? receive : send, taken = stream ? send : receive;
    std::optional<OnDevice> device;
    if (stream) device.emplace(stream);
    std::unique_lock lock(mutex_);
    // Even if this call throws, no other rank reads or writes its memory after it returns.
    Leave leave{*this, lock, {.left = offered.size(), .copying = 0, .device = device ? &*device : nullptr, .done = {}}};
    const auto until = Clock::now() +
                       std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
    require_going();
    for (const Transport::Chunk& part : offered) queue(rank, part.peer).push_back({&part, &leave.offer});
    changed_.notify_all();
    std::vector<Offered> copied;
    for (const Transport::Chunk& part : taken) {
      const Offered other = take(lock, until, rank, part, device ? &*device : nullptr);
      if (device)
        copied.push_back(other);
      else
        --other.of->left;
    }
    if (!copied.empty()) {
      const Moment here = device->now();
      for (const Offered& other : copied) {
        --other.of->left;
        if (other.of->done.empty() || !(other.of->done.back() == here)) other.of->done.push_back(here);
      }
      changed_.notify_all();
    }
    wait(lock, until, rank, first_peer(offered), [&] { return leave.offer.left == 0; });
    lock.unlock();
    for (const Moment& moment : leave.offer.done) device->wait_for(moment);
    lock.lock();
  }

  void stop(int rank) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    over_ = Error("ranks-timeout", fmt::format("rank {} has failed", rank), {}, "it reported its failure to the others",
                  "check its exception; then make new transports for all ranks");
    changed_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;
  /// The state of one call's offers: the number of chunks that no rank has copied yet, and the number that are being
  /// copied.
  struct Offer {
    std::size_t left = 0;
    int copying = 0;
    const OnDevice* device = nullptr;
    std::vector<Moment> done;  ///< the ends of the copies on other ranks' streams
  };
  struct Offered {
    const Transport::Chunk* part;
    Offer* of;
  };
  struct Leave {
    Hub& hub;
    std::unique_lock<std::mutex>& lock;
    Offer offer;
    ~Leave() {
      if (offer.left > 0)
        for (std::deque<Offered>& queue : hub.waiting_)
          std::erase_if(queue, [this](const Offered& o) { return o.of == &offer; });
      hub.changed_.wait(lock, [this] { return offer.copying == 0; });
    }
  };

  using Lock = std::unique_lock<std::mutex>;
  /// Waits for the peer's offer, and copies between the offer and the chunk, without holding the lock.
  Offered take(Lock& lock, Clock::time_point until, int rank, const Transport::Chunk& part, const OnDevice* device) {
    std::deque<Offered>& from = queue(part.peer, rank);
    wait(lock, until, rank, part.peer, [&] { return !from.empty(); });
    const Offered other = from.front();
    from.pop_front();
    ++other.of->copying;
    lock.unlock();
    const std::size_t theirs = other.part->bytes;
    const bool fits = theirs == part.bytes && other.part->runs == part.runs;
    if (fits && device)
      device->copy(part, *other.part, *other.of->device);
    else if (fits && part.bytes > 0)
      std::memcpy(part.data, other.part->data, part.bytes);
    lock.lock();
    --other.of->copying;
    changed_.notify_all();
    // The rank whose chunk does not fit is notified, since it waits for this one.
    if (!fits)
      fail(Error(
          "ranks-differ", fmt::format("ranks {} and {} are in different calls", part.peer, rank), {},
          device ? fmt::format("rank {} expects {} bytes where rank {} sends {}", part.peer, theirs, rank, part.bytes)
                 : fmt::format("rank {} sends {} bytes where rank {} expects {}", part.peer, theirs, rank, part.bytes),
          "make the same calls in the same order on every rank"));
    return other;
  }

  std::deque<Offered>& queue(int from, int to) {
    if (from < 0 || from >= count_ || to < 0 || to >= count_)
      throw Bug(fmt::format("rank {} sends to rank {} of {}", from, to, count_));
    return waiting_[static_cast<std::size_t>(from * count_ + to)];
  }
  static int first_peer(std::span<const Transport::Chunk> parts) { return parts.empty() ? 0 : parts.front().peer; }

  void require_going() const {
    if (over_) throw Error(*over_);
  }
  [[noreturn]] void fail(const Error& error) {
    if (!over_) over_ = error;
    changed_.notify_all();
    require_going();
    throw Bug("an exchange went on after its end");
  }

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point until, int rank, int peer, const Ready& ready) {
    if (!changed_.wait_until(lock, until, [&] { return ready() || over_; }))
      fail(Error("ranks-timeout", fmt::format("rank {} timed out waiting for rank {}", rank, peer), {},
                 fmt::format("nothing came within {} seconds", seconds_),
                 "make the same calls on every rank, or allow more time: threads(count, seconds)"));
    if (!ready()) require_going();
  }

  const int count_;
  const double seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Offered>> waiting_;  ///< by sender and receiver
  std::optional<Error> over_;                 ///< the Error that ended the group
};

}  // namespace

std::vector<Transport> threads(int count, double seconds) {
  runtime::ranks::check_count(count);
  const auto hub = std::make_shared<Hub>(count, seconds);
  std::vector<Transport> out;
  for (int rank = 0; rank < count; ++rank)
    out.push_back(
        {.rank = rank,
         .count = count,
         .exchange = [hub, rank](std::span<const Transport::Chunk> send, std::span<const Transport::Chunk> receive,
                                 void* stream) { hub->exchange(rank, send, receive, stream); },
         .stop = [hub, rank] { hub->stop(rank); }});
  return out;
}

}  // namespace attune
