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
        if (const auto found = spread.find((key + 1) % keys)) wrong += *found != std::to_string((key + 1) % keys);
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

TEST_CASE("what was used least recently goes, but nothing that is in use", "[single]") {
  Single<int, std::string> all(Limit<std::string>{.count = 3});
  int made = 0;
  const auto ask = [&](int key) {
    return all.get(key, [&] {
      ++made;
      return text_of(key);
    });
  };
  const auto zero = ask(0);  // in use to the end
  for (int key = 1; key <= 3; ++key) ask(key);
  CHECK(all.find(1) == nullptr);
  ask(2);  // used again, so that 3 goes before it
  ask(4);
  CHECK(all.find(2) != nullptr);
  CHECK(all.find(3) == nullptr);
  CHECK(*zero == "0");
  CHECK(made == 5);
  const auto kept = ask(2).shared();
  for (int key = 5; key < 50; ++key) ask(key);
  CHECK(all.find(2) == nullptr);
  CHECK(*kept == "2");
  CHECK(all.find(0) == zero);
  CHECK(*ask(3) == "3");
}

TEST_CASE("values go by their bytes, and those that may not go do not count", "[single]") {
  Single<int, std::string> all(Limit<std::string>{.bytes = 30,
                                                  .bytes_of = [](const std::string& one) { return one.size(); },
                                                  .may_go = [](const std::string& one) { return one[0] != '0'; }});
  const auto ask = [&](int key, std::string text) {
    all.get(key, [&] { return std::make_shared<const std::string>(std::move(text)); });
  };
  ask(0, std::string(100, '0'));
  for (int key = 1; key <= 4; ++key) ask(key, std::string(10, 'a'));
  CHECK(all.find(0) != nullptr);
  CHECK(all.find(1) == nullptr);
  for (int key = 2; key <= 4; ++key) CHECK(all.find(key) != nullptr);
  ask(5, std::string(31, 'a'));  // all others go, and it goes with the next
  CHECK(all.find(4) == nullptr);
  ask(6, "a");
  CHECK(all.find(5) == nullptr);
  CHECK(all.find(6) != nullptr);
}

TEST_CASE("threads find what others throw out and make again", "[single]") {
  Single<int, std::string, Same> chained(Limit<std::string>{.count = 2});
  Single<int, std::string> spread(Limit<std::string>{.count = 5});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; ++i) {
        const int key = (i * (t + 3) + t) % 12;
        const auto make = [&] { return text_of(key); };
        const auto one = chained.get(key, make), other = spread.get(key, make);
        if (i % 7 == 0) std::this_thread::yield();
        wrong += *one != std::to_string(key) || *other != std::to_string(key);
        if (const auto found = spread.find((key + 1) % 12)) wrong += *found != std::to_string((key + 1) % 12);
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("a value is replaced by another one while it is used, and goes once it is not", "[single]") {
  Single<int, std::string, Same> all;
  const auto is = [](std::string text) { return [text](const std::string& one) { return one == text; }; };
  const auto value = [](std::string text) { return std::make_shared<const std::string>(std::move(text)); };
  CHECK_FALSE(all.replace(1, is("1"), value("one")));  // there is none
  std::weak_ptr<const std::string> first;
  {
    const auto used = all.get(1, [&] {
      auto made = text_of(1);
      first = made;
      return made;
    });
    all.get(2, [] { return text_of(2); });
    CHECK_FALSE(all.replace(1, is("another"), value("one")));
    CHECK(all.replace(1, is("1"), value("one")));
    CHECK(*used == "1");
    CHECK(*all.find(1) == "one");
    all.get(3, [] { return text_of(3); });
    CHECK_FALSE(first.expired());
  }
  all.get(4, [] { return text_of(4); });
  CHECK(first.expired());
  CHECK(*all.find(1) == "one");
  CHECK(*all.get(1, [] { return text_of(9); }) == "one");
  CHECK(*all.find(2) == "2");
}

TEST_CASE("threads find the old value or the new one while values are replaced and thrown out", "[single]") {
  Single<int, std::string, Same> all(Limit<std::string>{.count = 6});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const int key = (i * (t + 3) + t) % 8;
        // The digit, and a letter for each time that it was replaced.
        const std::string one = *all.get(key, [&] { return text_of(key); });
        wrong += one[0] != std::to_string(key)[0];
        if (i % 3 == 0) {
          const auto is_one = [&](const std::string& now) { return now == one; };
          all.replace(key, is_one, std::make_shared<const std::string>(one.size() < 9 ? one + "a" : one.substr(0, 1)));
        }
        if (i % 7 == 0) std::this_thread::yield();
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
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
