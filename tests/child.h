// tests/child.h — forked children that neither outlive their test for long nor keep it waiting
#pragma once

#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/sanitizers.h"

namespace attune::tests {

/// TSan ends a child that starts a thread. Under ASan, a thread that does not exist in the child may hold the
/// allocator's lock: with clang 14 one run in three of the pool's tests hangs.
inline constexpr bool can_thread_in_child = !sanitized;

/// True, with a message, if a test cannot have the threads it needs.
inline bool skips_threads_in_child() {
  if (!can_thread_in_child) std::puts("[skip] sanitizers have no threads in a forked child");
  return !can_thread_in_child;
}

/// Time limit of a child in seconds. A runner that ends a test still waits for every process that holds the test's
/// output.
inline constexpr unsigned child_seconds = 60;

/// fork(); an alarm ends the child, whatever happens to its parent.
inline pid_t fork_child() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) alarm(child_seconds);
  return child;
}

/// A child's exit status; -1 if it hangs and is killed.
inline int status_of(pid_t child) {
  using namespace std::chrono;
  int status = 0;
  for (const auto end = steady_clock::now() + seconds(child_seconds); waitpid(child, &status, WNOHANG) == 0;
       std::this_thread::sleep_for(milliseconds(1)))
    if (steady_clock::now() > end) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// The exit status of a child that runs `work`.
template <class F>
int in_child(F work) {
  const pid_t child = fork_child();
  if (child == 0) _exit(work());
  return status_of(child);
}

}  // namespace attune::tests
