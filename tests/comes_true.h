// tests/comes_true.h — waits until another thread or process has done something, however slow a busy machine is
#pragma once

#include <chrono>
#include <thread>

namespace attune::tests {

/// Waits until `condition` holds, at most half a minute, which is less than a child process gets. Returns whether it
/// holds.
template <class F>
bool comes_true(F condition) {
  using namespace std::chrono_literals;
  const auto end = std::chrono::steady_clock::now() + 30s;
  for (int looks = 0; !condition(); ++looks) {
    if (std::chrono::steady_clock::now() > end) return false;
    // Most waits are short; a longer one leaves the CPU to others.
    looks < 1000 ? std::this_thread::yield() : std::this_thread::sleep_for(1ms);
  }
  return true;
}

}  // namespace attune::tests
