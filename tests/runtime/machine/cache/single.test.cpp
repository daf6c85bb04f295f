// tests/runtime/machine/cache/single.test.cpp — values made once per key: by many threads, after a throw, in a forked
// child
#include "runtime/machine/cache/single.h"

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/child.h"

namespace attune::runtime {
namespace {

/// Puts all keys into one chain.
struct Same {
  std::size_t operator()(int) const { return 7; }
};
using Pointer = Single<int, std::string>::Pointer;

Pointer text_of(int key) { return std::make_shared<const std::string>(std::to_string(key)); }

}  // namespace

TEST_CASE("each key is made once, whoever asks, and the others wait", "[single]") {
  Single<int, std::string, Same> chained;
  Single<int, std::string> spread;
  constexpr int keys = 40;
  std::atomic<int> made = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4000; ++i) {
        const int key = (i * (t + 1)) % keys;
        const auto make = [&] {
          ++made;
          std::this_thread::yield();
          return text_of(key);
        };
        wrong += *chained.get(key, make) != std::to_string(key);
        wrong += *spread.get(key, make) != std::to_string(key);
        if (const Pointer found = spread.find((key + 1) % keys)) wrong += *found != std::to_string((key + 1) % keys);
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(made == 2 * keys);
  CHECK(wrong == 0);
  CHECK(chained.find(3) == chained.get(3, [] { return text_of(0); }));
  CHECK(chained.find(keys) == nullptr);
}

TEST_CASE("who throws is asked again, and all who waited hear of it", "[single]") {
  Single<int, std::string> all;
  std::atomic<int> asked = 0, heard = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      try {
        all.get(1, [&]() -> Pointer {
          ++asked;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          throw std::runtime_error("no");
        });
      } catch (const std::runtime_error&) {
        ++heard;
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(heard == 4);
  CHECK(asked >= 1);
  CHECK(all.find(1) == nullptr);
  CHECK(*all.get(1, [] { return text_of(1); }) == "1");
}

TEST_CASE("what the parent was making a child makes itself", "[single]") {
  Single<int, std::string> all;
  std::atomic<bool> begun = false, end = false;
  std::thread maker([&] {
    all.get(1, [&] {
      begun = true;
      while (!end) std::this_thread::yield();
      return text_of(1);
    });
  });
  while (!begun) std::this_thread::yield();
  CHECK(tests::in_child([&] { return *all.get(1, [] { return text_of(5); }) == "5" ? 0 : 1; }) == 0);
  end = true;
  maker.join();
  CHECK(*all.get(1, [] { return text_of(9); }) == "1");
}

}  // namespace attune::runtime
