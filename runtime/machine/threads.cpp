// runtime/machine/threads.cpp — work on several threads, as many as the machine lets start
#include "runtime/machine/threads.h"

#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace attune::runtime {

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
  const auto one = [&]() noexcept {
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

}  // namespace attune::runtime
