// runtime/machine/later.h — work for later calls that is done once: in spare time, or at once by a thread that needs it
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <unistd.h>

#include "runtime/machine/mutex.h"

namespace attune::runtime {

class Later : public std::enable_shared_from_this<Later> {
 public:
  /// `work` returns the reason why it failed, if it did. What it throws counts as such a reason.
  explicit Later(std::function<std::string()> work) : work_(std::move(work)) {}
  Later(const Later&) = delete;
  Later& operator=(const Later&) = delete;

  /// Schedules it for spare time, unless that was done before.
  void start();
  /// Returns when it is done. Does it on this thread if no other thread has begun.
  void finish();

  /// After finish(): waits until the callbacks that report the work have run. A callback of later work does not wait.
  void wait_for_callbacks();

  bool done() const;
  std::string why_failed() const;  ///< empty: it has not failed, or is not done

 private:
  bool do_or_wait();  ///< true if this thread did it

  std::function<std::string()> work_;  ///< destroyed once it is done
  mutable Mutex mutex_;
  Condition ended_;
  enum class State { waits, runs, done, reported } state_ = State::waits;
  bool started_ = false;
  pid_t by_ = 0;  ///< the process that does it: in a forked child, no thread continues what the parent had begun
  std::string why_failed_;
};

/// Finishes all that were started so far, and waits until the callbacks that report them have run.
void finish_later_work();

}  // namespace attune::runtime
