// runtime/ranks/transport/communicator.cpp — one rank's exchanges by NCCL: on streams and for the host, each with a
// time limit
#include "runtime/ranks/transport/communicator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "runtime/machine/mutex.h"

namespace attune::runtime::ranks {
namespace {

using cuda::Current;
using cuda::Driver;
using cuda::driver;
namespace cu = cuda::cu;

/// Sleeps between two polls for something that another rank has to do: briefly at first, since most exchanges are
/// short.
void pause(int looks) {
  using namespace std::chrono_literals;
  if (looks < 100) return std::this_thread::yield();
  std::this_thread::sleep_for(looks < 1000 ? 20us : 1000us);
}

std::size_t bytes_of(Communicator::Parts parts) {
  std::size_t bytes = 0;
  for (const Transport::Chunk& part : parts) bytes += part.bytes;
  return bytes;
}

/// Calls `body` with the address and the bytes of each run that is not empty.
template <class Body>
void each_run(const Transport::Chunk& part, const Body& body) {
  if (part.bytes == 0) return;
  if (part.runs == 0 || part.bytes % part.runs != 0)
    throw Bug(fmt::format("a part of {} bytes has {} runs", part.bytes, part.runs));
  for (std::size_t run = 0; run < part.runs; ++run)
    body(static_cast<std::byte*>(part.data) + run * part.stride, part.bytes / part.runs);
}

/// The chunks, laid out one after another in a buffer.
std::vector<Transport::Chunk> packed(Communicator::Parts parts, std::byte*& at) {
  std::vector<Transport::Chunk> out;
  for (const Transport::Chunk& part : parts) {
    out.push_back({part.peer, at, part.bytes});
    at += part.bytes;
  }
  return out;
}

}  // namespace

std::shared_ptr<Communicator::Group> Communicator::group_of(const NcclId& id) {
  static constinit Mutex mutex;
  const std::lock_guard lock(mutex);
  static auto& groups = *new std::map<std::string, std::weak_ptr<Group>>;
  std::erase_if(groups, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Group>& known = groups[std::string(reinterpret_cast<const char*>(id.bytes), sizeof id.bytes)];
  std::shared_ptr<Group> group = known.lock();
  if (!group) known = group = std::make_shared<Group>();
  return group;
}

Communicator::Communicator(const NcclId& id, int rank, int count, int device, double seconds)
    : nccl_(nccl_to_open()), own_(true), rank_(rank), count_(count), device_(device), seconds_(seconds),
      group_(group_of(id)) {
  const Current current(device_);
  context_ = current.context();
  NcclConfig config;
  const NcclResult begun = nccl_.ncclCommInitRankConfig(&comm_, count, id, rank, &config);
  {
    const std::lock_guard lock(mutex_);
    check(begun, "ncclCommInitRankConfig");
  }
  wait_to_begin();
}

void Communicator::wait_to_begin() {
  const auto until = limit();
  for (int looks = 0;; ++looks) {
    const std::lock_guard lock(mutex_);
    const NcclResult now = state();
    check(now, "ncclCommInitRankConfig");
    if (now == NcclResult::success) return;
    if (Clock::now() > until) fail(late("making a communicator"));
    pause(looks);
  }
}

Communicator::Communicator(NcclComm comm, int device, double seconds)
    : nccl_(nccl_loaded()), own_(false), device_(device), seconds_(seconds), comm_(comm) {
  if (!comm)
    throw Error("nccl", "there is no communicator", {}, "the one that was given is null",
                "pass an ncclComm_t; a process group may make its own with its first collective");
  const Current current(device_);
  context_ = current.context();
  int theirs = -1;
  const std::lock_guard lock(mutex_);
  check(nccl_.ncclCommUserRank(comm, &rank_), "ncclCommUserRank");
  check(nccl_.ncclCommCount(comm, &count_), "ncclCommCount");
  check(nccl_.ncclCommCuDevice(comm, &theirs), "ncclCommCuDevice");
  if (theirs != device)
    throw Error("nccl", fmt::format("the communicator is not of cuda:{}", device), {},
                fmt::format("it is of cuda:{}", theirs), "pass the device that it was made on");
}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
  try {
    close();
  } catch (const std::exception&) {
    // At process exit the driver may already be unloaded, and NCCL's resources are then gone too.
  }
}

/// Waits for exchanges on streams to end, and releases everything.
void Communicator::close() {
  const Current current(context_);
  const Driver& d = driver();
  const auto until = limit();
  std::unique_lock lock(mutex_);
  if (own_ && comm_) {
    // Finalizing sends the data that NCCL sends after its kernels are done.
    NcclResult now = NcclResult::in_progress;
    bool asked = false;
    for (int looks = 0; comm_ && now == NcclResult::in_progress && Clock::now() < until; ++looks) {
      look_at_watched();
      if (!comm_) break;
      if (!watched_.empty() || (asked && (now = state()) == NcclResult::in_progress)) {
        lock.unlock();
        pause(looks);
        lock.lock();
      } else if (!asked) {
        asked = true;
        now = nccl_.ncclCommFinalize(comm_);
      }
    }
    if (comm_) leave(now == NcclResult::success ? nccl_.ncclCommDestroy : nccl_.ncclCommAbort);
  }
  const auto is_gone = [&] {
    if (!left_) return !over_;  // the caller's communicator, which stays
    const std::lock_guard one(left_->mutex);
    return left_->is_done;
  };
  if (!is_gone()) {
    // Running work may still use the buffers, and freeing them would wait for that work.
    static constinit Mutex mutex;
    const std::lock_guard one(mutex);
    static auto& abandoned = *new std::vector<cu::Address>;
    abandoned.push_back(room_);
    return;
  }
  for (const Watched& one : watched_) events_.insert(events_.end(), {one.begun, one.done});
  for (const cu::Event one : events_) d.cuEventDestroy.raw(one);
  if (stream_) d.cuStreamDestroy.raw(stream_);
  if (room_) d.cuMemFree.raw(room_);
}

Communicator::Clock::time_point Communicator::limit() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
}

