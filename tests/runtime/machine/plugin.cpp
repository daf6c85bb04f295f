// tests/runtime/machine/plugin.cpp — a shared library that contains attune, as a plug-in does
#include <atomic>

#include "runtime/machine/parallel.h"

/// The sum of the numbers below `count`, on `threads` threads.
extern "C" __attribute__((visibility("default"))) long plugin_sum(long count, int threads) {
  std::atomic<long> sum{0};
  attune::runtime::run_tasks(count, [&](std::int64_t i, int) { sum += i; }, {.workers = threads});
  return sum;
}
