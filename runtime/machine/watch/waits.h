// runtime/machine/watch/waits.h — who waits for compilers, and what they compile: reported while a call waits long
#pragma once

#include <chrono>
#include <list>
#include <string>

#include <attune/watch.h>

namespace attune::runtime {

/// A wait is reported once it has lasted `wait_reported`, and then every `wait_pause`.
inline constexpr std::chrono::milliseconds wait_reported{1000}, wait_pause{100};

class Waiting;

/// While one lives, a call waits for kernels on this thread. The outermost one of a thread counts: take it before any
/// lock, because its destructor waits for callbacks, which may call attune.
class Waits {
 public:
  Waits();
  ~Waits();
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

 private:
  Waiting* of_ = nullptr;  ///< null: not the outermost, or nobody waits for this thread
  std::list<std::chrono::steady_clock::time_point>::iterator begin_{};
};

/// While one lives, a compiler works on a kernel on this thread.
class CompilerWorks {
 public:
  explicit CompilerWorks(const std::string& kernel);
  ~CompilerWorks();
  CompilerWorks(const CompilerWorks&) = delete;
  CompilerWorks& operator=(const CompilerWorks&) = delete;

 private:
  struct Kernel;
  friend Waiting;
  Waiting* of_ = nullptr;
  std::list<Kernel>::iterator at_{};
};

/// As in watch::Compiling.
std::string text_of(const watch::Compiling& fact);

}  // namespace attune::runtime
