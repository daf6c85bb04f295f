// runtime/machine/background.h — work that other threads do early, or for later calls, one task after another; done at
// once by a thread that needs it
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <unistd.h>

#include "runtime/machine/mutex.h"

namespace attune::runtime {

/// Runs `task` on another thread, after the tasks that were given before, and returns at once. A task does early what a
/// call would do itself: its exceptions are dropped, and so is the task if no thread can be started. A process that
/// ends waits for the task that runs, because its compiler must not be unloaded meanwhile, and drops the others.
void in_background(std::function<void()> task);
/// The same for what only later calls use: on a separate thread with an even lower priority, so that it slows nothing
/// that a call needs.
void in_spare_time(std::function<void()> task);

/// Returns when the tasks that were given to in_background() so far have ended.
void wait_for_background();
/// The same for in_spare_time().
void wait_for_spare_time();

/// Drops the tasks of both kinds that have not begun, and returns when those that run have ended.
void stop_background();
/// True while stop_background() waits: tasks should end early. Compilers that can be interrupted are.
bool stopping_background();
/// To be called after a library that tasks use was opened: exit() then stops the background before it unloads the
/// library, because it first calls what was registered last.
void stop_background_at_exit();

/// Work for later calls that is done once: in spare time, or at once by a thread that needs it.
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
