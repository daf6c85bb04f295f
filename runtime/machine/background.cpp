// runtime/machine/background.cpp — tasks that another thread does early, one after another
#include "runtime/machine/background.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

#include "runtime/machine/threads.h"

namespace attune::runtime {
namespace {

/// Added to the niceness of the thread: a call that compiles now goes first where there are few cores.
constexpr int nicer = 5;

class Background {
 public:
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
    setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + nicer);
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
  std::mutex mutex_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t given_ = 0, done_ = 0;
  bool runs_ = false;  ///< the thread will look for another task
  std::thread thread_;
};

std::atomic<Background*>& the_one() {
  static std::atomic<Background*> only{nullptr};
  return only;
}

Background& background() {
  Background* now = the_one();
  while (!now || !now->is_ours()) {
    auto* const made = new Background;
    made->parents = now;
    if (the_one().compare_exchange_strong(now, made)) return *made;
    delete made;
  }
  return *now;
}

}  // namespace

void in_background(std::function<void()> task) {
  // exit() calls the last registered function first. Registered again with each task, it runs before the destructors of
  // compilers that have been loaded since.
  std::atexit(stop_background);
  background().add(std::move(task));
}

void stop_background() {
  if (Background* const one = the_one(); one && one->is_ours()) one->stop();
}

void wait_for_background() {
  if (Background* const one = the_one(); one && one->is_ours()) one->wait();
}

}  // namespace attune::runtime
