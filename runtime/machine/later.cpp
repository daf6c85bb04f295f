// runtime/machine/later.cpp — work for later calls that is done once: in spare time, or at once by a thread that needs
// it
#include "runtime/machine/later.h"

#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/machine/background.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
namespace {

/// Above 0 on a thread that runs callbacks of later work: two such callbacks would wait for each other.
thread_local int runs_callbacks = 0;

struct Started {
  Mutex mutex;
  std::vector<std::weak_ptr<Later>> all;
};
Started& started() {
  static constinit Once<Started> only;
  return only.get();
}

std::string reason_of(const std::function<std::string()>& work) {
  try {
    return work();
  } catch (const std::exception& failed) {
    const std::string_view what = failed.what();
    return std::string(what.substr(0, what.find('\n')).substr(0, 200));
  }
}

}  // namespace

void Later::start() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(started_, true)) return;
  }
  {
    const std::lock_guard lock(started().mutex);
    std::erase_if(started().all, [](const auto& one) { return one.expired(); });
    started().all.push_back(weak_from_this());
  }
  in_spare_time([self = shared_from_this()] { self->finish(); });
}

void Later::finish() {
  {
    const Recording recording;  // a callback may wait for this very work
    if (!do_or_wait()) return;
    ++runs_callbacks;
  }
  --runs_callbacks;
  const std::lock_guard lock(mutex_);
  state_ = State::reported;
  ended_.notify_all();
}

bool Later::do_or_wait() {
  std::unique_lock lock(mutex_);
  if (state_ == State::runs) {
    if (by_ == getpid()) ended_.wait(lock, [this] { return state_ != State::runs; });
    return false;
  }
  if (state_ != State::waits) return false;
  state_ = State::runs;
  by_ = getpid();
  lock.unlock();
  std::string why = reason_of(work_);
  lock.lock();
  why_failed_ = std::move(why);
  state_ = State::done;
  ended_.notify_all();
  const auto gone = std::exchange(work_, nullptr);
  lock.unlock();
  return true;
}

void Later::wait_for_callbacks() {
  std::unique_lock lock(mutex_);
  if (runs_callbacks == 0 && by_ == getpid()) ended_.wait(lock, [this] { return state_ == State::reported; });
}

bool Later::done() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::done || state_ == State::reported;
}

std::string Later::why_failed() const {
  const std::lock_guard lock(mutex_);
  return why_failed_;
}

void finish_later_work() {
  std::vector<std::weak_ptr<Later>> all;
  {
    const std::lock_guard lock(started().mutex);
    all = started().all;
  }
  for (const auto& one : all)
    if (const auto later = one.lock()) {
      later->finish();
      later->wait_for_callbacks();
    }
}

}  // namespace attune::runtime