Error Communicator::late(std::string_view what) const {
  return {"ranks-timeout",
          fmt::format("rank {} of {} timed out waiting for the others", rank_, count_),
          {},
          fmt::format("{} took longer than {} seconds", what, seconds_),
          "make the same calls on every rank, or allow more time: the `seconds` of nccl"};
}

void Communicator::require_going() {
  if (!over_ && group_)
    if (const int who = group_->stopped; who >= 0 && who != rank_)
      end(Error("ranks-timeout", fmt::format("rank {} has failed", who), {}, "it reported its failure to the others",
                "check its exception; then make new transports for all ranks"));
  if (over_) throw Error(*over_);
}

NcclResult Communicator::state() {
  NcclResult now = NcclResult::success;
  const NcclResult asked = nccl_.ncclCommGetAsyncError(comm_, &now);
  return asked == NcclResult::success ? now : asked;
}

/// Keeps the first Error. Kernels that wait for other ranks end when their communicator is aborted.
void Communicator::end(const Error& error) {
  if (!over_) over_ = error;
  if (own_ && comm_) leave(nccl_.ncclCommAbort);
  changed_.notify_all();
}

/// Destroys or aborts the communicator on a separate thread. NCCL stops its kernels at once, but then waits until every
/// rank of this host has left too; a rank that never leaves would block this one forever.
void Communicator::leave(NcclResult (*how)(NcclComm)) {
  using namespace std::chrono_literals;
  left_ = std::make_shared<Left>();
  const auto body = [left = left_, how, comm = std::exchange(comm_, nullptr), context = context_] {
    try {
      const Current current(context);
      how(comm);
    } catch (const std::exception&) {
      // The driver is unloaded, and NCCL's resources are gone with it.
    }
    const std::lock_guard lock(left->mutex);
    left->is_done = true;
    left->changed.notify_all();
  };
  try {
    std::thread(body).detach();
  } catch (const std::system_error&) {
    return body();  // no thread can be started: blocking is better than leaking
  }
  std::unique_lock lock(left_->mutex);
  left_->changed.wait_for(lock, 1s, [&] { return left_->is_done; });
}

