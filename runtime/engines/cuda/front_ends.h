// runtime/engines/cuda/front_ends.h — the order in which the programs of a process go through NVRTC's front end
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace attune::runtime::cuda {

/// NVRTC parses one program at a time and does not order those that wait: with five other programs, a mod's functions
/// took 0.50 s, of which 0.05 were their own (13.0, 16 idle cores). So attune orders them itself: first the kernel of a
/// call, then the kernel of a backward that may come, then companion kernels, and last what only later calls use.
enum class Piece : std::uint8_t { companion, kernel };

/// While one lives, this thread compiles programs of that piece of a call; without one, companions.
class Compiling {
 public:
  explicit Compiling(Piece piece);
  ~Compiling();
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  Piece before_;
};

/// Holds back the programs that rank after those of this thread until it is over, also between the two programs of a
/// spliced kernel.
class Ahead {
 public:
  Ahead();
  ~Ahead() { over(); }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  void over();  ///< by any one thread; once more does nothing

 private:
  const int rank_;
  bool holds_ = true;
};

/// A program's turn. It is an order and not a lock: none waits for more than a second, nor once the background stops.
/// Tests let them wait for longer, so that no busy machine changes the order, and see whether any gave up.
class Turn {
 public:
  Turn();  ///< waits for it
  ~Turn() { over(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void over();  ///< by any one thread; once more does nothing

 private:
  bool holds_ = true;
};

/// Turns of this process.
struct Turns {
  int waiting = 0;          ///< now
  std::size_t gave_up = 0;  ///< so far, since none came
};
Turns turns();
/// The most that a turn waits from now on; returns what it was before.
std::chrono::milliseconds turns_wait_at_most(std::chrono::milliseconds limit);

}  // namespace attune::runtime::cuda
