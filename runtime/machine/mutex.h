// runtime/machine/mutex.h — what a forked child never finds half done: locks, values made once, work that a fork waits
// for
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace attune::runtime {

/// While one lives, a fork() on another thread waits, and so does a thread that makes its first one meanwhile: a child
/// has none of its parent's other threads, which would otherwise hold a lock there forever, or leave half of a change.
/// Its thread may therefore wait neither for what a forking thread may hold, such as Python's GIL, nor for a thread
/// that may want a NoFork, Mutex or Once of its own.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

/// As std::mutex; who holds it or waits for it has a NoFork. For objects that a child shares with its parent.
class Mutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
};

/// As std::condition_variable, for a Mutex. A child may wait for it and notify it, whoever waited in the parent.
class Condition {
 public:
  template <class Done>
  void wait(std::unique_lock<Mutex>& lock, const Done& done) {
    while (!done()) wait(lock);
  }
  void wait(std::unique_lock<Mutex>& lock);
  /// Returns when notified, or up to a millisecond after `limit`.
  void wait_for(std::unique_lock<Mutex>& lock, std::chrono::milliseconds limit);
  /// With the Mutex held.
  void notify_all();

 private:
  std::atomic<std::uint32_t> notified_{0};
};

/// A static value that is made at its first use and never destroyed. A fork waits while it is made: the guard of a
/// static local that a thread of the parent was making would stay locked in a child. Declare it constinit.
template <class T>
class Once {
 public:
  /// `make` returns the value; if it throws, the next call tries again.
  template <class Make>
  T& get(const Make& make) {
    if (T* const made = made_.load(std::memory_order_acquire)) return *made;
    const std::lock_guard lock(mutex_);
    if (!made_.load(std::memory_order_relaxed)) made_.store(new T(make()), std::memory_order_release);
    return *made_.load(std::memory_order_relaxed);
  }
  T& get() {
    return get([] { return T(); });
  }

 private:
  std::atomic<T*> made_{nullptr};
  Mutex mutex_;
};

/// A number that none of this process's ancestors has: it counts the forks that led to the process, from 1.
std::uint32_t process_number();

}  // namespace attune::runtime
