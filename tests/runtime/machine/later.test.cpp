// tests/runtime/machine/later.test.cpp — work that is done once: in spare time, by a thread that needs it, or never
#include "runtime/machine/background.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/machine/watch/watch.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"

using namespace attune;
using runtime::Later;

TEST_CASE("later work is done once, in spare time or by a thread that needs it, and other threads wait for it",
          "[later]") {
  std::atomic<int> done = 0;
  std::promise<void> go;
  const auto may = go.get_future().share();
  const auto slow = std::make_shared<Later>([&, may] {
    may.wait();
    ++done;
    return std::string();
  });
  const auto next = std::make_shared<Later>([&] {
    ++done;
    return std::string();
  });
  slow->start();
  slow->start();
  next->start();
  next->finish();  // at once, though the other one runs
  CHECK(done == 1);
  CHECK(next->done());
  CHECK_FALSE(slow->done());
  std::vector<std::thread> waiting;
  for (int t = 0; t < 4; ++t) waiting.emplace_back([&] { slow->finish(); });
  go.set_value();
  for (std::thread& one : waiting) one.join();
  CHECK(done == 2);
  runtime::wait_for_spare_time();
  CHECK(done == 2);
}

TEST_CASE("later work that fails says why", "[later]") {
  const auto refuses = std::make_shared<Later>([] { return std::string("no"); });
  const auto throws = std::make_shared<Later>([]() -> std::string { throw std::runtime_error("never\nagain"); });
  for (const auto& one : {refuses, throws}) one->start();
  runtime::finish_later_work();
  CHECK(refuses->why_failed() == "no");
  CHECK(throws->why_failed() == "never");
}

TEST_CASE("who waits for all later work waits for its callbacks too, and a callback that waits does not hang",
          "[later]") {
  std::atomic<int> told = 0;
  std::promise<void> go;
  const auto watching = watch::on({.notice = [&, may = go.get_future().share()](const watch::Notice&) {
    may.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    runtime::finish_later_work();
    ++told;
  }});
  const auto tells = std::make_shared<Later>([] {
    runtime::record(watch::Notice{.text = "done"});
    return std::string();
  });
  tells->start();
  CHECK(tests::comes_true([&] { return tells->done(); }));
  tells->finish();
  CHECK(told == 0);
  std::atomic<int> told_before = -1;
  std::thread waits([&] {
    runtime::finish_later_work();
    told_before = told.load();
  });
  go.set_value();
  waits.join();
  CHECK(told_before == 1);
}

TEST_CASE("later work that the background dropped is done by the thread that needs it, and is freed with its owner",
          "[later]") {
  std::promise<void> go;
  std::atomic<bool> runs = false;
  runtime::in_spare_time([&, may = go.get_future().share()] {
    runs = true;
    may.wait();
  });
  CHECK(tests::comes_true([&] { return runs.load(); }));
  std::atomic<int> done = 0;
  auto needed = std::make_shared<Later>([&] {
    ++done;
    return std::string();
  });
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> left = owned;
  auto given_up = std::make_shared<Later>([owned = std::move(owned)] { return std::string(); });
  needed->start();
  given_up->start();
  std::thread stopping([] { runtime::stop_background(); });
  given_up.reset();
  CHECK(tests::comes_true([&] { return left.expired(); }));
  go.set_value();
  stopping.join();
  CHECK(done == 0);
  needed->finish();
  CHECK(done == 1);
}

TEST_CASE("a forked child does not wait for its parent's later work", "[later]") {
  std::promise<void> go;
  std::atomic<bool> runs = false;
  const auto slow = std::make_shared<Later>([&, may = go.get_future().share()] {
    runs = true;
    may.wait();
    return std::string();
  });
  slow->start();
  CHECK(tests::comes_true([&] { return runs.load(); }));
  CHECK(tests::in_child([&] {
          slow->finish();
          return slow->done() ? 1 : 0;
        }) == 0);
  go.set_value();
  slow->finish();
}
