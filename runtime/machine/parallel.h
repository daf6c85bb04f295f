// runtime/machine/parallel.h — a call's tasks on the threads of an executor or of this process: worker numbers,
// exceptions, progress
#pragma once

#include <functional>
#include <limits>
#include <span>

#include <attune/executor.h>

#include "runtime/machine/progress.h"

namespace attune::runtime {

/// Calls task(i, worker) once for each i in [0, count), handed out in this order, and returns when all are done. The
/// calling thread is worker 0; at most `threads` - 1 others help if they are free, each with its own number below
/// `threads`. Callers may run at the same time: together, callers included, they have no more threads at work than the
/// largest of their `threads`, unless the callers alone are more. Threads start when first needed and end with the
/// process or at dlclose; a forked child has its own.
/// Tasks must not throw, wait for each other, or call this. `meanwhile`, if any, is called on the calling thread every
/// progress_pause while it waits for the others.
void pool_run(std::int64_t count, const Task& task, int threads, const std::function<void()>& meanwhile = {});

/// How many workers to prepare for in a run of `count` tasks: the worker numbers that tasks see are below it.
int workers_for(std::int64_t count, const Executor& executor = {});
/// The same for runs of any number of tasks.
inline int most_workers(const Executor& executor) {
  return workers_for(std::numeric_limits<std::int64_t>::max(), executor);
}

/// Calls task(i, worker) once for each i in [0, count), the longest tasks first, and returns when all are done. Tasks
/// run with denormals flushed to 0. The first exception of a task is rethrown here, and tasks that had not begun are
/// skipped. A run within a task stays on that task's thread. Progress is reported on the calling thread, between tasks
/// and while it waits for attune's own threads; on a foreign executor after a task, on any of its threads, one at a
/// time. An exception thrown there counts as a task's. `weights`: what each task adds to the progress; none: all the
/// same.
void run_tasks(std::int64_t count, const Task& task, const Executor& executor = {}, const Progress& progress = {},
               std::span<const std::int64_t> weights = {});

}  // namespace attune::runtime
