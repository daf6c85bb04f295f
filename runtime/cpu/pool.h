// runtime/cpu/pool.h — the threads of this process that help a caller with its tasks
#pragma once

#include <functional>

#include <attune/executor.h>

namespace attune::runtime {

/// Calls task(i, worker) once for each i in [0, count), handed out in this order, and returns when all are done. The
/// calling thread is worker 0; at most `threads` - 1 others help, each with a number of its own below `threads`. They
/// help as far as they are free: other callers may run at the same time, and all of them together have no more threads
/// at work than the largest of their `threads`, besides the callers themselves. Threads start when first needed, end
/// with the process or at dlclose, and a forked child has its own.
/// Tasks do not throw, do not wait for each other, and do not call this. `meanwhile`, if any, is called on the calling
/// thread every progress_pause while it waits for the others.
void pool_run(std::int64_t count, const Task& task, int threads, const std::function<void()>& meanwhile = {});

}  // namespace attune::runtime
