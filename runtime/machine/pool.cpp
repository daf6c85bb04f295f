// runtime/machine/pool.cpp — the threads of this process that help a caller with its tasks
#include "runtime/machine/parallel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <attune/error.h>
#include <pthread.h>
#include <unistd.h>

#include "runtime/machine/options.h"
#include "runtime/machine/threads.h"

namespace attune::runtime {
namespace {

// How long a thread spins before it sleeps. Waking one takes 30 µs (the median, two vCPUs of a Zen 4), so spinning for
// as long never costs more than twice the better of the two. A spinning thread starts within 1 µs.
constexpr std::chrono::microseconds patience{30};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class F>
bool spin(F until) {
  const auto end = std::chrono::steady_clock::now() + patience;
  do
    for (int i = 0; i < 32; ++i) {
      if (until()) return true;
      pause();
    }
  while (std::chrono::steady_clock::now() < end);
  return false;
}

/// One call of pool_run, on its caller's stack.
struct Job {
  const Task& task;
  std::int64_t count;
  int threads;
  std::atomic<std::int64_t> next{0};
  int joined = 1;               ///< workers that have a number, the caller first
  std::atomic<int> helping{0};  ///< how many of them still work, without the caller

  bool has_room() const { return joined < threads && next.load(std::memory_order_relaxed) < count; }
  bool take(int worker) {
    const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i < count) task(i, worker);
    return i < count;
  }
};

class Pool {
 public:
  explicit Pool(Pool* parents) : parents_(parents) {}
  void run(Job& job, const std::function<void()>& meanwhile);
  void stop();
  bool is_ours() const { return process_ == getpid(); }
  /// In a forked child, the parent's pool: memory without threads, kept so that it does not leak.
  Pool* parents() const { return parents_; }

 private:
  void grow(int helpers);
  void open(Job& job);
  void close(Job& job);
  void wait_for_helpers(const Job& job, const std::function<void()>& meanwhile);
  void refuse_in_child() const;
  void help();
  void rest(std::unique_lock<std::mutex>& lock);
  Job* neediest() const;
  int to_wake() const;
  void wake(int sleepers);

  const pid_t process_ = getpid();
  Pool* const parents_;
  const int cpus_ = usable_cpus();

  std::mutex mutex_;  ///< guards all below except the atomics
  std::condition_variable work_, done_;
  std::vector<std::thread> threads_;
  std::vector<Job*> jobs_;  ///< jobs that threads may join
  int helping_ = 0, spinning_ = 0, sleeping_ = 0, waiting_callers_ = 0;
  std::atomic<std::uint64_t> news_{0};  ///< counts events that may give work to a thread that found none
  std::atomic<bool> stopping_{false};
};

thread_local bool is_pool_thread = false;

void Pool::run(Job& job, const std::function<void()>& meanwhile) {
  open(job);
  while (job.take(0)) {
  }
  refuse_in_child();
  close(job);
  wait_for_helpers(job, meanwhile);
}

// Call with the lock held.
void Pool::grow(int helpers) {
  if (threads_.size() >= static_cast<std::size_t>(helpers)) return;
  const SignalsBlocked blocked;
  try {
    while (threads_.size() < static_cast<std::size_t>(helpers) && !stopping_)
      threads_.emplace_back([this, name = "attune-" + std::to_string(threads_.size() + 1)] {
        pthread_setname_np(pthread_self(), name.c_str());
        is_pool_thread = true;
        help();
      });
  } catch (const std::system_error&) {
    // The machine gives no more threads: the existing ones and the caller do the work.
  } catch (const std::bad_alloc&) {
  }
}

void Pool::open(Job& job) {
  std::unique_lock lock(mutex_);
  jobs_.push_back(&job);
  grow(job.threads - 1);
  ++news_;
  const int sleepers = to_wake();
  lock.unlock();
  wake(sleepers);
}

// No thread joins this job any more; and with one caller less at work, another job may have room.
void Pool::close(Job& job) {
  std::unique_lock lock(mutex_);
  std::erase(jobs_, &job);
  if (!neediest()) return;
  ++news_;
  const int sleepers = to_wake();
  lock.unlock();
  wake(sleepers);
}

void Pool::wait_for_helpers(const Job& job, const std::function<void()>& meanwhile) {
  const auto are_done = [&] { return job.helping.load(std::memory_order_acquire) == 0; };
  if (job.threads <= cpus_ ? spin(are_done) : are_done()) return;
  std::unique_lock lock(mutex_);
  ++waiting_callers_;
  while (!are_done()) {
    if (!meanwhile) {
      done_.wait(lock);
    } else if (done_.wait_for(lock, progress_pause) == std::cv_status::timeout) {
      lock.unlock();
      meanwhile();
      refuse_in_child();
      lock.lock();
    }
  }
  --waiting_callers_;
}

// A task or `meanwhile` forked, and this is the child: its helpers, and perhaps the thread that holds the lock, exist
// only in the parent.
void Pool::refuse_in_child() const {
  if (is_ours()) return;
  throw Error("fork-within-call", "the process was forked within a call, and this is the child", {},
              "other threads were working on the call, and the child does not have them",
              "fork outside of calls, or call exec or _exit in the child at once");
}

void Pool::help() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Job* job = neediest();
    if (!job) {
      rest(lock);
      continue;
    }
    const int worker = job->joined++;
    ++job->helping;
    ++helping_;
    const int sleepers = to_wake();
    lock.unlock();
    wake(sleepers);
    while (!stopping_ && job->take(worker)) {
    }
    // In a child that a task forked here there is nothing to return to: it ends with this, its only thread.
    if (!is_ours()) return;
    lock.lock();
    --helping_;
    // The last access to the job: without helpers, its caller may return.
    if (job->helping.fetch_sub(1, std::memory_order_acq_rel) == 1 && waiting_callers_ > 0) done_.notify_all();
  }
}

