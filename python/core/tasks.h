// python/core/tasks.h — the tasks of a call, run by a Python function that may keep `run` after the call
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>

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
    --begun_;
    begun_.notify_all();
  }

  /// Call it without the GIL. Waits for tasks that have begun and lets no other begin.
  void end() {
    begun_ |= over;
    for (std::uint32_t now = begun_; now != over; now = begun_) begun_.wait(now);
  }

 private:
  bool begin() {
    for (std::uint32_t now = begun_; !(now & over);)
      if (begun_.compare_exchange_weak(now, now + 1)) return true;
    return false;
  }

  const attune_task task_;
  void* const run_;
  static constexpr std::uint32_t over = std::uint32_t{1} << 31;
  std::atomic<std::uint32_t> begun_{0};  ///< the tasks that run, and `over` at the end
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
