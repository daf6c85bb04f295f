// tests/runtime/machine/background.test.cpp — tasks in the background: their order, their ends, and those of processes
#include "runtime/machine/background.h"

#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"

using namespace attune;
using runtime::in_background;

namespace {

/// Tells when the task that holds `by_task` is gone, whether it ran or was dropped.
struct Held {
  std::shared_ptr<int> by_task = std::make_shared<int>(0);
  std::weak_ptr<int> left = by_task;
  bool goes() const {
    return tests::comes_true([&] { return left.expired(); });
  }
};

}  // namespace

TEST_CASE("tasks in the background run in their order on one thread, and one that throws ends alone", "[background]") {
  std::vector<int> order;
  std::promise<void> go;
  in_background([&, may = go.get_future().share()] {
    may.wait();
    order.push_back(1);
    throw std::runtime_error("dropped");
  });
  in_background([&] { order.push_back(2); });
  CHECK(order.empty());
  go.set_value();
  runtime::wait_for_background();
  CHECK(order == std::vector{1, 2});
  in_background([&] { runtime::wait_for_background(); });  // a task that waits for itself would wait forever
  runtime::wait_for_background();
}

TEST_CASE("stopping the background ends the task that runs and drops the others", "[background]") {
  std::promise<void> began, go;
  std::atomic<int> done = 0;
  in_background([&, may = go.get_future().share()] {
    began.set_value();
    may.wait();
    ++done;
  });
  Held held;
  in_background([&, held = std::move(held.by_task)] { ++done; });
  began.get_future().wait();
  std::thread stopping([] { runtime::stop_background(); });
  CHECK(held.goes());
  go.set_value();
  stopping.join();
  CHECK(done == 1);
  in_background([&] { ++done; });
  runtime::wait_for_background();
  CHECK(done == 2);
}

TEST_CASE("a process that ends waits for its task in the background, and a forked child has none of its own",
          "[background]") {
  if (tests::skips_threads_in_child()) return;
  std::promise<void> go;
  in_background([may = go.get_future().share()] { may.wait(); });
  // The child's exit waits for the child's task, which is not queued behind the parent's.
  CHECK(tests::in_child([] {
          static std::atomic<bool> done = false;
          std::atexit([] { _exit(done ? 0 : 1); });  // called after the background has stopped
          static std::promise<void> began;           // what has not begun would be dropped
          in_background([] {
            began.set_value();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            done = true;
          });
          began.get_future().wait();
          std::exit(2);
          return 3;
        }) == 0);
  go.set_value();
  runtime::wait_for_background();
}

TEST_CASE("spare time has a thread of its own, and stopping drops its tasks too", "[background]") {
  std::promise<void> began, go;
  std::atomic<int> done = 0;
  in_background([&, may = go.get_future().share()] {
    began.set_value();
    may.wait();
    runtime::in_spare_time([&] { done += 10; });
  });
  began.get_future().wait();
  runtime::in_spare_time([&] { ++done; });
  runtime::wait_for_spare_time();  // not for the other thread's task
  CHECK(done == 1);
  go.set_value();
  runtime::wait_for_background();
  runtime::wait_for_spare_time();
  CHECK(done == 11);

  std::promise<void> starts, ends;
  runtime::in_spare_time([&, may = ends.get_future().share()] {
    starts.set_value();
    may.wait();
  });
  Held held;
  runtime::in_spare_time([&, held = std::move(held.by_task)] { done = 0; });
  starts.get_future().wait();
  std::thread stopping([] { runtime::stop_background(); });
  CHECK(held.goes());
  ends.set_value();
  stopping.join();
  CHECK(done == 11);
}
