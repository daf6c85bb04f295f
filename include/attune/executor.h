// include/attune/executor.h — whose threads work on a call: attune's own, or those of your program
#pragma once

#include <cstdint>
#include <functional>

namespace attune {

/// One task of a call, by its number, on behalf of one worker.
using Task = std::function<void(std::int64_t task, int worker)>;

/// Left as it is: attune's own threads, as many as ATTUNE_THREADS says. They are started when first needed.
struct Executor {
  /// At most so many threads work on a call, the calling one among them. 0: ATTUNE_THREADS; your own says how many.
  int workers = 0;
  /// Your own: calls run(task, worker) once for each task in [0, count), best in this order, the longest come first.
  /// Returns when all are done. Workers are numbered from 0, below `workers`; one does one task at a time. Tasks do not
  /// throw, and may follow each other on one thread: none waits for another.
  std::function<void(std::int64_t count, const Task& run)> parallel_for{};
};

}  // namespace attune
