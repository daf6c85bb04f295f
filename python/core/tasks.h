// python/core/tasks.h — the tasks of a call, run by a Python function that may keep `run` after the call
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "python/core/raised.h"

namespace attune::python {

/// C's task behind `run` of a parallel_for, valid during its call. Python function objects share it.
class Tasks {
 public:
  Tasks(attune_task task, void* run) : task_(task), run_(run) {}

  /// Needs the GIL. Throws an Error after the call has ended. The library refuses numbers of no remaining task.
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

  /// Call it without the GIL. Waits for tasks that have begun and lets no other begin.
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

/// Runs a call's tasks by loop(count, run).
inline void run_tasks(const nb::object& loop, std::int64_t count, const std::shared_ptr<Tasks>& tasks, Raised& raised) {
  raised.guard([&] {
    called_back(loop, nb::make_tuple(count, nb::cpp_function([tasks](std::int64_t i, std::int32_t worker) {
                                       tasks->one(i, worker);
                                     })));
  });
  tasks->end();
}

}  // namespace attune::python
