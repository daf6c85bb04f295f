// tests/runtime/cache/spoilt.h — tests that spoil what an engine computed, in a process of their own with ATTUNE_VERIFY
#pragma once

#include <cstdint>
#include <cstdlib>

#include <attune/attune.h>
#include <unistd.h>

#include "tests/child.h"

namespace attune::tests {

/// An executor's loop: the caller's, which may do to the results what no engine does.
inline void one_by_one(std::int64_t count, const Task& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i, 0);
}

/// How this program ends when it runs the tests of a tag alone, with so many rows looked at.
inline int status_of_spoilt(const char* tag, const char* rows) {
  return in_child([=] {
    setenv("ATTUNE_VERIFY", rows, 1);
    execl("/proc/self/exe", "spoilt", tag, "-w", "NoTests", "-o", "/dev/null", nullptr);
    return -1;
  });
}

}  // namespace attune::tests
