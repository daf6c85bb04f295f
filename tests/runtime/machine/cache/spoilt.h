// tests/runtime/machine/cache/spoilt.h — tests that spoil an engine's results, in a separate process with ATTUNE_VERIFY
#pragma once

#include <cstdint>
#include <cstdlib>

#include <attune/attune.h>
#include <unistd.h>

#include "tests/child.h"

namespace attune::tests {

/// An executor's loop. It is the caller's, and so can change results as no engine does.
inline void one_by_one(std::int64_t count, const Task& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i, 0);
}

/// The exit status of this program when it runs only the tests of `tag`, with ATTUNE_VERIFY set to `rows`.
inline int status_of_spoilt(const char* tag, const char* rows) {
  return in_child([=] {
    setenv("ATTUNE_VERIFY", rows, 1);
    execl("/proc/self/exe", "spoilt", tag, "-w", "NoTests", "-o", "/dev/null", nullptr);
    return -1;
  });
}

}  // namespace attune::tests