void Communicator::fail(const Error& error) {
  end(error);
  throw Error(*over_);
}

void Communicator::check(NcclResult result, const char* function) {
  if (result != NcclResult::success && result != NcclResult::in_progress)
    fail(nccl_error(nccl_, comm_, result, function));
}

void Communicator::exchange(Parts send, Parts receive, void* stream) {
  for (const Parts parts : {send, receive})
    for (const Transport::Chunk& part : parts)
      if (part.peer < 0 || part.peer >= count_)
        throw Bug(fmt::format("rank {} exchanges with rank {} of {}", rank_, part.peer, count_));
  const std::lock_guard one(one_call_);
  const Current current(context_);
  wait([] { return true; });  // for work that the communicator's owner has begun, and for errors of earlier exchanges
  if (bytes_of(send) + bytes_of(receive) == 0) return;
  stream ? on_stream(send, receive, static_cast<cu::Stream>(stream)) : on_host(send, receive);
}

/// Starts one NCCL group of sends and receives.
void Communicator::start(Parts send, Parts receive, cu::Stream stream) {
  const std::lock_guard lock(mutex_);
  require_going();
  check(nccl_.ncclGroupStart(), "ncclGroupStart");
  NcclResult first = NcclResult::success;
  const char* function = nullptr;
  const auto take = [&](NcclResult result, const char* name) {
    if (first == NcclResult::success && result != NcclResult::in_progress) first = result, function = name;
  };
  for (const Transport::Chunk& part : send)
    each_run(part, [&](const std::byte* data, std::size_t bytes) {
      take(nccl_.ncclSend(data, bytes, NcclType::byte, part.peer, comm_, stream), "ncclSend");
    });
  for (const Transport::Chunk& part : receive)
    each_run(part, [&](std::byte* data, std::size_t bytes) {
      take(nccl_.ncclRecv(data, bytes, NcclType::byte, part.peer, comm_, stream), "ncclRecv");
    });
  // The group must end in any case: it belongs to this thread, not to the communicator.
  take(nccl_.ncclGroupEnd(), "ncclGroupEnd");
  check(first, function);
}

/// Waits until NCCL has nothing in progress and `done` returns true.
template <class Done>
void Communicator::wait(const Done& done) {
  const auto until = limit();
  for (int looks = 0;; ++looks) {
    {
      const std::lock_guard lock(mutex_);
      require_going();
      const NcclResult now = state();
      check(now, "an exchange");
      if (now == NcclResult::success && done()) return;
      if (Clock::now() > until) fail(late("an exchange"));
    }
    pause(looks);
  }
}

void Communicator::on_stream(Parts send, Parts receive, cu::Stream stream) {
  const Driver& d = driver();
  Watched watched;
  // Events in a graph do not report the state of the stream.
  const bool watch = own_ && !cuda::capturing(stream);
  if (watch) {
    const std::lock_guard lock(mutex_);
    look_at_watched();
    watched = {event(), event()};
    d.cuEventRecord(watched.begun, stream);
  }
  try {
    start(send, receive, stream);
    // The exchange is enqueued only after this wait: NCCL connects two ranks at their first exchange, and the other
    // rank must arrive for that.
    wait([] { return true; });
    if (!watch) return;
    d.cuEventRecord(watched.done, stream);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (watch) events_.insert(events_.end(), {watched.begun, watched.done});
    throw;
  }
  const std::lock_guard lock(mutex_);
  watched_.push_back(watched);
  if (!watcher_.joinable()) watcher_ = std::thread([this] { this->watch(); });
  changed_.notify_all();
}

