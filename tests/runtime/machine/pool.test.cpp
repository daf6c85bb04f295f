// tests/runtime/machine/pool.test.cpp — tasks on 1 to 16 threads: once each, exceptions, nesting, many callers, forks,
// the end
#include "runtime/machine/parallel.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <attune/error.h>
#include <dlfcn.h>
#include <unistd.h>

#include "runtime/machine/options.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/golden.h"

using namespace attune;
using namespace std::chrono_literals;
using runtime::run_tasks;
using tests::comes_true;
using tests::in_child;
using tests::status_of;

namespace {

using Clock = std::chrono::steady_clock;

int threads_of_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

/// A run that can finish only if two of its tasks run at once.
bool two_meet(int threads) {
  std::atomic<int> here{0}, met{0};
  run_tasks(2,
            [&](std::int64_t, int) {
              ++here;
              if (comes_true([&] { return here == 2; })) ++met;
            },
            {.workers = threads});
  return met == 2;
}

/// Whether each task runs once, with worker numbers in range and one task at a time per worker.
bool is_sound(std::int64_t count, int threads) {
  std::vector<std::atomic<int>> times(static_cast<std::size_t>(count));
  std::vector<std::atomic<int>> at_work(static_cast<std::size_t>(threads));
  std::atomic<bool> fine{true};
  run_tasks(count,
            [&](std::int64_t i, int worker) {
              if (worker < 0 || worker >= threads) {
                fine = false;
                return;
              }
              if (++at_work[static_cast<std::size_t>(worker)] != 1) fine = false;
              ++times[static_cast<std::size_t>(i)];
              --at_work[static_cast<std::size_t>(worker)];
            },
            {.workers = threads});
  for (const auto& n : times)
    if (n != 1) fine = false;
  return fine;
}

/// 0 if the child has a working pool of its own, with at least two threads.
int works() { return is_sound(500, 3) && two_meet(2) ? 0 : 1; }

}  // namespace

TEST_CASE("each task runs once, on 1 to 16 threads, and a worker does one at a time", "[pool]") {
  for (int threads = 1; threads <= 16; ++threads)
    for (const std::int64_t count : {0, 1, 2, 3, 17, 1000}) {
      INFO(threads << " threads, " << count << " tasks");
      CHECK(is_sound(count, threads));
    }
}

TEST_CASE("as many threads are at work at once as were asked for, more than there are CPUs too", "[pool]") {
  for (const int threads : {2, 5, 16}) {
    std::atomic<int> here{0}, met{0};
    run_tasks(threads,
              [&](std::int64_t, int) {
                ++here;
                if (comes_true([&] { return here == threads; })) ++met;
              },
              {.workers = threads});
    CHECK(met == threads);
  }
}

TEST_CASE("tasks see what the caller wrote, and the caller what they wrote", "[pool]") {
  std::vector<int> in(16), out(16);
  bool fine = true;
  for (const int threads : {2, 4})
    for (int repeat = 0; repeat < 2000; ++repeat) {
      std::ranges::fill(in, repeat);
      run_tasks(16,
                [&](std::int64_t i, int) { out[static_cast<std::size_t>(i)] = in[static_cast<std::size_t>(i)] + 1; },
                {.workers = threads});
      fine = fine && std::ranges::count(out, repeat + 1) == 16;
    }
  CHECK(fine);
}

TEST_CASE("tasks are handed out in order", "[pool]") {
  std::vector<std::int64_t> order;
  run_tasks(100, [&](std::int64_t i, int) { order.push_back(i); }, {.workers = 1});
  CHECK(std::ranges::is_sorted(order));
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::array<std::vector<std::int64_t>, 4> of;
    run_tasks(200, [&](std::int64_t i, int worker) { of[static_cast<std::size_t>(worker)].push_back(i); },
              {.workers = 4});
    for (const auto& mine : of) CHECK(std::ranges::is_sorted(mine));
  }
}

TEST_CASE("the caller is worker 0, and one task, or one thread, starts no other", "[pool]") {
  const int before = threads_of_process();
  std::set<std::thread::id> seen;
  const auto note = [&](std::int64_t, int worker) {
    CHECK(worker == 0);
    seen.insert(std::this_thread::get_id());
  };
  run_tasks(1, note, {.workers = 8});
  run_tasks(50, note, {.workers = 1});
  CHECK(seen == std::set{std::this_thread::get_id()});
  CHECK(threads_of_process() == before);

  std::atomic<bool> fine{true};
  run_tasks(500,
            [&, self = std::this_thread::get_id()](std::int64_t, int worker) {
              if ((worker == 0) != (std::this_thread::get_id() == self)) fine = false;
            },
            {.workers = 4});
  CHECK(fine);
}

