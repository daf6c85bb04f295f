// tests/runtime/machine/mutex.test.cpp — what a forked child finds: no lock taken, no change half done, values made
#include "runtime/machine/mutex.h"

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/child.h"

namespace attune {
namespace {

using runtime::Condition;
using runtime::Mutex;
using runtime::NoFork;
using runtime::Once;

constexpr std::chrono::milliseconds a_while{30};

/// Runs `work` on another thread, which has begun what it does first before this returns.
class Beside {
 public:
  explicit Beside(const std::function<void(const std::function<void()>& begun)>& work)
      : thread_([this, work] { work([this] { begun_.set_value(); }); }) {
    begun_.get_future().wait();
  }
  ~Beside() { thread_.join(); }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  std::promise<void> begun_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("a fork waits for the thread that holds a mutex, and the child locks it", "[mutex]") {
  Mutex mutex;
  int first = 0, second = 0;
  for (int round = 1; round <= 5; ++round) {
    const Beside holder([&](const auto& begun) {
      const std::lock_guard lock(mutex);
      first = round;
      begun();
      std::this_thread::sleep_for(a_while);
      second = round;
    });
    CHECK(tests::in_child([&] {
            const std::lock_guard lock(mutex);
            return first == round && second == round ? 0 : 1;
          }) == 0);
  }
}

TEST_CASE("a fork waits for all holders, in whatever order they end and whatever else they take", "[mutex]") {
  Mutex a, b;
  std::array<std::atomic<bool>, 3> ended{};
  const Beside last([&](const auto& begun) {
    const NoFork whole;
    begun();
    std::this_thread::sleep_for(3 * a_while);
    const std::lock_guard second(b);  // while the fork waits
    ended[0] = true;
  });
  const Beside first([&](const auto& begun) {
    const std::lock_guard lock(a);
    begun();
    std::this_thread::sleep_for(a_while);
    ended[1] = true;
  });
  const Beside waits([&](const auto& begun) {
    const NoFork whole;
    begun();
    const std::lock_guard lock(a);  // of the thread before
    ended[2] = true;
  });
  CHECK(tests::in_child([&] {
          const std::lock_guard one(a), other(b);
          return ended[0] && ended[1] && ended[2] ? 0 : 1;
        }) == 0);
}

TEST_CASE("a thread that forks while it holds a mutex waits for the others, and its child unlocks it", "[mutex]") {
  Mutex own, other;
  std::unique_lock lock(own);
  std::atomic<bool> ended = false;
  const Beside holder([&](const auto& begun) {
    const std::lock_guard held(other);
    begun();
    std::this_thread::sleep_for(a_while);
    ended = true;
  });
  CHECK(tests::in_child([&] {
          lock.unlock();
          const std::lock_guard again(own), theirs(other);
          return ended ? 0 : 1;
        }) == 0);
}

TEST_CASE("threads that lock, make and wait all the time neither hold up forks nor reach their children", "[mutex]") {
  Mutex mutex;
  Condition changed;
  std::int64_t one = 0, two = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      while (!over) {
        const std::lock_guard lock(mutex);
        ++one;
        changed.notify_all();
        ++two;
      }
    });
  threads.emplace_back([&] {
    std::unique_lock lock(mutex);
    for (std::int64_t before = one; !over; before = one) changed.wait(lock, [&] { return over || one != before; });
  });
  int failed = 0;
  for (int i = 0; i < 100; ++i)
    failed += tests::in_child([&] {
                const std::lock_guard lock(mutex);
                changed.notify_all();
                return one == two ? 0 : 1;
              }) != 0;
  CHECK(failed == 0);
  over = true;
  {
    const std::lock_guard lock(mutex);
    changed.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("a child finds made what another thread was making as the process was forked", "[mutex]") {
  static constinit Once<std::vector<int>> inner;
  static constinit Once<std::vector<int>> outer;
  const Beside maker([&](const auto& begun) {
    outer.get([&] {
      begun();
      std::this_thread::sleep_for(a_while);
      return std::vector<int>{1, inner.get([] { return std::vector<int>{2}; })[0]};
    });
  });
  CHECK(tests::in_child([] { return outer.get()[1] == 2 && inner.get().size() == 1 ? 0 : 1; }) == 0);
}

TEST_CASE("a value is made once by many threads, and again after its making threw", "[mutex]") {
  static constinit Once<int> value;
  CHECK_THROWS_AS(value.get([]() -> int { throw std::runtime_error("not yet"); }), std::runtime_error);
  std::atomic<int> made = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const int& mine = value.get([&] {
        std::this_thread::sleep_for(a_while);
        return ++made;
      });
      wrong += mine != 1;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(made == 1);
  CHECK(wrong == 0);
}

TEST_CASE("a process has a number that none of its ancestors had", "[mutex]") {
  const std::uint32_t mine = runtime::process_number();
  CHECK(tests::in_child([&] {
          if (runtime::process_number() != mine + 1) return 1;
          return tests::in_child([&] { return runtime::process_number() == mine + 2 ? 0 : 2; });
        }) == 0);
  CHECK(runtime::process_number() == mine);
}

}  // namespace attune
