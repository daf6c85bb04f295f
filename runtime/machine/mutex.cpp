// runtime/machine/mutex.cpp — how a fork waits for the threads that must not be cut short, and they for it
#include "runtime/machine/mutex.h"

#include <thread>

#include <pthread.h>

namespace attune::runtime {
namespace {

constinit std::atomic<std::uint32_t> holders{0};  ///< threads that have a NoFork
constinit std::atomic<std::uint32_t> forks{0};    ///< threads that are in fork()
constinit std::atomic<std::uint32_t> number{1};
constinit thread_local int held = 0;  ///< by this thread

void leave() {
  --holders;
  if (forks > 0) holders.notify_all();
}

void enter() {
  for (;;) {
    ++holders;
    const std::uint32_t forking = forks;
    if (forking == 0) return;
    leave();
    forks.wait(forking);
  }
}

void before_fork() {
  ++forks;
  const std::uint32_t own = held > 0 ? 1 : 0;
  for (std::uint32_t others = holders; others != own; others = holders) holders.wait(others);
}
void after_fork_in_parent() {
  --forks;
  forks.notify_all();
}
void after_fork_in_child() {
  holders = held > 0 ? 1 : 0;
  forks = 0;
  ++number;
}

[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

NoFork::NoFork() {
  if (held++ == 0) enter();
}
NoFork::~NoFork() {
  if (--held == 0) leave();
}

void Mutex::lock() {
  if (held++ == 0) enter();
  mutex_.lock();
}
void Mutex::unlock() {
  mutex_.unlock();
  if (--held == 0) leave();
}

void Condition::wait(std::unique_lock<Mutex>& lock) {
  const std::uint32_t seen = notified_;
  lock.unlock();
  notified_.wait(seen);
  lock.lock();
}
void Condition::wait_for(std::unique_lock<Mutex>& lock, std::chrono::milliseconds limit) {
  const std::uint32_t seen = notified_;
  const auto until = std::chrono::steady_clock::now() + limit;
  lock.unlock();
  while (notified_ == seen && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  lock.lock();
}
void Condition::notify_all() {
  ++notified_;
  notified_.notify_all();
}

std::uint32_t process_number() { return number.load(std::memory_order_relaxed); }

}  // namespace attune::runtime
