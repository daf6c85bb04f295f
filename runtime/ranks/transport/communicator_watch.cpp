// runtime/ranks/transport/communicator_watch.cpp — exchanges on streams, watched until they are done or late
#include <utility>

#include "runtime/ranks/transport/communicator.h"

namespace attune::runtime::ranks {
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
