// python/core/gil.h — releases and takes the GIL, also on threads that outlive the interpreter
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// Blocks this thread forever. Python before 3.14 ends a daemon thread that takes the GIL after the interpreter has
/// ended, by unwinding its stack; C++ frames that may not throw would turn the unwinding into std::terminate.
[[noreturn]] inline void stay() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// How many threads are in a call without the GIL.
inline std::atomic<int> in_calls = 0;
/// The thread that ends the interpreter, from end_calls() on: it destroys objects, and no other thread begins a call.
inline std::atomic<std::thread::id> ending_thread{};

inline bool may_begin_call() {
  const std::thread::id ends = ending_thread;
  return ends == std::thread::id() || ends == std::this_thread::get_id();
}

/// Without the GIL while this lives.
class Released {
 public:
  /// `begins_call`: false where another thread has begun the call, and waits for this one.
  explicit Released(bool begins_call = true) : state_(PyEval_SaveThread()) {
    ++in_calls;
    if (!begins_call || may_begin_call()) return;
    --in_calls;
    stay();
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released() {
    --in_calls;
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      stay();
    }
  }

 private:
  PyThreadState* state_;
};

/// For atexit: waits up to 5 s for the calls of daemon threads, which use objects that are destroyed next, and lets
/// them begin no further call. Kernels that are being compiled report to watchers, which take the GIL.
inline void end_calls() {
  ending_thread = std::this_thread::get_id();
  PyThreadState* const state = PyEval_SaveThread();
  attune_cancel();
  for (int i = 0; i < 5000 && in_calls > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  PyEval_RestoreThread(state);
}

/// With the GIL while this lives, on any thread.
class Acquired {
 public:
  Acquired() : state_(taken()) {}
  Acquired(const Acquired&) = delete;
  Acquired& operator=(const Acquired&) = delete;
  ~Acquired() { PyGILState_Release(state_); }

 private:
  static PyGILState_STATE taken() {
    try {
      return PyGILState_Ensure();
    } catch (...) {
      stay();
    }
  }

  PyGILState_STATE state_;
};

}  // namespace attune::python
