// tests/small_stack.h — a call on a thread with little stack
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>

#include <pthread.h>

namespace attune::tests {

/// Calls `work`, which must not throw, on a thread of its own with a stack of this many bytes, and waits for it.
inline void on_stack_of(std::size_t bytes, const std::function<void()>& work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, bytes);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    (*static_cast<const std::function<void()>*>(given))();
    return nullptr;
  };
  const int failed = pthread_create(&thread, &attributes, run, const_cast<void*>(static_cast<const void*>(&work)));
  pthread_attr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error("no thread can be started");
  pthread_join(thread, nullptr);
}

}  // namespace attune::tests
