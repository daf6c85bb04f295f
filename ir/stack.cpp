// ir/stack.cpp — how much of its stack a thread has left
#include "ir/stack.h"

#include <cstdint>
#include <limits>

#if defined(__linux__)
#include <pthread.h>
#endif

namespace attune::ir {
namespace {

struct Stack {
  std::uintptr_t lowest = 0, end = 0;
};

/// The stack of this thread; empty if the system does not report it.
Stack find_stack() {
  Stack found;
#if defined(__linux__)
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return found;
  void* lowest = nullptr;
  std::size_t size = 0, guard = 0;
  if (pthread_attr_getstack(&attributes, &lowest, &size) == 0 && pthread_attr_getguardsize(&attributes, &guard) == 0) {
    const auto begin = reinterpret_cast<std::uintptr_t>(lowest);
    // Some versions of glibc count the guard as part of the stack.
    found = {begin + (guard < size ? guard : 0), begin + size};
  }
  pthread_attr_destroy(&attributes);
#endif
  return found;
}

}  // namespace

std::size_t stack_left() {
  // Asked once for each thread: the main thread's is read from a file.
  thread_local const Stack stack = find_stack();
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  const bool within = here > stack.lowest && here < stack.end;  // a fiber's stack lies elsewhere
  return within ? here - stack.lowest : std::numeric_limits<std::size_t>::max();
}

}  // namespace attune::ir
