// runtime/engines/cuda/front_ends.cpp — the order in which the programs of a process go through NVRTC's front end
#include "runtime/engines/cuda/front_ends.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <span>
#include <utility>

#include <unistd.h>

#include "runtime/machine/background.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/threads.h"

namespace attune::runtime::cuda {
namespace {

constexpr int ranks = 5;

thread_local constinit Piece piece_of_thread = Piece::companion;

/// The lowest goes first.
int rank_of_thread() {
  const bool kernel = piece_of_thread == Piece::kernel;
  switch (works_for()) {
    case WorksFor::call: return kernel ? 0 : 2;
    case WorksFor::early: return kernel ? 1 : 3;
    case WorksFor::later: break;
  }
  return 4;
}

class Line {
 public:
  void ahead(int rank) {
    const std::lock_guard lock(mutex_);
    begin_in_child();
    ++ahead_[static_cast<std::size_t>(rank)];
  }
  void not_ahead(int rank) {
    const std::lock_guard lock(mutex_);
    --ahead_[static_cast<std::size_t>(rank)];
    changed_.notify_all();
  }

  void enter(int rank) {
    using namespace std::chrono_literals;
    std::unique_lock lock(mutex_);
    begin_in_child();
    const auto before = std::span(ahead_).first(static_cast<std::size_t>(rank));
    const auto is_next = [&] { return inside_ == 0 && std::ranges::all_of(before, [](int n) { return n == 0; }); };
    const auto until = std::chrono::steady_clock::now() + limit_;
    ++waiting_;
    while (!is_next() && !stopping_background()) {
      if (std::chrono::steady_clock::now() >= until) {
        ++gave_up_;
        break;
      }
      changed_.wait_for(lock, 20ms);  // in steps, since whoever stops the background does not know of this line
    }
    --waiting_;
    ++inside_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --inside_;
    changed_.notify_all();
  }
  Turns turns() {
    const std::lock_guard lock(mutex_);
    return {waiting_, gave_up_};
  }
  std::chrono::milliseconds wait_at_most(std::chrono::milliseconds limit) {
    const std::lock_guard lock(mutex_);
    return std::exchange(limit_, limit);
  }

 private:
  /// No thread of the parent continues in a forked child.
  void begin_in_child() {
    if (std::exchange(process_, getpid()) == getpid()) return;
    ahead_ = {};
    inside_ = waiting_ = 0;
  }

  Mutex mutex_;
  Condition changed_;
  pid_t process_ = getpid();
  std::array<int, ranks> ahead_{};  ///< by rank: those that wait, and those that hold others back
  int inside_ = 0, waiting_ = 0;
  std::size_t gave_up_ = 0;
  std::chrono::milliseconds limit_{1000};
};

Line& line() {
  static constinit Once<Line> only;
  return only.get();
}

}  // namespace

Compiling::Compiling(Piece piece) : before_(std::exchange(piece_of_thread, piece)) {}
Compiling::~Compiling() { piece_of_thread = before_; }

Ahead::Ahead() : rank_(rank_of_thread()) { line().ahead(rank_); }
void Ahead::over() {
  if (std::exchange(holds_, false)) line().not_ahead(rank_);
}

Turn::Turn() {
  const Ahead waiting;
  line().enter(rank_of_thread());
}
void Turn::over() {
  if (std::exchange(holds_, false)) line().leave();
}

Turns turns() { return line().turns(); }
std::chrono::milliseconds turns_wait_at_most(std::chrono::milliseconds limit) { return line().wait_at_most(limit); }

}  // namespace attune::runtime::cuda
