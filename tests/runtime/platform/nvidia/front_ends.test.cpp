// tests/runtime/platform/nvidia/front_ends.test.cpp — which program goes through NVRTC's front end next, and that none
// is stuck
#include "runtime/platform/nvidia/nvrtc.h"

#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/machine/background.h"
#include "runtime/machine/threads.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/nvrtc.h"

using namespace attune;
using runtime::WorksFor;
using namespace runtime::cuda;
using std::chrono::milliseconds;

namespace {

/// While one lives, a turn waits longer than any other thread of a busy machine takes, so that events alone decide.
class Patient {
 public:
  Patient() : usual_(turns_wait_at_most(std::chrono::seconds(40))), gave_up_(turns().gave_up) {}
  ~Patient() { turns_wait_at_most(usual_); }
  Patient(const Patient&) = delete;
  Patient& operator=(const Patient&) = delete;

  bool gave_up() const { return turns().gave_up != gave_up_; }

 private:
  std::chrono::milliseconds usual_;
  std::size_t gave_up_;
};

/// Programs with threads of their own, which note the order of their turns.
class Programs {
 public:
  /// Returns once it waits for its turn.
  void add(const std::string& name, WorksFor what, Piece piece) {
    const int before = turns().waiting;
    begin(name, what, piece);
    const bool waits = tests::comes_true([&] { return turns().waiting > before; });
    REQUIRE(waits);
  }
  /// Returns once it has had its turn.
  void pass(const std::string& name, WorksFor what, Piece piece) {
    begin(name, what, piece);
    threads_.back().join();
    threads_.pop_back();
  }
  std::vector<std::string> order() {
    for (std::thread& one : threads_) one.join();
    threads_.clear();
    return order_;
  }

 private:
  void begin(const std::string& name, WorksFor what, Piece piece) {
    threads_.emplace_back([this, name, what, piece] {
      runtime::works_for(what);
      const Compiling as(piece);
      const Turn turn;
      const std::lock_guard lock(mutex_);
      order_.push_back(name);
    });
  }

  std::mutex mutex_;
  std::vector<std::string> order_;
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("of the programs that wait, the kernel of a call is next, and what later calls use is last", "[front_ends]") {
  const Patient patient;
  Programs all;
  {
    const Turn first;
    all.add("skeleton", WorksFor::later, Piece::kernel);
    all.add("companion of a backward", WorksFor::early, Piece::companion);
    all.add("companion of a call", WorksFor::call, Piece::companion);
    all.add("kernel of a backward", WorksFor::early, Piece::kernel);
    all.add("kernel of a call", WorksFor::call, Piece::kernel);
  }
  CHECK(all.order() == std::vector<std::string>{"kernel of a call", "kernel of a backward", "companion of a call",
                                                "companion of a backward", "skeleton"});
  CHECK_FALSE(patient.gave_up());
}

TEST_CASE("between the two programs of a kernel, only those before it go on", "[front_ends]") {
  const Patient patient;
  Programs all;
  std::optional<Ahead> ahead;
  {
    runtime::works_for(WorksFor::early);
    const Compiling kernel(Piece::kernel);
    ahead.emplace();
    runtime::works_for(WorksFor::call);
  }
  all.add("companion of a call", WorksFor::call, Piece::companion);
  all.pass("kernel of a call", WorksFor::call, Piece::kernel);
  all.pass("kernel of another backward", WorksFor::early, Piece::kernel);
  ahead->over();
  ahead->over();
  CHECK(all.order() ==
        std::vector<std::string>{"kernel of a call", "kernel of another backward", "companion of a call"});
  CHECK_FALSE(patient.gave_up());
}

TEST_CASE("a turn that does not end holds the others back for a second at most", "[front_ends]") {
  const milliseconds usual = turns_wait_at_most(milliseconds(50));
  CHECK(usual == milliseconds(1000));
  const std::size_t before = turns().gave_up;
  const Turn endless;
  const Turn next;
  CHECK(turns().gave_up == before + 1);
  turns_wait_at_most(usual);
}

TEST_CASE("a background that stops waits for no turn", "[front_ends]") {
  const Patient patient;
  const Ahead call;
  runtime::in_background([] { const Turn turn; });
  const bool waits = tests::comes_true([] { return turns().waiting == 1; });
  CHECK(waits);
  runtime::stop_background();
  CHECK(turns().waiting == 0);
  CHECK_FALSE(patient.gave_up());
}

TEST_CASE("a forked child does not wait for the turns of its parent", "[front_ends]") {
  const Patient patient;
  const Turn turn;
  const Ahead ahead;
  const auto gives_up = [&] {
    const Turn own;
    return patient.gave_up() ? 1 : 0;
  };
  CHECK(tests::in_child(gives_up) == 0);
}

TEST_CASE("NVRTC gives the turn back before the assembler, and a source that it refuses gives it back, too",
          "[front_ends][nvrtc]") {
  if (tests::skips_compiling()) return;
  const Patient patient;
  const codegen::Source refused{
      .name = "refused", .text = "no C++", .options = {"--gpu-architecture=sm_90a"}, .symbol = {}};
  CHECK_THROWS_AS(compile(refused), Bug);
  { const Turn next; }
  CHECK_FALSE(patient.gave_up());
  codegen::Source empty{.name = "empty",
                        .text = "extern \"C\" __global__ void empty() {}",
                        .options = {"--gpu-architecture=sm_90a"},
                        .symbol = "empty"};
  std::optional<Ahead> kernel;
  {
    const Compiling as(Piece::kernel);
    kernel.emplace();
  }
  std::string symbol;
  std::thread compiling([&] { symbol = compile(empty).symbol; });
  const bool waits = tests::comes_true([] { return turns().waiting == 1; });
  kernel->over();
  compiling.join();
  CHECK(waits);
  CHECK(symbol == "empty");
  CHECK_FALSE(patient.gave_up());
}
