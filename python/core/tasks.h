// python/core/tasks.h — the tasks of a call, run by a function of Python that may keep what it was given
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "python/core/raised.h"

namespace attune::python {

/// What `run` of a parallel_for calls: C's task, as long as its call lasts. Function objects of Python share it.
class Tasks {
 public:
  Tasks(attune_task task, void* run) : task_(task), run_(run) {}

  /// With the GIL. An Error once the call is over; a number that is none of a task left is the library's to refuse.
  void one(std::int64_t i, std::int32_t worker) {
    if (!begin())
      refuse("executor-tasks", "`run` is called after its call", "its tasks went with the call",
             "return from parallel_for when all tasks are done");
    const Released running;
    task_(run_, i, worker);
    const std::lock_guard lock(mutex_);
    --running_;
    idle_.notify_all();
  }

  /// Without the GIL: waits for tasks that have begun; no other begins from now on.
  void end() {
    std::unique_lock lock(mutex_);
    over_ = true;
    idle_.wait(lock, [&] { return running_ == 0; });
  }

 private:
  bool begin() {
    const std::lock_guard lock(mutex_);
    running_ += !over_;
    return !over_;
  }

  const attune_task task_;
  void* const run_;
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
  bool over_ = false;
};

/// A call's tasks by loop(count, run).
inline void run_tasks(const nb::object& loop, std::int64_t count, const std::shared_ptr<Tasks>& tasks, Raised& raised) {
  raised.guard(
      [&] { loop(count, nb::cpp_function([tasks](std::int64_t i, std::int32_t worker) { tasks->one(i, worker); })); });
  tasks->end();
}

}  // namespace attune::python
