// tests/comes_true.h — waits for what another thread or process does, however late a busy machine lets it
#pragma once

#include <chrono>
#include <thread>

namespace attune::tests {

/// Waits until `condition` holds; false if it does not within half a minute, which is less than a child has.
template <class F>
bool comes_true(F condition) {
  using namespace std::chrono_literals;
  const auto end = std::chrono::steady_clock::now() + 30s;
  for (int looks = 0; !condition(); ++looks) {
    if (std::chrono::steady_clock::now() > end) return false;
    // Most waits are short; in a longer one the CPU is left to others.
    looks < 1000 ? std::this_thread::yield() : std::this_thread::sleep_for(1ms);
  }
  return true;
}

}  // namespace attune::tests
