// runtime/platform/emulated/runner.h — the scheduler of a launch, and the state that its parts share
#pragma once

#include <random>
#include <string>

#include "runtime/platform/emulated/grid.h"

namespace attune::runtime::emulated {

class Runner {
 public:
  explicit Runner(const LaunchOf& launch);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Ended run();

  // ---- for the functions that a kernel calls, on its threads' stacks ------------------------------------------------

  Lane& lane() const { return *now_; }
  Warp& warp() const { return *now_->warp; }
  Block& block() const { return *now_->warp->block; }

  /// Suspends this thread until another one calls wake() for it.
  void wait(const char* what, Site at);
  /// Lets others run; this thread stays runnable.
  void let_others_run();
  /// Lets others run, at random: other threads may be faster than this one.
  void may_let_others_run() {
    if (chance(4)) step_back();
  }
  void wake(Lane& lane);
  void let_next_start();
  /// Suspends this thread until the previous kernel has ended.
  void wait_for_previous();
  /// The running thread is done.
  [[noreturn]] void end_lane();
  /// Fails the launch: no thread continues.
  [[noreturn]] void fail(const std::string& what, Site at);
  /// The same, with this block in the message.
  [[noreturn]] void fail(const std::string& what, Site at, const Block& of);

  /// Remembers it for take_doubts().
  void doubt(const Conflict& conflict, Site at);

  /// Fifteen calls share one random number: drawing one for each took a twentieth of the time.
  bool chance(unsigned of_16) {
    if (thrown_ <= 1) thrown_ = dice_() >> 4 | 1ull << 60;
    const bool out = (thrown_ & 15) < of_16;
    thrown_ >>= 4;
    return out;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(dice_() % n); }

 private:
  friend void on_fiber();
  void begin_cluster(unsigned nth);
  void begin_block(Cluster& cluster, unsigned nth);
  void end_blocks();
  void list(Warp& warp);
  Lane* next();
  void go(Lane& to);
  bool arrive_some();
  void deadlock();
  void end_previous();
  void step_back();
  [[noreturn]] void stop(std::string why);
  [[noreturn]] void refuse() const;

  const LaunchOf& launch_;
  Fiber main_;
  Lane* now_ = nullptr;
  std::mt19937_64 dice_;
  std::uint64_t thrown_ = 0;  ///< four bits for each call that is left, below a sentinel bit
  unsigned mode_;             ///< which warp runs next: any, the first or the last
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<Warp*> ready_;
  std::string failed_;
  bool previous_ended_;
  std::vector<Lane*> waiting_for_previous_;
  Ended ended_;
  std::size_t quiet_ = 0;  ///< turns in which threads only polled for a change
};

/// The running launch; there is one at a time.
extern Runner* running;

// ---- parts of the machine -------------------------------------------------------------------------------------------

/// The machine that a kernel runs on.
Machine& machine();
// together.cpp
void fill_in_threads(Machine& machine);
/// After a lane of the warp has ended: the others need not wait for it.
void lane_has_ended(Runner& runner, Warp& warp);
// memory.cpp
void fill_in_memory(Machine& machine);
std::byte* shared_bytes(Runner& runner, Block& block, unsigned at, unsigned bytes, Site from);
inline Toucher toucher(const Lane& lane, const Block& block) {
  const Toucher out{static_cast<std::uint8_t>(lane.warp->index), static_cast<std::uint8_t>(lane.lane), 0};
  return {out.warp, out.lane, block.shadow->fences(out)};
}
/// Advances the warp's clock: others that synchronize now learn of its earlier accesses, not of later ones.
inline void tick(Warp& warp) { ++warp.known.clock[static_cast<std::size_t>(warp.index)]; }
/// The lane learns everything that `known` contains.
inline void hear(Lane& lane, const Known& known) {
  lane.warp->known.hear(known);
  lane.fences_heard = toucher(lane, *lane.warp->block).fences;
}
/// Fails if there is a conflict.
void require_none(Runner& runner, const Conflict& conflict, Site at);
// products.cpp
void fill_in_products(Machine& machine);
// tma.cpp
void fill_in_copies(Machine& machine);
void arrive(Runner& runner, Block& block, const Load& load);
void require_stores_read(Runner& runner, Lane& lane);
void finish_stores(Lane& lane);

}  // namespace attune::runtime::emulated
