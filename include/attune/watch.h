// include/attune/watch.h — callbacks that report what attune does: kernels made, calls run or waiting, choices
#pragma once

#include <attune/cxx20.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace attune::watch {

/// An attention went through the compiler. Its copies do not go through again.
struct Lowered {
  struct Step {
    std::string name;
    double seconds = 0;
    std::size_t nodes = 0;  ///< distinct nodes of all expressions after the step
  };
  std::string mod;  ///< digest of the expressions and the types they read: their name in the cache, facts and dumps
  std::vector<Step> steps;
  double seconds = 0;
};

/// A kernel was chosen for a call.
struct Chosen {
  struct Rejected {
    std::string kernel, why;
  };
  std::string mod, target, kernel;
  std::vector<std::string> notes;  ///< what decided the choice, and the kernels that were not candidates
  std::vector<Rejected> rejected;
};

/// This process got a kernel that it did not have.
struct Built {
  enum class From : std::uint8_t { compiler, disk, bundle };
  struct Phase {
    std::string name;
    double seconds = 0;
  };
  std::string mod;     ///< empty: a kernel that does not depend on the expressions
  std::string kernel;  ///< with its tile sizes, in the form that `attune bench --kernel` takes: NAME:m=128,n=96
  std::string target;  ///< sm_90a, avx512bf16
  From from = From::compiler;
  double seconds = 0;                          ///< time to find or make it
  std::vector<Phase> phases{};                 ///< GPU kernels: where a compiler's time went, in order
  std::size_t bytes = 0;                       ///< size of its code
  int registers = 0, spilled = 0, shared = 0;  ///< GPU kernels: registers per thread; bytes; bytes
  std::string flaw;                            ///< the reason why its code is slower than it should be, or empty
  std::string key;                             ///< its name in `attune cache` or `attune bundle`
  std::string tier{};  ///< "first": another kernel will take over from it; "last": that kernel; else empty
};

/// A call was computed or, on a device, enqueued on its stream.
struct Called {
  std::string call;  ///< forward or backward
  std::string mod, target, kernel;
  std::string dtype;  ///< of q
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, d = 0, dv = 0;
  bool packed = false;
  std::size_t workspace = 0;   ///< bytes
  double seconds = 0;          ///< host time, compiling included; a device may take longer
  const char* file = nullptr;  ///< where the call is written; null: unknown
  int line = 0;
};

/// A call has waited for its kernels for a second. Reported about ten times a second until calls no longer wait so
/// long, on a thread of attune's own, because the thread of the call waits.
struct Compiling {
  struct Kernel {
    std::string kernel;  ///< without its tile sizes
    double seconds = 0;  ///< how long its compiler has worked
  };
  std::vector<Kernel> kernels;  ///< compiled now, for this call or another one that waits or will come
  std::size_t done = 0;         ///< kernels whose compilers have ended since
  double seconds = 0;           ///< how long the call has waited; if several calls wait, the longest time
  bool over = false;            ///< true: the last one, which comes before the call goes on; `kernels` is empty
  std::string text;             ///< all of this as one line for people, without its end
};

/// Something worth knowing that is not a failure: a discarded cache entry, a folder that cannot be written, a callback
/// that threw.
struct Notice {
  enum class Of : std::uint8_t { cache, dump, verify, watch, check };
  Of of = Of::cache;
  std::string text;
};

/// Set the callbacks you want; leave the others empty.
///
/// A callback runs on the thread that caused the event, at the end of that call into attune, when attune holds no lock:
/// the callback may call attune itself. `compiling` alone runs on another thread, during the call. The call goes on
/// after it has returned, so it may not wait for that call; with it, a thread is started wherever a call compiles.
/// Several threads may run a callback at once. Work that attune does for a callback is reported to the other listeners,
/// not to the callback's own. If a callback throws, the exception is swallowed: the watched call is unaffected, and the
/// other listeners get a Notice.
struct Callbacks {
  std::function<void(const Lowered&)> lowered{};
  std::function<void(const Chosen&)> chosen{};
  std::function<void(const Built&)> built{};
  std::function<void(const Called&)> called{};
  std::function<void(const Notice&)> notice{};
  std::function<void(const Compiling&)> compiling{};
};

struct Listener;

/// Callbacks stay registered while this object lives.
class [[nodiscard]] Watching {
 public:
  Watching() = default;
  ~Watching() { stop(); }
  Watching(Watching&&) noexcept = default;
  Watching& operator=(Watching&& other) noexcept {
    if (this != &other) stop();
    listener_ = std::move(other.listener_);
    return *this;
  }
  /// When it returns, none of these callbacks is running or will run again. Called from within a callback, it does not
  /// wait for callbacks running on other threads.
  void stop() noexcept;

 private:
  friend Watching on(Callbacks callbacks);
  std::shared_ptr<Listener> listener_;
};

///   const auto watching = attune::watch::on({.built = [](const auto& b) { std::puts(b.kernel.c_str()); }});
Watching on(Callbacks callbacks);

}  // namespace attune::watch
