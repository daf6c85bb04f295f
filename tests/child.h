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
/// with clang 14 one run in three of the pool's tests waits for ever.
inline constexpr bool can_thread_in_child = !sanitized;

/// True, and said aloud, where a test cannot have what it needs.
inline bool skips_threads_in_child() {
  if (!can_thread_in_child) std::puts("[skip] sanitizers have no threads in a forked child");
  return !can_thread_in_child;
}

/// Seconds that a child has. A runner that ends a test still waits for all who hold the test's output.
inline constexpr unsigned child_seconds = 60;

/// fork(), with a child that ends in time whatever becomes of its parent.
inline pid_t fork_child() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) alarm(child_seconds);
  return child;
}

/// How a child ended; -1 when it is killed, as it is when it hangs.
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

/// The status of a child that does this.
template <class F>
int in_child(F work) {
  const pid_t child = fork_child();
  if (child == 0) _exit(work());
  return status_of(child);
}

}  // namespace attune::tests
