// runtime/machine/parallel.cpp — a call's tasks on an executor's threads: worker numbers, exceptions, progress
#include "runtime/machine/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <attune/error.h>

#include "runtime/machine/options.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace attune::runtime {
namespace {

/// Far keys under a steep score have denormal probabilities, and each multiply-add of one costs Intel's processors a
/// few hundred cycles: ALiBi in f32 ran at a third of causal attention's speed. Ranges allow for the flush: see
/// ir/range.h.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }  // flush results, denormals are zeros
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

thread_local bool within_task = false;

class Within {
 public:
  Within() : before_(within_task) { within_task = true; }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  ~Within() { within_task = before_; }

 private:
  bool before_;
};

class Run {
 public:
  /// `anywhere`: progress is reported on any thread, since the calling one may only wait.
  Run(std::int64_t count, const Task& task, const Progress& progress, std::span<const std::int64_t> weights,
      bool anywhere)
      : task_(task), weights_(weights), told_(progress != nullptr), anywhere_(anywhere),
        rate_(progress, std::max(1.0, weights.empty() ? static_cast<double>(count)
                                                      : std::accumulate(weights.begin(), weights.end(), 0.0))) {}

  void one(std::int64_t i, int worker) noexcept {
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        const Within within;
        const FlushDenormals flush;
        task_(i, worker);
      } catch (...) {
        fail(std::current_exception());
      }
    }
    if (!told_) return;
    done_.fetch_add(weights_.empty() ? 1 : weights_[static_cast<std::size_t>(i)], std::memory_order_relaxed);
    if (anywhere_ || std::this_thread::get_id() == caller_) tell();
  }

  /// A thread that comes while another one reports continues without reporting.
  void tell() noexcept {
    const std::unique_lock lock(telling_, std::try_to_lock);
    if (!lock || failed_.load(std::memory_order_relaxed)) return;
    try {
      rate_.at(static_cast<double>(done_.load(std::memory_order_relaxed)));
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void fail(std::exception_ptr why) noexcept {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(why);
    failed_.store(true, std::memory_order_relaxed);
  }

  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (first_) std::rethrow_exception(first_);
  }

 private:
  const Task& task_;
  std::span<const std::int64_t> weights_;
  const bool told_, anywhere_;
  Rate rate_;
  std::mutex telling_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr first_;
};

/// Checks that a user's executor does what <attune/executor.h> requires: a wrong number would give a wrong result, or a
/// write to another worker's memory.
class Foreign {
 public:
  Foreign(std::int64_t count, const Executor& executor, Run& run)
      : executor_(executor), run_(run), begun_(static_cast<std::size_t>(count)),
        busy_(static_cast<std::size_t>(executor.workers)) {}

  void operator()() {
    const auto count = static_cast<std::int64_t>(begun_.size());
    executor_.parallel_for(count, [this](std::int64_t task, int worker) { one(task, worker); });
    const std::int64_t ended = ended_.load(std::memory_order_acquire);
    if (ended < count)
      fail("executor-tasks", "the executor returned before all tasks were done",
           std::to_string(ended) + " of " + std::to_string(count) + " were done",
           "return from parallel_for after the last one");
    run_.rethrow();
  }

 private:
  void one(std::int64_t task, int worker) noexcept {
    if (task < 0 || task >= static_cast<std::int64_t>(begun_.size()))
      return fail("executor-tasks", "the executor ran task " + std::to_string(task),
                  "there are " + std::to_string(begun_.size()) + " tasks, counted from 0", "run each of them once");
    if (worker < 0 || worker >= executor_.workers)
      return fail("executor-workers", "the executor ran a task as worker " + std::to_string(worker),
                  "its workers are " + std::to_string(executor_.workers) + ", counted from 0",
                  "set `workers` to the number of threads");
    if (begun_[static_cast<std::size_t>(task)].exchange(true))
      return fail("executor-tasks", "the executor ran task " + std::to_string(task) + " twice", "", "run each once");
    std::atomic<bool>& busy = busy_[static_cast<std::size_t>(worker)];
    if (busy.exchange(true))
      return fail("executor-workers", "the executor ran two tasks at once as worker " + std::to_string(worker),
                  "each worker has one workspace", "number the threads of a run from 0, each with its own number");
    run_.one(task, worker);
    busy.store(false, std::memory_order_release);
    ended_.fetch_add(1, std::memory_order_acq_rel);
  }

  void fail(const char* code, std::string problem, std::string why, std::string fix) noexcept {
    run_.fail(std::make_exception_ptr(Error(code, std::move(problem), {}, std::move(why), std::move(fix))));
  }

  const Executor& executor_;
  Run& run_;
  std::vector<std::atomic<bool>> begun_, busy_;
  std::atomic<std::int64_t> ended_{0};
};

int workers(const Executor& executor) {
  if (executor.workers < (executor.parallel_for ? 1 : 0) || executor.workers > max_threads)
    throw Error("executor-workers", "an executor cannot have " + std::to_string(executor.workers) + " workers", {},
                "it has 1 to " + std::to_string(max_threads),
                "set `workers` to the number of threads that may take part");
  return executor.workers > 0 ? executor.workers : options().threads;
}

}  // namespace

int workers_for(std::int64_t count, const Executor& executor) {
  const int most = workers(executor);
  if (within_task || count <= 1) return 1;
  // The executor picks the numbers: of 8 workers, the last may get the only two tasks.
  return executor.parallel_for ? most : static_cast<int>(std::min<std::int64_t>(most, count));
}

void run_tasks(std::int64_t count, const Task& task, const Executor& executor, const Progress& progress,
               std::span<const std::int64_t> weights) {
  if (!weights.empty() && static_cast<std::int64_t>(weights.size()) != count) throw Bug("a task without its weight");
  const int most = workers_for(count, executor);
  const bool foreign = executor.parallel_for && count > 1 && !within_task;
  Run run(count, task, progress, weights, foreign);
  if (foreign) return Foreign(count, executor, run)();
  const Task one = [&run](std::int64_t i, int worker) { run.one(i, worker); };
  pool_run(count, one, most, progress ? [&run] { run.tell(); } : std::function<void()>{});
  run.rethrow();
}

}  // namespace attune::runtime
