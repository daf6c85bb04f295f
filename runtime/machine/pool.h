// runtime/machine/pool.h — the threads of this process that help a caller with its tasks
#pragma once

#include <functional>

#include <attune/executor.h>

namespace attune::runtime {

/// Calls task(i, worker) once for each i in [0, count), handed out in this order, and returns when all are done. The
/// calling thread is worker 0; at most `threads` - 1 others help if they are free, each with its own number below
/// `threads`. Callers may run at the same time: together, callers included, they have no more threads at work than the
/// largest of their `threads`, unless the callers alone are more. Threads start when first needed and end with the
/// process or at dlclose; a forked child has its own.
/// Tasks must not throw, wait for each other, or call this. `meanwhile`, if any, is called on the calling thread every
/// progress_pause while it waits for the others.
void pool_run(std::int64_t count, const Task& task, int threads, const std::function<void()>& meanwhile = {});

}  // namespace attune::runtime
