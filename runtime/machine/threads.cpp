// runtime/machine/threads.cpp — work on several threads, as many as the system allows
#include "runtime/machine/threads.h"

#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>

#include "ir/stack.h"

namespace attune::runtime {
namespace {

thread_local constinit WorksFor for_what = WorksFor::call;

}  // namespace

WorksFor works_for() { return for_what; }
void works_for(WorksFor what) { for_what = what; }

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF}) sigdelset(&all, own);
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void on_threads(std::size_t most, const std::function<void()>& work) {
  std::mutex mutex;
  std::exception_ptr failure;
  const auto one = [&, what = for_what]() noexcept {
    for_what = what;
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    const SignalsBlocked blocked;
    while (others.size() + 1 < most) others.emplace_back(one);
  } catch (const std::system_error&) {
    // The machine starts no more: those that run, and this one, do the work.
  } catch (const std::bad_alloc&) {
  }
  one();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

void on_deep_stack(const std::function<void()>& work) {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  if (ir::stack_left() >= 2 * MiB) return work();
  struct Task {
    const std::function<void()>& work;
    std::exception_ptr failure;
  } task{work, nullptr};
  const auto run = [](void* given) -> void* {
    Task& mine = *static_cast<Task*>(given);
    try {
      mine.work();
    } catch (...) {
      mine.failure = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 8 * MiB);
  pthread_t thread;
  const SignalsBlocked blocked;
  const bool started = pthread_create(&thread, &attributes, run, &task) == 0;
  pthread_attr_destroy(&attributes);
  if (!started) return work();
  pthread_join(thread, nullptr);
  if (task.failure) std::rethrow_exception(task.failure);
}

}  // namespace attune::runtime
