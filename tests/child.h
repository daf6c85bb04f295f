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

/// TSan ends a child that starts a thread. ASan's allocator may be locked by a thread that the child does not have:
/// with clang 14 one run in three of the pool's tests hangs.
inline constexpr bool can_thread_in_child = !sanitized;

/// True, with a message, where a child cannot start threads.
inline bool skips_threads_in_child() {
  if (!can_thread_in_child) std::puts("[skip] sanitizers have no threads in a forked child");
  return !can_thread_in_child;
}

/// A child's time limit in seconds. A runner that ends a test still waits for every process that holds its output.
inline constexpr unsigned child_seconds = 60;

/// fork(), with a child that ends within its limit whatever happens to its parent.
inline pid_t fork_child() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) alarm(child_seconds);
  return child;
}

/// A child's exit status; -1 if it was killed, as a hanging one is.
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

/// The status of a child that runs `f`.
template <class F>
int in_child(F work) {
  const pid_t child = fork_child();
  if (child == 0) _exit(work());
  return status_of(child);
}

}  // namespace attune::tests
