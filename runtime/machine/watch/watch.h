// runtime/machine/watch/watch.h — brings facts to listeners; without listeners a fact costs one atomic load
#pragma once

#include <atomic>
#include <chrono>

#include <attune/watch.h>

namespace attune::runtime {

/// Bits of the facts that a listener wants.
enum class Fact : unsigned { lowered = 1, chosen = 2, built = 4, called = 8, notice = 16, compiling = 32 };

/// The union of the facts that listeners want.
struct Audience {
  static constexpr unsigned not_known = 1u << 31;  ///< the environment's listeners are not set up yet
  static std::atomic<unsigned> facts;
  static unsigned begin();
};

/// True if any listener wants this fact. The first call sets up the listeners that the environment asks for; throws an
/// Error if the environment cannot be read.
inline bool wants(Fact fact) {
  unsigned wanted = Audience::facts.load(std::memory_order_relaxed);
  if (wanted & Audience::not_known) wanted = Audience::begin();
  return (wanted & static_cast<unsigned>(fact)) != 0;
}

/// While such an object lives on a thread, the thread's callbacks wait, because locks may be held. The log does not
/// wait.
class Recording {
 public:
  Recording() { ++alive_; }
  ~Recording() {
    if (--alive_ == 0 && waiting_) give_waiting();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// True if a fact of this thread has to wait until the last such object ends.
  static bool holds() {
    waiting_ = waiting_ || alive_ > 0;
    return alive_ > 0;
  }

 private:
  static void give_waiting();

  static constinit inline thread_local int alive_ = 0;
  static constinit inline thread_local bool waiting_ = false;
};

void record(watch::Lowered fact);
void record(watch::Chosen fact);
void record(watch::Built fact);
void record(watch::Called fact);
void record(watch::Notice fact);
void record(watch::Compiling fact);
inline void note(watch::Notice::Of of, std::string text) {
  if (wants(Fact::notice)) record(watch::Notice{of, std::move(text)});
}

/// Callbacks run where facts occur, whatever is locked there: they must not throw or call attune.
void listen_at_once(watch::Callbacks callbacks);

/// The facts that an engine reports about a call, if requested.
struct Used {
  std::string target, kernel;
  std::size_t workspace = 0;

  /// Adds another way in which a part of the call is computed, in the same memory.
  void add(std::string_view by, std::string_view way, std::size_t bytes) {
    target = by;
    kernel += (kernel.empty() ? "" : " and ") + std::string(way);
    workspace = std::max(workspace, bytes);
  }
};

class Clock {
 public:
  std::chrono::nanoseconds took() const { return std::chrono::steady_clock::now() - start_; }
  double seconds() const { return std::chrono::duration<double>(took()).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace attune::runtime
