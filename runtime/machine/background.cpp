// runtime/machine/background.cpp — work that other threads do early, or for later calls, one task after another; done
// at once by a thread that needs it
#include "runtime/machine/background.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "runtime/machine/mutex.h"
#include "runtime/machine/threads.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
namespace {

/// What is added to the niceness of the threads: a call that compiles now goes first where there are few cores.
constexpr int nicer_early = 5, nicer_spare = 10;

class Background {
 public:
  Background(int nicer, WorksFor what) : nicer_(nicer), what_(what) {}

  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    ++given_;
    if (!runs_) start();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    if (thread_.get_id() == std::this_thread::get_id()) return;
    ended_.wait(lock, [this, until = given_] { return done_ >= until; });
  }

  void drop() {
    const std::lock_guard lock(mutex_);
    drop_all();
  }

  void stop() {
    std::unique_lock lock(mutex_);
    drop_all();
    std::thread last = std::move(thread_);
    lock.unlock();
    if (last.joinable()) last.join();
  }

  bool is_ours() const { return process_ == getpid(); }
  /// In a forked child, the parent's: memory without a thread, kept so that it does not leak.
  Background* parents = nullptr;

 private:
  void start() {
    if (thread_.joinable()) thread_.join();  // it has ended, or is about to
    try {
      const SignalsBlocked blocked;
      thread_ = std::thread([this] { work(); });
      runs_ = true;
    } catch (const std::system_error&) {
      drop_all();
    } catch (const std::bad_alloc&) {
      drop_all();
    }
  }

  void drop_all() {
    done_ += tasks_.size();
    tasks_.clear();
    ended_.notify_all();
  }

  void work() {
    const auto thread = static_cast<id_t>(gettid());
    setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + nicer_);
    works_for(what_);
    std::unique_lock lock(mutex_);
    while (!tasks_.empty()) {
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      try {
        task();
      } catch (...) {
        // The call itself throws it again.
      }
      task = nullptr;
      lock.lock();
      ++done_;
      ended_.notify_all();
    }
    runs_ = false;
  }

  const pid_t process_ = getpid();
  const int nicer_;
  const WorksFor what_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t given_ = 0, done_ = 0;
  bool runs_ = false;  ///< the thread will look for another task
  std::thread thread_;
};

std::atomic<int> stops{0};

using Only = std::atomic<Background*>;
Only& early() {
  static Only only{nullptr};
  return only;
}
Only& spare() {
  static Only only{nullptr};
  return only;
}

/// This process's own; null if it has none.
Background* ours(const Only& only) {
  Background* const one = only;
  return one && one->is_ours() ? one : nullptr;
}

void give(Only& only, int nicer, WorksFor what, std::function<void()> task) {
  Background* now = only;
  while (!now || !now->is_ours()) {
    auto* const made = new Background(nicer, what);
    made->parents = now;
    if (!only.compare_exchange_strong(now, made)) {
      delete made;
      continue;
    }
    now = made;
    stop_background_at_exit();
  }
  now->add(std::move(task));
}

}  // namespace

void in_background(std::function<void()> task) { give(early(), nicer_early, WorksFor::early, std::move(task)); }
void in_spare_time(std::function<void()> task) { give(spare(), nicer_spare, WorksFor::later, std::move(task)); }

void stop_background_at_exit() { std::atexit(stop_background); }

void stop_background() {
  ++stops;
  // What runs may give further tasks to the other thread.
  if (Background* const one = ours(spare())) one->drop();
  if (Background* const one = ours(early())) one->stop();
  if (Background* const one = ours(spare())) one->stop();
  --stops;
}

bool stopping_background() { return stops > 0; }

void wait_for_background() {
  if (Background* const one = ours(early())) one->wait();
}
void wait_for_spare_time() {
  if (Background* const one = ours(spare())) one->wait();
}

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
