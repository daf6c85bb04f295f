// python/core/gil.h — takes and releases the GIL, also while the interpreter ends and on threads that outlive it
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// A base of what is neither copied nor moved.
struct Pinned {
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
};

/// Blocks this thread forever. Python before 3.14 ends a daemon thread that takes the GIL after the interpreter has
/// ended, by unwinding its stack; C++ frames that may not throw would turn the unwinding into std::terminate, and
/// destructors of Python objects need the GIL.
[[noreturn]] inline void stay() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// How many calls run, on all threads.
inline std::atomic<int> in_calls = 0;
/// The thread that ends the interpreter, from end_calls() on. It destroys objects, and may call.
inline std::atomic<std::thread::id> ending_thread{};
inline std::atomic<bool> interpreter_gone = false;

/// A call, while this lives; made with the GIL. Once the interpreter is ending, no other thread begins a call, because
/// Python may end that thread as soon as the call takes the GIL again.
class Entered : Pinned {
 public:
  Entered() {
    ++in_calls;
    const std::thread::id ends = ending_thread;
    if (ends == std::thread::id() || ends == std::this_thread::get_id()) return;
    --in_calls;
    PyEval_SaveThread();
    stay();
  }
  ~Entered() { --in_calls; }
};

/// Without the GIL while this lives.
class Released : Pinned {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      stay();
    }
  }

 private:
  PyThreadState* state_;
};

/// The result of `function`, which runs without the GIL.
template <class Function>
auto released(const Function& function) {
  const Released running;
  return function();
}

/// With the GIL while this lives, on any thread. False where Python no longer gives it: the interpreter is ending on
/// another thread, or has ended.
class Acquired : Pinned {
 public:
  Acquired() : has_(given()), state_(has_ ? taken() : PyGILState_UNLOCKED) {}
  ~Acquired() {
    if (has_) PyGILState_Release(state_);
  }
  explicit operator bool() const { return has_; }

 private:
  static bool given() {
    return Py_IsInitialized() || (ending_thread.load() == std::this_thread::get_id() && !interpreter_gone);
  }
  static PyGILState_STATE taken() {
    try {
      return PyGILState_Ensure();
    } catch (...) {
      stay();
    }
  }

  bool has_;
  PyGILState_STATE state_;
};

/// The result of a Python function that may take long. If Python ends this thread meanwhile, the frames of the caller
/// stay as they are.
inline nb::object called_back(nb::handle function, const nb::tuple& arguments) {
  PyObject* result = nullptr;
  try {
    result = PyObject_CallObject(function.ptr(), arguments.ptr());
  } catch (...) {
    stay();
  }
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

/// For atexit: waits up to 5 s for the calls of daemon threads, which use objects that are destroyed next, and lets
/// them begin no further call. Kernels that are being compiled report to watchers, which take the GIL.
inline void end_calls() {
  ending_thread = std::this_thread::get_id();
  const Released waiting;
  attune_cancel();
  using Clock = std::chrono::steady_clock;
  for (const auto until = Clock::now() + std::chrono::seconds(5); in_calls > 0 && Clock::now() < until;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// For Py_AtExit: stops the compilers that calls since end_calls() have started.
inline void end_compilers() {
  interpreter_gone = true;
  attune_cancel();
}

}  // namespace attune::python
