// examples/runtime/pool.h — the program's own threads, which attune's calls and the linear layers share
#pragma once

#include <attune/executor.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace runtime {

/// Threads that wait for tasks. The calling thread works too, as worker 0.
class Pool {
 public:
  explicit Pool(int workers) {
    for (int worker = 1; worker < workers; ++worker)
      threads_.emplace_back([this, worker] {
        for (std::uint32_t seen = 0;;) {
          round_.wait(seen);
          seen = round_;
          if (ended_) return;
          take(worker);
        }
      });
  }
  ~Pool() {
    ended_ = true;
    ++round_;
    round_.notify_all();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// task(i, worker) once for each i in [0, count); returns when all are done.
  void run(std::int64_t count, const attune::Task& task) {
    if (threads_.empty() || count < 2) {
      for (std::int64_t i = 0; i < count; ++i) task(i, 0);
      return;
    }
    task_ = &task;
    count_ = count;
    unfinished_ = count;
    // The round is part of the number, so that a thread which comes late cannot take a task of another round.
    free_ = (std::uint64_t{round_ + 1} << 32) + static_cast<std::uint64_t>(count);
    ++round_;
    round_.notify_all();
    take(0);
    for (std::int64_t left = unfinished_; left != 0; left = unfinished_) unfinished_.wait(left);
  }

  /// For attune's calls: they start no threads of their own.
  attune::Executor executor() {
    return {.workers = static_cast<int>(threads_.size()) + 1,
            .parallel_for = [this](std::int64_t count, const attune::Task& task) { run(count, task); }};
  }

 private:
  /// Runs tasks until none is free. A round waits for its tasks, not for threads: one that no core runs delays nothing.
  void take(int worker) {
    for (std::uint64_t seen = free_; static_cast<std::uint32_t>(seen) != 0;) {
      if (!free_.compare_exchange_weak(seen, seen - 1)) continue;
      (*task_)(count_ - static_cast<std::uint32_t>(seen), worker);
      if (--unfinished_ == 0) unfinished_.notify_one();
      seen = free_;
    }
  }

  const attune::Task* task_ = nullptr;
  std::int64_t count_ = 0;
  std::atomic<std::uint64_t> free_{0};  ///< the round, and below it, in 32 bits, how many tasks nobody has taken
  std::atomic<std::int64_t> unfinished_{0};
  std::atomic<std::uint32_t> round_{0};
  std::atomic<bool> ended_{false};
  std::vector<std::jthread> threads_;  // last: joined before anything that they read is gone
};

}  // namespace runtime
