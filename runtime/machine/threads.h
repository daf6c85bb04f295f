// runtime/machine/threads.h — work on several threads, as many as the system allows
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <signal.h>

namespace attune::runtime {

/// Signals are for the threads of the user; faults and profilers are for every thread. A thread that is started while
/// this lives inherits it.
class SignalsBlocked {
 public:
  SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked();

 private:
  sigset_t before_{};
};

/// What a thread works for: a call, a call that may come soon, or later calls, for which nobody waits. Threads of
/// on_threads() inherit it.
enum class WorksFor : std::uint8_t { call, early, later };
WorksFor works_for();
void works_for(WorksFor what);

/// Calls `work` on this thread and on at most `most` - 1 others at the same time, and returns when all calls have. If
/// the machine starts fewer threads, fewer call it: work takes its tasks from a counter. The first exception of a call
/// is thrown here.
void on_threads(std::size_t most, const std::function<void()>& work);

/// Calls `work` on this thread, or, if less than 2 MiB of its stack are left, on another thread with 8 MiB. Returns
/// when `work` has returned, and rethrows its exception. If no thread can be started, `work` is called on this thread.
void on_deep_stack(const std::function<void()>& work);

}  // namespace attune::runtime
