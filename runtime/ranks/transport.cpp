// runtime/ranks/transport.cpp — ranks as threads of one process, and what is made of their exchanges
#include "runtime/ranks/transport.h"

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

namespace attune {
namespace {

/// Where the threads of one group meet. Nothing is copied in between: the receiver copies from the sender's memory.
class Hub {
 public:
  Hub(int count, double seconds)
      : count_(count), seconds_(seconds), waiting_(static_cast<std::size_t>(count * count)) {}

  void exchange(int rank, std::span<const Transport::Part> send, std::span<const Transport::Part> receive) {
    std::unique_lock lock(mutex_);
    // Whatever happens, no other rank reads this call's memory after it.
    Leave leave{*this, lock, {send.size()}};
    const auto until = Clock::now() +
                       std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
    require_going();
    for (const Transport::Part& part : send) queue(rank, part.peer).push_back({&part, &leave.sent});
    changed_.notify_all();
    for (const Transport::Part& part : receive) {
      std::deque<Sent>& from = queue(part.peer, rank);
      wait(lock, until, rank, part.peer, [&] { return !from.empty(); });
      const Sent sent = from.front();
      from.pop_front();
      ++sent.of->copying;
      lock.unlock();
      const bool fits = sent.part->bytes == part.bytes;
      if (fits && part.bytes > 0) std::memcpy(part.data, sent.part->data, part.bytes);
      const std::size_t theirs = sent.part->bytes;
      lock.lock();
      --sent.of->copying;
      // A sender whose part does not fit hears of it, since it waits for this one.
      if (fits) --sent.of->left;
      changed_.notify_all();
      if (!fits)
        fail(Error("ranks-differ", fmt::format("ranks {} and {} are not at the same call", part.peer, rank), {},
                   fmt::format("rank {} sends {} bytes where rank {} expects {}", part.peer, theirs, rank, part.bytes),
                   "make the same calls in the same order on every rank"));
    }
    wait(lock, until, rank, first_peer(send), [&] { return leave.sent.left == 0; });
  }

  void stop(int rank) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    over_ = Error("ranks-timeout", fmt::format("rank {} has failed", rank), {}, "it told the others that it gives up",
                  "see what it threw; then make new transports for all ranks");
    changed_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;
  /// How many parts of one call nobody has copied yet, and how many are being copied.
  struct Left {
    std::size_t left = 0;
    int copying = 0;
  };
  struct Sent {
    const Transport::Part* part;
    Left* of;
  };
  struct Leave {
    Hub& hub;
    std::unique_lock<std::mutex>& lock;
    Left sent;
    ~Leave() {
      if (sent.left > 0)
        for (std::deque<Sent>& queue : hub.waiting_)
          std::erase_if(queue, [this](const Sent& s) { return s.of == &sent; });
      hub.changed_.wait(lock, [this] { return sent.copying == 0; });
    }
  };

  std::deque<Sent>& queue(int from, int to) {
    if (from < 0 || from >= count_ || to < 0 || to >= count_)
      throw Bug(fmt::format("rank {} sends to rank {} of {}", from, to, count_));
    return waiting_[static_cast<std::size_t>(from * count_ + to)];
  }
  static int first_peer(std::span<const Transport::Part> parts) { return parts.empty() ? 0 : parts.front().peer; }

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
      fail(Error("ranks-timeout", fmt::format("rank {} has waited for rank {} in vain", rank, peer), {},
                 fmt::format("nothing came within {} seconds", seconds_),
                 "let every rank make the same calls, or allow more time: threads(count, seconds)"));
    if (!ready()) require_going();
  }

  const int count_;
  const double seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Sent>> waiting_;  ///< by sender and receiver
  std::optional<Error> over_;              ///< what ended it
};

}  // namespace

std::vector<Transport> threads(int count, double seconds) {
  if (count < 1)
    throw Error("ranks-count", fmt::format("there are {} ranks", count), {}, "somebody has to compute",
                "pass 1 or more");
  const auto hub = std::make_shared<Hub>(count, seconds);
  std::vector<Transport> out;
  for (int rank = 0; rank < count; ++rank)
    out.push_back(
        {.rank = rank,
         .count = count,
         .exchange = [hub, rank](std::span<const Transport::Part> send, std::span<const Transport::Part> receive,
                                 void*) { hub->exchange(rank, send, receive); },
         .stop = [hub, rank] { hub->stop(rank); }});
  return out;
}

namespace runtime::ranks {
namespace {

/// The same bytes to every other rank, and those of each.
void to_all(const Transport& with, std::span<const std::byte> own, std::span<std::byte> all, void* stream) {
  std::vector<Transport::Part> send, receive;
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
              "make them of the same attentions, data, lengths and choices on every rank");
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

}  // namespace runtime::ranks
}  // namespace attune
