// runtime/cpu/parallel.h — the tasks of a call on an executor's threads: numbers of workers, exceptions, progress
#pragma once

#include <limits>
#include <span>

#include <attune/executor.h>

#include "runtime/progress.h"

namespace attune::runtime {

/// How many workers there are to prepare for in a run of so many tasks: the numbers a task sees are below it.
int workers_for(std::int64_t count, const Executor& executor = {});
/// The same for runs of any number of tasks.
inline int most_workers(const Executor& executor) {
  return workers_for(std::numeric_limits<std::int64_t>::max(), executor);
}

/// Calls task(i, worker) once for each i in [0, count), the longest tasks first, and returns when all are done. Tasks
/// run with denormals taken for 0. Of the exceptions in tasks the first one is thrown here, and tasks that had not
/// begun are left out. Within a task another run stays on its thread. Progress is told on the calling thread, between
/// tasks and while it waits for attune's own threads; what it throws counts as a task's exception. `weights`: what each
/// task adds to it; none: all the same.
void run_tasks(std::int64_t count, const Task& task, const Executor& executor = {}, const Progress& progress = {},
               std::span<const std::int64_t> weights = {});

}  // namespace attune::runtime