// Spins for a while, then sleeps until there is news. No more threads spin than CPUs are free.
void Pool::rest(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t seen = news_;
  const auto is_new = [&] { return news_.load(std::memory_order_acquire) != seen; };
  if (spinning_ + helping_ + 1 < cpus_) {
    ++spinning_;
    lock.unlock();
    spin(is_new);
    lock.lock();
    --spinning_;
  }
  ++sleeping_;
  work_.wait(lock, is_new);
  --sleeping_;
}

// Callers count as threads at work, so that many callers at once do not get all helpers on top.
Job* Pool::neediest() const {
  Job* best = nullptr;
  for (Job* job : jobs_) {
    const bool has_enough = static_cast<int>(jobs_.size()) + helping_ >= job->threads;
    if (!has_enough && job->has_room() && (!best || job->joined < best->joined)) best = job;
  }
  return best;
}

// Each thread that wakes up wakes two more, so that the last of many threads is up sooner than if one thread woke them
// all.
int Pool::to_wake() const { return sleeping_ > 0 && neediest() ? std::min(2, sleeping_) : 0; }

void Pool::wake(int sleepers) {
  for (; sleepers > 0; --sleepers) work_.notify_one();
}

void Pool::stop() {
  std::vector<std::thread> ending;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ++news_;
    ending.swap(threads_);
  }
  work_.notify_all();
  for (std::thread& thread : ending) thread.join();
}

// Not guarded by a lock or a static local: another thread could hold that when the process forks.
std::atomic<Pool*> current{nullptr};

Pool& pool() {
  Pool* known = current.load(std::memory_order_acquire);
  if (known && known->is_ours()) return *known;
  auto fresh = std::make_unique<Pool>(known);
  return current.compare_exchange_strong(known, fresh.get()) ? *fresh.release() : *known;
}

// A caller that comes after the end has begun works alone; one that is inside when it begins keeps the pool in memory.
std::atomic<bool> has_ended{false};
std::atomic<int> callers{0};

class Caller {
 public:
  Caller() { ++callers; }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() { --callers; }
};

/// Runs at exit, when threads of the user may be within calls, and at dlclose.
struct End {
  ~End() {
    has_ended = true;
    Pool* const known = current;
    if (!known || !known->is_ours() || is_pool_thread) return;
    known->stop();
    if (callers > 0) return;
    current = known->parents();
    delete known;
  }
} end;

}  // namespace

void pool_run(std::int64_t count, const Task& task, int threads, const std::function<void()>& meanwhile) {
  Job job{task, count, static_cast<int>(std::min<std::int64_t>(threads, count))};
  if (job.threads > 1)
    pool().run(job, meanwhile);
  else
    while (job.take(0)) {
    }
}

}  // namespace attune::runtime
