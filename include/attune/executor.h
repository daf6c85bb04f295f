// include/attune/executor.h — which threads work on a call: attune's own, or your program's
#pragma once

#include <attune/cxx20.h>

#include <cstdint>
#include <functional>

namespace attune {

/// Runs one task of a call, by its number, as one worker.
using Task = std::function<void(std::int64_t task, int worker)>;

/// By default, attune's own threads: ATTUNE_THREADS of them, started when first needed.
struct Executor {
  /// Upper bound on the threads that work on a call, including the calling one. 0: ATTUNE_THREADS; it must be set with
  /// your own parallel_for.
  int workers = 0;
  /// Your own loop: calls run(task, worker) once for each task in [0, count), best in this order since the longest come
  /// first, and returns when all are done. Workers are numbered from 0, below `workers`; each runs one task at a time.
  /// Tasks do not throw, and never wait for each other, so one thread may run them all.
  std::function<void(std::int64_t count, const Task& run)> parallel_for{};
};

}  // namespace attune
