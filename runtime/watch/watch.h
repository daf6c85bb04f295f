// runtime/watch/watch.h — facts on their way to whoever listens: an atomic load where nobody does
#pragma once

#include <atomic>
#include <chrono>

#include <attune/watch.h>

namespace attune::runtime {

/// Bits of what someone wants to be told.
enum class Fact : unsigned { lowered = 1, chosen = 2, built = 4, called = 8, noted = 16 };

/// What all listeners together want.
struct Audience {
  static constexpr unsigned not_known = 1u << 31;  ///< the environment's listeners are not there yet
  static std::atomic<unsigned> facts;
  static unsigned begin();
};

/// Whether anybody listens. The first to ask has the listeners that the environment asks for set up: an Error where it
/// cannot be read.
inline bool wants(Fact fact) {
  unsigned wanted = Audience::facts.load(std::memory_order_relaxed);
  if (wanted & Audience::not_known) wanted = Audience::begin();
  return (wanted & static_cast<unsigned>(fact)) != 0;
}

/// While one lives on a thread, callbacks wait: locks may be held. The log does not wait.
class Telling {
 public:
  Telling();
  ~Telling();
  Telling(const Telling&) = delete;
  Telling& operator=(const Telling&) = delete;
};

void tell(watch::Lowered fact);
void tell(watch::Chosen fact);
void tell(watch::Built fact);
void tell(watch::Called fact);
void tell(watch::Noted fact);
inline void note(watch::Noted::Of of, std::string text) {
  if (wants(Fact::noted)) tell(watch::Noted{of, std::move(text)});
}

/// Called where facts are made, whatever is locked there: they do not throw and do not call attune.
void listen_at_once(watch::Callbacks callbacks);

/// What an engine says of a call, if asked.
struct Used {
  std::string target, kernel;
  std::size_t workspace = 0;
};

class Clock {
 public:
  std::chrono::nanoseconds took() const { return std::chrono::steady_clock::now() - start_; }
  double seconds() const { return std::chrono::duration<double>(took()).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace attune::runtime