TEST_CASE("a run prepares for the workers it may see", "[pool]") {
  CHECK(runtime::workers_for(100) == std::min(100, runtime::options().threads));
  CHECK(runtime::workers_for(100, {.workers = 7}) == 7);
  CHECK(runtime::workers_for(3, {.workers = 7}) == 3);
  CHECK(runtime::workers_for(0, {.workers = 7}) == 1);
  const Executor own{.workers = 7, .parallel_for = [](std::int64_t, const Task&) {}};
  CHECK(runtime::workers_for(3, own) == 7);
  run_tasks(2, [](std::int64_t, int) { CHECK(runtime::workers_for(100, {.workers = 7}) == 1); }, {.workers = 1});
}

TEST_CASE("the first exception comes to the caller, and tasks that had not begun are left out", "[pool]") {
  for (const int threads : {1, 2, 8}) {
    std::atomic<int> begun{0};
    const auto run = [&] {
      run_tasks(100'000,
                [&](std::int64_t i, int) {
                  ++begun;
                  if (i == 5) throw std::out_of_range("five");
                  // Together, the other tasks take seconds, so the exception is known before they end.
                  if (i > 5) std::this_thread::sleep_for(1ms);
                },
                {.workers = threads});
    };
    CHECK_THROWS_WITH(run(), "five");
    CHECK(begun < 100'000);
    CHECK(is_sound(100, threads));
  }
}

TEST_CASE("when all tasks throw, one exception comes", "[pool]") {
  for (int repeat = 0; repeat < 100; ++repeat)
    CHECK_THROWS_AS(run_tasks(64, [](std::int64_t, int) { throw std::runtime_error("all"); }, {.workers = 4}),
                    std::runtime_error);
}

TEST_CASE("a run within a task stays on its thread, as worker 0", "[pool]") {
  std::atomic<int> inner{0};
  std::atomic<bool> fine{true};
  run_tasks(20,
            [&](std::int64_t, int) {
              run_tasks(10,
                        [&, outer = std::this_thread::get_id()](std::int64_t, int worker) {
                          ++inner;
                          if (worker != 0 || std::this_thread::get_id() != outer) fine = false;
                        },
                        {.workers = 4});
            },
            {.workers = 4});
  CHECK(inner == 200);
  CHECK(fine);
  CHECK(two_meet(2));
}

TEST_CASE("8 threads of the user run at once", "[pool]") {
  std::atomic<int> sound{0};
  std::vector<std::thread> users;
  for (int u = 0; u < 8; ++u)
    users.emplace_back([&, u] {
      for (int repeat = 0; repeat < 100; ++repeat) sound += is_sound(1 + (repeat * 7 + u) % 90, 1 + (repeat + u) % 6);
    });
  const int most = 16;
  CHECK(threads_of_process() <= 1 + 8 + most);
  for (std::thread& user : users) user.join();
  CHECK(sound == 800);
}

TEST_CASE("an exception of one caller does not reach another", "[pool]") {
  std::atomic<int> threw{0}, fine{0};
  std::vector<std::thread> users;
  for (int u = 0; u < 4; ++u)
    users.emplace_back([&, u] {
      for (int repeat = 0; repeat < 50; ++repeat) try {
          run_tasks(30,
                    [&](std::int64_t i, int) {
                      if (u % 2 == 1 && i == 20) throw u;
                    },
                    {.workers = 3});
          ++fine;
        } catch (int whose) {
          if (whose == u) ++threw;
        }
    });
  for (std::thread& user : users) user.join();
  CHECK(fine == 100);
  CHECK(threw == 100);
}

TEST_CASE("progress is told on the calling thread, between tasks, by weight", "[pool]") {
  std::vector<double> told;
  run_tasks(
      3, [](std::int64_t, int) { std::this_thread::sleep_for(110ms); }, {.workers = 1},
      [&](double share) { told.push_back(share); }, std::array<std::int64_t, 3>{50, 30, 20});
  CHECK(told == std::vector{0.5, 0.8});  // the end is the call's to tell
}

TEST_CASE("progress is told while the caller waits for the others, ten times a second at most", "[pool]") {
  std::atomic<bool> fine{true};
  std::atomic<int> here{0}, told{0};
  const auto start = Clock::now();
  run_tasks(
      2,
      [&](std::int64_t, int worker) {
        ++here;
        if (!comes_true([&] { return here == 2; })) fine = false;
        if (worker != 0 && !comes_true([&] { return told >= 2; })) fine = false;
      },
      {.workers = 2},
      [&, self = std::this_thread::get_id()](double share) {
        ++told;
        if (std::this_thread::get_id() != self || share != 0.5) fine = false;
      });
  CHECK(fine);
  CHECK(told >= 2);
  CHECK(told <= (Clock::now() - start) / 100ms);
}

TEST_CASE("a listener that throws ends the run", "[pool]") {
  for (const int threads : {1, 2}) {
    std::atomic<int> begun{0};
    const auto run = [&] {
      run_tasks(
          1000,
          [&](std::int64_t, int) {
            ++begun;
            std::this_thread::sleep_for(20ms);
          },
          {.workers = threads}, [](double) { throw std::runtime_error("enough"); });
    };
    CHECK_THROWS_WITH(run(), "enough");
    // The caller notices the exception at once, but other threads continue while it waits for a CPU.
    CHECK(begun < (threads == 1 ? 20 : 1000));
  }
}

TEST_CASE("threads of the user's own do the work when an executor is given", "[pool]") {
  const Executor own{.workers = 3, .parallel_for = [](std::int64_t count, const Task& run) {
                       std::atomic<std::int64_t> next{0};
                       std::vector<std::thread> threads;
                       for (int worker = 0; worker < 3; ++worker)
                         threads.emplace_back([&, worker] {
                           for (std::int64_t i = next++; i < count; i = next++) run(i, worker);
                         });
                       for (std::thread& t : threads) t.join();
                     }};
  std::atomic<int> sum{0};
  std::atomic<bool> elsewhere{true};
  const auto task = [&, self = std::this_thread::get_id()](std::int64_t i, int) {
    sum += static_cast<int>(i);
    if (std::this_thread::get_id() == self) elsewhere = false;
    run_tasks(
        3, [&](std::int64_t, int) { ++sum; }, own);
  };
  run_tasks(100, task, own);
  CHECK(sum == 4950 + 300);
  CHECK(elsewhere);
  CHECK_THROWS_WITH(run_tasks(
                        9, [](std::int64_t, int) { throw std::runtime_error("its own"); }, own),
                    "its own");
}

TEST_CASE("an executor that does not keep its word is refused", "[pool]") {
  const auto refused = [](const char* golden, int workers,
                          std::function<void(std::int64_t count, const Task& run)> parallel_for) {
    try {
      run_tasks(4, [](std::int64_t, int) {}, {.workers = workers, .parallel_for = std::move(parallel_for)});
      FAIL_CHECK(golden << " was not refused");
    } catch (const Error& e) {
      tests::golden_error(golden, e.what());
    }
  };
  const auto all = [](std::int64_t count, const Task& run) {
    for (std::int64_t i = 0; i < count; ++i) run(i, 0);
  };
  refused("executor-workers", 0, all);
  refused("executor-workers.pool", -1, nullptr);
  refused("executor-workers.many", 1025, all);
  refused("executor-workers.number", 2, [](std::int64_t, const Task& run) { run(0, 2); });
  refused("executor-tasks", 1, [&](std::int64_t count, const Task& run) { all(count - 1, run); });
  refused("executor-tasks.number", 1, [&](std::int64_t count, const Task& run) { all(count + 1, run); });
  refused("executor-tasks.twice", 1, [&](std::int64_t count, const Task& run) {
    run(1, 0);
    all(count, run);
  });
}

TEST_CASE("two tasks at once with one worker's number are refused", "[pool]") {
  std::atomic<bool> tried{false};
  const Executor own{.workers = 1, .parallel_for = [&](std::int64_t count, const Task& run) {
                       std::vector<std::thread> threads;
                       for (std::int64_t i = 0; i < count; ++i)
                         threads.emplace_back([&, i] {
                           run(i, 0);
                           tried = true;
                         });
                       for (std::thread& t : threads) t.join();
                     }};
  try {
    run_tasks(
        2, [&](std::int64_t, int) { comes_true([&] { return tried.load(); }); }, own);
    FAIL_CHECK("was not refused");
  } catch (const Error& e) {
    tests::golden_error("executor-workers.twice", e.what());
  }
}

TEST_CASE("a forked child has a pool of its own, whether or not the parent had one", "[pool]") {
  if (tests::skips_threads_in_child()) return;
  CHECK(in_child(works) == 0);
  REQUIRE(works() == 0);
  CHECK(in_child(works) == 0);
  CHECK(in_child([] { return works() + (in_child(works) == 0 ? 0 : 2); }) == 0);
  CHECK(works() == 0);
}

TEST_CASE("a fork while the parent's workers are busy leaves a child that works", "[pool]") {
  if (tests::skips_threads_in_child()) return;
  std::atomic<bool> over{false};
  std::vector<std::thread> users;
  for (int u = 0; u < 3; ++u)
    users.emplace_back([&] {
      const Task nothing = [](std::int64_t, int) {};
      while (!over) runtime::pool_run(64, nothing, 4);
    });
  for (int repeat = 0; repeat < 100; ++repeat) REQUIRE(in_child(works) == 0);
  over = true;
  for (std::thread& user : users) user.join();
  CHECK(works() == 0);
}

TEST_CASE("a child forked by a listener is told that it cannot finish the run", "[pool]") {
  if (tests::skips_threads_in_child()) return;
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  std::atomic<pid_t> child{-1};
  try {
    // The other thread leaves the caller enough tasks for a report.
    const auto task = [&](std::int64_t, int worker) {
      worker == 0 ? std::this_thread::sleep_for(10ms) : void(comes_true([&] { return child != -1; }));
    };
    run_tasks(40, task, {.workers = 2}, [&](double) {
      if (child != -1) return;
      child = tests::fork_child();
    });
    if (child == 0) _exit(2);
  } catch (const Error& e) {
    if (child != 0) throw;
    const std::string_view told = e.what();
    const bool sent = write(pipe_ends[1], told.data(), told.size()) == static_cast<ssize_t>(told.size());
    _exit(sent ? works() : 3);
  }
  REQUIRE(child > 0);
  CHECK(status_of(child) == 0);
  std::array<char, 1000> told{};
  const ssize_t length = read(pipe_ends[0], told.data(), told.size());
  REQUIRE(length > 0);
  tests::golden_error("fork-within-call", std::string_view(told.data(), static_cast<std::size_t>(length)));
  for (const int end : pipe_ends) close(end);
}

TEST_CASE("a child that a task of another thread forked ends", "[pool]") {
  if (tests::skips_threads_in_child()) return;
  std::atomic<pid_t> child{-1};
  std::atomic<int> here{0};
  run_tasks(2,
            [&](std::int64_t, int worker) {
              ++here;
              comes_true([&] { return here == 2; });
              if (worker != 0) child = tests::fork_child();
            },
            {.workers = 2});
  REQUIRE(child > 0);
  CHECK(status_of(child) != -1);
}

TEST_CASE("a process ends while its pool sleeps, and while it works", "[pool]") {
  if (tests::skips_threads_in_child()) return;
  CHECK(in_child([]() -> int {
          two_meet(2);
          std::exit(7);
        }) == 7);
  CHECK(in_child([]() -> int {
          std::atomic<int> begun{0};
          std::thread([&begun] {
            run_tasks(1'000'000'000,
                      [&](std::int64_t, int) {
                        ++begun;
                        std::this_thread::sleep_for(1ms);
                      },
                      {.workers = 3});
          }).detach();
          comes_true([&] { return begun > 20; });
          std::exit(8);
        }) == 8);
}

TEST_CASE("a plug-in takes its threads with it when it is unloaded", "[pool]") {
  for (int repeat = 0; repeat < 3; ++repeat) {
    const int before = threads_of_process();
    void* plugin = dlopen(ATTUNE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(plugin);
    const auto sum = reinterpret_cast<long (*)(long, int)>(dlsym(plugin, "plugin_sum"));
    REQUIRE(sum);
    CHECK(sum(1000, 4) == 499500);
    CHECK(threads_of_process() == before + 3);
    REQUIRE(dlclose(plugin) == 0);
    if (void* still = dlopen(ATTUNE_PLUGIN, RTLD_NOW | RTLD_NOLOAD)) {
      dlclose(still);
      std::puts("[skip] the loader keeps the library, as it does when one has unique symbols");
      return;
    }
    CHECK(comes_true([&] { return threads_of_process() == before; }));
  }
}
