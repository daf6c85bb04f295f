// runtime/machine/mutex.h — a mutex of which a forked child never finds the lock taken
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace attune::runtime {

/// As std::mutex, but fork() waits until no thread holds one: a child has none of its parent's other threads, which
/// would otherwise hold a lock there forever, or leave half of a change. The holder may therefore not wait for anything
/// that a forking thread may hold, such as Python's GIL. For objects that a child shares with its parent.
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

}  // namespace attune::runtime
