// tests/runtime/engines/cuda/front_ends.test.cpp — which program goes through NVRTC's front end next, and that none is
// stuck
#include "runtime/engines/cuda/front_ends.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engines/cuda/nvrtc.h"
#include "runtime/machine/background.h"
#include "runtime/machine/threads.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/nvrtc.h"

using namespace attune;
using runtime::WorksFor;
using namespace runtime::cuda;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

/// Programs that wait for their turns, each on a thread of its own.
class Programs {
 public:
  void add(std::string name, WorksFor what, Piece piece) {
    threads_.emplace_back([this, name = std::move(name), what, piece] {
      runtime::works_for(what);
      const Compiling as(piece);
      ++begun_;
      const Turn turn;
      const std::lock_guard lock(mutex_);
      order_.push_back(name);
    });
    // So that they wait in the order of their names.
    const bool begun = tests::comes_true([&] { return begun_ == static_cast<int>(threads_.size()); });
    REQUIRE(begun);
    std::this_thread::sleep_for(milliseconds(20));
  }
  std::vector<std::string> order() {
    for (std::thread& one : threads_) one.join();
    threads_.clear();
    return order_;
  }

 private:
  std::atomic<int> begun_ = 0;
  std::mutex mutex_;
  std::vector<std::string> order_;
  std::vector<std::thread> threads_;
};

/// On a busy machine a thread may be late by more than the second after which nobody waits: then it is tried again.
template <class F>
bool holds_once(F claim) {
  for (int i = 0; i < 5; ++i)
    if (claim()) return true;
  return false;
}

double seconds_since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

}  // namespace

TEST_CASE("of the programs that wait, the kernel of a call is next, and what later calls use is last", "[front_ends]") {
  CHECK(holds_once([] {
    Programs all;
    {
      const Turn first;
      all.add("skeleton", WorksFor::later, Piece::kernel);
      all.add("beside a backward", WorksFor::early, Piece::companion);
      all.add("beside a call", WorksFor::call, Piece::companion);
      all.add("kernel of a backward", WorksFor::early, Piece::kernel);
      all.add("kernel of a call", WorksFor::call, Piece::kernel);
    }
    return all.order() == std::vector<std::string>{"kernel of a call", "kernel of a backward", "beside a call",
                                                   "beside a backward", "skeleton"};
  }));
}

TEST_CASE("between the two programs of a kernel, only those before it go on", "[front_ends]") {
  CHECK(holds_once([] {
    Programs all;
    std::optional<Ahead> ahead;
    {
      runtime::works_for(WorksFor::early);
      const Compiling kernel(Piece::kernel);
      ahead.emplace();
      runtime::works_for(WorksFor::call);
    }
    all.add("beside a call", WorksFor::call, Piece::companion);
    all.add("kernel of a call", WorksFor::call, Piece::kernel);
    all.add("kernel of another backward", WorksFor::early, Piece::kernel);
    ahead->over();
    ahead->over();
    return all.order() == std::vector<std::string>{"kernel of a call", "kernel of another backward", "beside a call"};
  }));
}

TEST_CASE("a turn that does not end holds the others back for a second at most", "[front_ends]") {
  const Turn endless;
  const Clock::time_point begun = Clock::now();
  const Turn next;
  CHECK(seconds_since(begun) > 0.9);
}

TEST_CASE("a background that stops waits for no turn", "[front_ends]") {
  const Ahead call;
  CHECK(holds_once([] {
    std::atomic<bool> waits = false;
    runtime::in_background([&] {
      waits = true;
      const Turn turn;
    });
    if (!tests::comes_true([&] { return waits.load(); })) return false;
    const Clock::time_point begun = Clock::now();
    runtime::stop_background();
    return seconds_since(begun) < 0.8;
  }));
}

TEST_CASE("a forked child does not wait for the turns of its parent", "[front_ends]") {
  const Turn turn;
  const Ahead ahead;
  const auto does_not_wait = [] {
    const Clock::time_point begun = Clock::now();
    const Turn own;
    return seconds_since(begun) < 0.8 ? 0 : 1;
  };
  CHECK(holds_once([&] { return tests::in_child(does_not_wait) == 0; }));
}

TEST_CASE("NVRTC gives the turn back before the assembler, and a source that it refuses gives it back, too",
          "[front_ends][nvrtc]") {
  if (tests::skips_compiling()) return;
  const codegen::Source refused{
      .name = "refused", .text = "no C++", .options = {"--gpu-architecture=sm_90a"}, .symbol = {}};
  CHECK_THROWS_AS(compile(refused), Bug);
  CHECK(holds_once([] {
    const Clock::time_point begun = Clock::now();
    { const Turn next; }
    return seconds_since(begun) < 0.8;
  }));
  codegen::Source empty{.name = "empty",
                        .text = "extern \"C\" __global__ void empty() {}",
                        .options = {"--gpu-architecture=sm_90a"},
                        .symbol = "empty"};
  CHECK(holds_once([&] {
    std::optional<Ahead> kernel;
    {
      const Compiling as(Piece::kernel);
      kernel.emplace();
    }
    std::atomic<bool> done = false;
    std::string symbol;
    std::thread beside([&] {
      symbol = compile(empty).symbol;
      done = true;
    });
    std::this_thread::sleep_for(milliseconds(300));
    const bool waited = !done;
    kernel->over();
    beside.join();
    return waited && symbol == "empty";
  }));
}