void Communicator::on_host(Parts send, Parts receive) {
  const Driver& d = driver();
  const std::size_t sent = bytes_of(send), all = sent + bytes_of(receive);
  if (!stream_) d.cuStreamCreate(&stream_, cu::stream_non_blocking);
  if (all > room_bytes_) {
    if (room_) d.cuMemFree(std::exchange(room_, 0));
    room_bytes_ = 0;
    const std::size_t bytes = std::bit_ceil(std::max<std::size_t>(all, 64 << 10));
    d.cuMemAlloc(&room_, bytes);
    room_bytes_ = bytes;
  }
  packed_.resize(all);
  std::byte* at = packed_.data();
  for (const Transport::Chunk& part : send)
    each_run(part, [&](const std::byte* data, std::size_t bytes) {
      std::memcpy(at, data, bytes);
      at += bytes;
    });
  const auto host = reinterpret_cast<cu::Address>(packed_.data());
  if (sent > 0) d.cuMemcpyAsync(room_, host, sent, stream_);
  std::byte* there = reinterpret_cast<std::byte*>(room_);
  const auto to = packed(send, there), from = packed(receive, there);
  start(to, from, stream_);
  // Polls instead of synchronizing: if the other rank never arrives, a synchronization would never end. The copy back
  // would block in the same way.
  wait([&] {
    const cu::Result now = d.cuStreamQuery.raw(stream_);
    if (now != cu::Result::success && now != cu::Result::not_ready) cuda::refuse(now, d.cuStreamQuery.name);
    return now == cu::Result::success;
  });
  if (all == sent) return;
  d.cuMemcpyAsync(host + sent, room_ + sent, all - sent, stream_);
  d.cuStreamSynchronize(stream_);
  for (const Transport::Chunk& part : receive)
    each_run(part, [&](std::byte* data, std::size_t bytes) {
      std::memcpy(data, at, bytes);
      at += bytes;
    });
}

void Communicator::stop() {
  const std::lock_guard lock(mutex_);
  if (group_) {
    int none = -1;
    group_->stopped.compare_exchange_strong(none, rank_);
  }
  if (over_) return;
  const Current current(context_);
  end(Error("ranks-timeout", fmt::format("rank {} has failed", rank_), {}, "it reported its failure to the others",
            "check its exception; then make new transports for all ranks"));
}

namespace {

using cuda::Current;
using cuda::driver;
namespace cu = cuda::cu;

/// True while the stream has not reached this event; false on a failed device.
bool is_ahead(cu::Event event) { return driver().cuEventQuery.raw(event) == cu::Result::not_ready; }

}  // namespace

cu::Event Communicator::event() {
  cu::Event out = nullptr;
  if (events_.empty()) {
    driver().cuEventCreate(&out, cu::event_without_time);
  } else {
    out = events_.back();
    events_.pop_back();
  }
  return out;
}

/// Forgets exchanges that are done. An exchange that has begun and takes too long ends the communicator, and so does an
/// error that NCCL reports.
void Communicator::look_at_watched() {
  while (!watched_.empty() && !is_ahead(watched_.front().done)) {
    events_.insert(events_.end(), {watched_.front().begun, watched_.front().done});
    watched_.pop_front();
  }
  if (watched_.empty() || !comm_) return;
  Watched& first = watched_.front();
  const auto now = Clock::now();
  if (!first.since && !is_ahead(first.begun)) first.since = now;
  try {
    require_going();
    check(state(), "an exchange");
    if (first.since && now - *first.since > std::chrono::duration<double>(seconds_)) fail(late("an exchange"));
  } catch (const Error&) {
    // The error is kept for the next exchange.
  }
}

/// The thread that ends an exchange whose other rank is gone. A host thread that waits for the stream cannot end the
/// exchange.
void Communicator::watch() {
  using namespace std::chrono_literals;
  try {
    const Current current(context_);
    std::unique_lock lock(mutex_);
    while (!closing_ && !over_) {
      if (watched_.empty()) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, 10ms);
        look_at_watched();
      }
    }
  } catch (const std::exception&) {
    // Without a driver there is nothing to watch.
  }
}

}  // namespace attune::runtime::ranks
