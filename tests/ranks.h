// tests/ranks.h — runs a function on every rank at once, each a thread, and collects what they throw
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <attune/error.h>
#include <attune/ranks.h>

namespace attune::tests {

/// Returns the Errors, in no order. Other exceptions end the test.
inline std::vector<Error> on_ranks(const std::vector<Transport>& all,
                                   const std::function<void(const Transport&)>& body) {
  std::vector<Error> errors;
  std::mutex mutex;
  std::vector<std::thread> running;
  for (const Transport& one : all)
    running.emplace_back([&, one] {
      try {
        body(one);
      } catch (const Error& e) {
        const std::lock_guard lock(mutex);
        errors.push_back(e);
      }
    });
  for (std::thread& t : running) t.join();
  return errors;
}

}  // namespace attune::tests
