// tests/bench/pool.bench.cpp — how long it takes to start and end a run of tasks, as lines of JSON: ./bench_pool
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "runtime/machine/parallel.h"

namespace {

using namespace attune;
using Clock = std::chrono::steady_clock;

template <class F>
void measure(const char* name, int repetitions, std::chrono::microseconds idle, F f) {
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    if (idle.count() > 0) std::this_thread::sleep_for(idle);
    const auto start = Clock::now();
    f();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::ranges::sort(times);
  std::printf("{\"bench\": \"%s\", \"repetitions\": %d, \"min_us\": %.2f, \"median_us\": %.2f, \"p90_us\": %.2f}\n",
              name, repetitions, times.front(), times[times.size() / 2], times[times.size() * 9 / 10]);
}

/// Two tasks that end once both have begun, which proves that a second thread runs.
void meet() {
  std::atomic<int> here{0};
  runtime::run_tasks(2,
                     [&](std::int64_t, int) {
                       for (++here; here.load(std::memory_order_acquire) < 2;) {
                       }
                     },
                     {.workers = 2});
}

}  // namespace

int main() {
  using namespace std::chrono_literals;
  const Task nothing = [](std::int64_t, int) {};
  measure("two empty tasks, one thread", 100'000, 0us, [&] { runtime::run_tasks(2, nothing, {.workers = 1}); });
  measure("two empty tasks, two threads", 100'000, 0us, [&] { runtime::run_tasks(2, nothing, {.workers = 2}); });
  measure("two tasks meet, one run after the other", 100'000, 0us, meet);
  measure("two tasks meet, after 1 ms of rest", 2'000, 1000us, meet);
  measure("1000 empty tasks, two threads", 10'000, 0us, [&] { runtime::run_tasks(1000, nothing, {.workers = 2}); });
}
