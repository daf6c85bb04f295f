// tests/runtime/machine/watch/waits.test.cpp — a call that waits for compilers is reported while it waits, and only
// then
#include "runtime/machine/watch/waits.h"

#include <attune/attune.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "runtime/machine/background.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"

using namespace attune;
using runtime::CompilerWorks, runtime::text_of, runtime::Waits;
using tests::comes_true;

namespace {

using std::chrono::milliseconds;
void pass(milliseconds time) { std::this_thread::sleep_for(time); }
using Clock = std::chrono::steady_clock;

/// Collects the facts about waits. Tests wait for these facts and not for a fixed time, which a busy machine may
/// exceed.
struct Facts {
  std::mutex mutex;
  std::vector<watch::Compiling> all;
  watch::Watching watching = watch::on({.compiling = [this](const watch::Compiling& fact) {
    const std::lock_guard lock(mutex);
    all.push_back(fact);
  }});

  std::vector<watch::Compiling> taken() {
    const std::lock_guard lock(mutex);
    return std::exchange(all, {});
  }
  /// Waits for that many facts for which `is` holds.
  template <class F>
  bool come(std::ptrdiff_t count, F is) {
    return comes_true([&] {
      const std::lock_guard lock(mutex);
      return std::ranges::count_if(all, is) >= count;
    });
  }
  bool come(std::ptrdiff_t count = 1) {
    return come(count, [](const watch::Compiling&) { return true; });
  }
};

std::size_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace

TEST_CASE("a call that waits a second for compilers is reported until it goes on", "[waits]") {
  Facts facts;
  double before_second = 0;  // seconds from before the wait until its second compiler works
  {
    const auto begin = Clock::now();
    const Waits waits;
    { const CompilerWorks first("forward-f32"); }
    const CompilerWorks works("backward-f32");
    before_second = std::chrono::duration<double>(Clock::now() - begin).count();
    CHECK(facts.come(2));
  }
  const std::vector<watch::Compiling> said = facts.taken();
  REQUIRE(said.size() >= 3);
  CHECK(said[0].seconds >= 1);
  REQUIRE(said[0].kernels.size() == 1);
  CHECK(said[0].kernels[0].kernel == "backward-f32");
  CHECK(said[0].kernels[0].seconds >= 1 - before_second);
  CHECK(said[0].done == 1);
  CHECK(said[0].text == fmt::format("attune compiles backward-f32 after 1 other: {:.1f} s", said[0].seconds));
  CHECK(!said[0].over);
  CHECK(said[1].seconds > said[0].seconds);
  CHECK(said.back().over);
  CHECK(said.back().kernels.empty());
  CHECK(std::ranges::count_if(said, &watch::Compiling::over) == 1);
  pass(milliseconds(150));
  CHECK(facts.taken().empty());
}

TEST_CASE("a short wait is not reported, and without a listener no thread is started for one", "[waits]") {
  const std::size_t before = threads();
  {
    const Waits waits;
    const CompilerWorks works("forward-f32");
    CHECK(threads() == before);
  }
  Facts facts;
  // A busy machine may draw out a wait until it is none that is short.
  bool was_short = false;
  for (int i = 0; i < 20 && !was_short; ++i) {
    const auto begin = Clock::now();
    {
      const Waits waits;
      CHECK(threads() == before);  // something is waited for, but no compiler
      const CompilerWorks works("forward-f32");
      CHECK(threads() == before + 1);
      pass(milliseconds(50));
    }
    was_short = Clock::now() - begin < runtime::wait_reported;
    // A thread that has ended is listed a little longer.
    CHECK(comes_true([&] { return threads() == before; }));
    const std::vector<watch::Compiling> said = facts.taken();
    if (was_short) CHECK(said.empty());
  }
  CHECK(was_short);
}

TEST_CASE("waits of several threads are one report, and who goes on first is not waited for", "[waits]") {
  Facts facts;
  std::promise<void> begun, long_enough;
  std::thread other([&, may = long_enough.get_future().share()] {
    const Waits waits;
    const CompilerWorks works("backward-f32");
    begun.set_value();
    may.wait();
  });
  begun.get_future().wait();
  {
    const Waits waits;
    const CompilerWorks works("forward-f32");
    CHECK(facts.come(1, [](const watch::Compiling& fact) { return fact.kernels.size() == 2; }));
  }
  CHECK(facts.come(1, [](const watch::Compiling& fact) { return fact.kernels.size() == 1 && fact.done == 1; }));
  const std::vector<watch::Compiling> both = facts.taken();
  long_enough.set_value();
  other.join();
  const std::vector<watch::Compiling> last = facts.taken();
  REQUIRE(both.size() >= 2);
  CHECK(both.back().text == fmt::format("attune compiles backward-f32 after 1 other: {:.1f} s", both.back().seconds));
  CHECK(std::ranges::count_if(both, &watch::Compiling::over) == 0);
  REQUIRE(!last.empty());
  CHECK(last.back().over);
  CHECK(std::ranges::count_if(last, &watch::Compiling::over) == 1);
  CHECK(last.back().text == fmt::format("attune compiled 2 kernels in {:.1f} s", last.back().seconds));
}

TEST_CASE("nobody waits for the background, but who waits is told what it compiles early", "[waits]") {
  Facts facts;
  std::promise<void> early, spare, end;
  const auto may = end.get_future().share();
  runtime::in_background([&, may] {
    const Waits waits;
    const CompilerWorks works("backward-f32");
    early.set_value();
    may.wait();
  });
  runtime::in_spare_time([&, may] {
    const Waits waits;
    const CompilerWorks works("skeleton");
    spare.set_value();
    may.wait();
  });
  early.get_future().wait();
  spare.get_future().wait();
  pass(milliseconds(1200));
  CHECK(facts.taken().empty());
  {
    const Waits waits;
    CHECK(facts.come());
  }
  end.set_value();
  runtime::wait_for_background();
  runtime::wait_for_spare_time();
  const std::vector<watch::Compiling> said = facts.taken();
  REQUIRE(said.size() >= 2);
  CHECK(said[0].seconds >= 1);
  REQUIRE(said[0].kernels.size() == 1);
  CHECK(said[0].kernels[0].kernel == "backward-f32");
  CHECK(said.back().text == fmt::format("attune waited {:.1f} s for kernels", said.back().seconds));
}

TEST_CASE("a callback about a wait may throw, and may call attune", "[waits]") {
  std::atomic<int> thrown = 0, notices = 0;
  std::atomic<bool> called = false;
  const auto hears = watch::on(
      {.notice = [&](const watch::Notice& fact) { notices += fact.of == watch::Notice::Of::watch; }});
  const auto throws = watch::on({.compiling = [&](const watch::Compiling&) {
    ++thrown;
    throw std::runtime_error("mine");
  }});
  const auto calls = watch::on({.compiling = [&](const watch::Compiling&) {
    if (called.exchange(true)) return;
    const Device host = Device::cpu();
    const Array<float> q = host.array<float>({1, 1, 2, 8}), o = host.array<float>({1, 1, 2, 8});
    Attention{.score = [](Float s, At) { return s * 0.875f; }}(q, q, q, o);
  }});
  {
    const Waits waits;
    const CompilerWorks works("forward-f32");
    CHECK(comes_true([&] { return called && thrown >= 1; }));
  }
  CHECK(called);
  CHECK(thrown >= 2);
  CHECK(notices == thrown);
}

TEST_CASE("a forked child has no waits of its parent", "[waits]") {
  if (tests::skips_threads_in_child()) return;
  Facts facts;
  std::promise<void> begun, end;
  std::thread parents([&, may = end.get_future().share()] {
    const Waits waits;
    const CompilerWorks works("forward-f32");
    begun.set_value();
    may.wait();
  });
  begun.get_future().wait();
  CHECK(tests::in_child([] {
          Facts own;  // its parent may have been told something before the fork
          const Waits waits;
          const CompilerWorks works("backward-f32");
          if (!own.come()) return 2;
          const std::vector<watch::Compiling> said = own.taken();
          return said[0].kernels.size() == 1 && said[0].kernels[0].kernel == "backward-f32" ? 0 : 1;
        }) == 0);
  end.set_value();
  parents.join();
}

TEST_CASE("the text about a wait names three kernels at most", "[waits]") {
  watch::Compiling fact{
      .kernels = {{"a", 1}, {"b", 1}, {"c", 1}}, .done = 0, .seconds = 1.5, .over = false, .text = {}};
  CHECK(text_of(fact) == "attune compiles a, b, c: 1.5 s");
  fact.kernels.push_back({"d", 1});
  fact.done = 2;
  CHECK(text_of(fact) == "attune compiles a, b, c and 1 more after 2 others: 1.5 s");
  fact.kernels.clear();
  CHECK(text_of(fact) == "attune waits for kernels after 2 others: 1.5 s");
  fact.over = true;
  CHECK(text_of(fact) == "attune compiled 2 kernels in 1.5 s");
}
