// tests/runtime/attention/resources.test.cpp — resources of a call: a workspace and an executor
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/refusal.h"
#include "tests/sanitizers.h"
#include "tests/small_stack.h"

using namespace attune;
using tests::refusal;

namespace {

const Device host = Device::cpu();

struct Call {
  Array<float> q = host.array<float>({2, 4, 150, 24}), k = host.array<float>({2, 2, 300, 24}),
               v = host.array<float>({2, 2, 300, 40}), o = host.array<float>({2, 4, 150, 40});
  Forward forward{.q = q, .k = k, .v = v, .o = o};

  Call() {
    std::mt19937 dice(11);
    for (const auto& t : {q, k, v})
      for (float& x : t.values()) x = std::normal_distribution<float>()(dice);
  }
  std::vector<float> result() const { return {o.values().begin(), o.values().end()}; }
  void forget() const { std::ranges::fill(o.values(), 7.0f); }
};

const Attention attention{.score = mods::softcap(5), .mask = mods::causal()};

/// Memory that begins at a multiple of 64, followed by a margin that must stay unwritten.
class Room {
 public:
  explicit Room(std::size_t size) : lines_(size / sizeof(CacheLine) + 3), size_(size) {
    std::ranges::fill(all(), unwritten);
  }
  std::span<std::byte> all() { return std::as_writable_bytes(std::span(lines_)); }
  std::span<std::byte> given() { return all().first(size_); }
  bool margin_is_untouched() {
    return std::ranges::all_of(all().subspan(size_), [](std::byte b) { return b == unwritten; });
  }

 private:
  static constexpr std::byte unwritten{0xFF};  // also a NaN
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  std::vector<CacheLine> lines_;
  std::size_t size_;
};

}  // namespace

TEST_CASE("a call works in the memory it is given, whatever that holds, and in no more", "[resources]") {
  const Call c;
  attention.run(c.forward);
  const std::vector<float> expected = c.result();
  const Executor executor{.workers = 3};
  Room room(attention.workspace(c.forward, {.executor = executor}));
  for (int again = 0; again < 2; ++again) {
    c.forget();
    attention.run(c.forward, {.executor = executor, .workspace = room.given()});
    CHECK(c.result() == expected);
    CHECK(room.margin_is_untouched());
  }
  Room untouched(room.given().size());
  CHECK(!std::ranges::equal(room.given(), untouched.given()));
}

TEST_CASE("a workspace that will not do is refused at the line of the call, before anything is written",
          "[resources]") {
  const Call c;
  c.forget();
  const Executor executor{.workers = 2};
  const std::size_t size = attention.workspace(c.forward, {.executor = executor});
  Room room(size + 64);
  const int line = __LINE__ + 2;
  const Error small = refusal(
      [&] { attention.run(c.forward, {.executor = executor, .workspace = room.given().first(size - 1)}); });
  CHECK(small.code == "workspace-small");
  CHECK(small.where.line == line);
  CHECK(std::string(small.what()).find(std::to_string(size - 1)) != std::string::npos);
  CHECK(std::string(small.what()).find(std::to_string(size)) != std::string::npos);
  for (const std::size_t past : {1u, 4u, 32u})
    CHECK(refusal([&] {
            attention.run(c.forward, {.executor = executor, .workspace = room.given().subspan(past, size)});
          }).code == "workspace-alignment");
  CHECK(std::ranges::all_of(c.o.values(), [](float x) { return x == 7; }));
}

TEST_CASE("a backward works in the memory it is given, and refuses too little of it", "[resources]") {
  const Call c;
  const auto grad_o = host.array<float>({2, 4, 150, 40});
  std::ranges::fill(grad_o.values(), 1.0f);
  const auto dq = host.array<float>({2, 4, 150, 24}), dk = host.array<float>({2, 2, 300, 24});
  const Backward call{.q = c.q, .k = c.k, .v = c.v, .grad_o = grad_o, .dq = dq, .dk = dk};
  attention.backward(call);
  const std::vector<float> of_q(dq.values().begin(), dq.values().end()), of_k(dk.values().begin(), dk.values().end());
  const Executor executor{.workers = 2};
  Room room(attention.workspace(call, {.executor = executor}));
  for (const auto& t : {dq, dk}) std::ranges::fill(t.values(), 7.0f);
  const Error small = refusal([&] {
    attention.backward(call, {.executor = executor, .workspace = room.given().first(room.given().size() - 1)});
  });
  CHECK(small.code == "workspace-small");
  CHECK(std::ranges::all_of(dq.values(), [](float x) { return x == 7; }));
  attention.backward(call, {.executor = executor, .workspace = room.given()});
  CHECK(std::ranges::equal(dq.values(), of_q));
  CHECK(std::ranges::equal(dk.values(), of_k));
  CHECK(room.margin_is_untouched());
}

TEST_CASE("more workers need more memory, and the oracle none", "[resources]") {
  const Call c;
  CHECK(attention.workspace(c.forward, {.executor = {.workers = 4}}) >
        attention.workspace(c.forward, {.executor = {.workers = 1}}));
  const Attention exact{.target = Target::oracle};
  CHECK(exact.workspace(c.forward) == 0);
}

TEST_CASE("on the host a cover is empty, costs nothing, and changes nothing", "[resources]") {
  const Call c;
  const auto doc = host.array<int>({300}, "doc");
  for (int i = 0; i < 300; ++i) doc.data()[i] = i / 40;
  for (const Target target : {Target::automatic, Target::oracle}) {
    const Attention documents{.mask = mods::document(doc), .target = target};
    documents.run(c.forward);
    const std::vector<float> expected = c.result();
    CHECK(documents.cover_bytes(c.forward) == 0);
    const Cover cover = documents.cover(c.forward);
    CHECK(!cover);
    CHECK(documents.workspace(c.forward, {.cover = cover}) == documents.workspace(c.forward));
    c.forget();
    documents.run(c.forward, {.cover = cover});
    CHECK(c.result() == expected);
  }
}

TEST_CASE("a cover refuses what the call would refuse, at its line", "[resources]") {
  const Call c;
  Forward wrong = c.forward;
  wrong.k = host.array<float>({2, 2, 300, 23});
  const int line = __LINE__ + 1;
  const Error e = refusal([&] { attention.cover(wrong); });
  CHECK(e.code == "head-size");
  CHECK(e.where.line == line);
  CHECK(refusal([&] { attention.cover_bytes(wrong); }).code == "head-size");
}

TEST_CASE("prepare refuses what the call would refuse, and computes nothing", "[resources]") {
  const Call c;
  c.forget();
  attention.prepare(c.forward);
  CHECK(std::ranges::all_of(c.o.values(), [](float x) { return x == 7; }));
  Forward wrong = c.forward;
  wrong.k = host.array<float>({2, 2, 300, 23});
  const int line = __LINE__ + 1;
  const Error e = refusal([&] { attention.prepare(wrong); });
  CHECK(e.code == "head-size");
  CHECK(e.where.line == line);
  CHECK_THROWS_AS(attention.workspace(wrong), Error);
}

TEST_CASE("the same bits, whoever's threads and however many", "[resources]") {
  const Call c;
  attention.run(c.forward, {.executor = {.workers = 1}});
  const std::vector<float> expected = c.result();
  for (const int workers : {2, 5}) {
    c.forget();
    attention.run(c.forward, {.executor = {.workers = workers}});
    CHECK(c.result() == expected);
    const auto backwards = [&](std::int64_t count, const Task& run) {
      for (std::int64_t i = count; i-- > 0;) run(i, static_cast<int>(i % workers));
    };
    c.forget();
    attention.run(c.forward, {.executor = {.workers = workers, .parallel_for = backwards}});
    CHECK(c.result() == expected);
  }
}

TEST_CASE("many threads call one Attention and its copies at once: the same bits", "[resources]") {
  const Call alone;
  attention.run(alone.forward);
  std::array<bool, 4> same{};
  std::vector<std::thread> threads;
  for (bool& mine : same)
    threads.emplace_back([&mine, &alone] {
      mine = true;
      for (int n = 0; n < 5; ++n) {
        const Call c;
        const Attention copy = attention;
        (n % 2 ? attention : copy).run(c.forward);
        mine = mine && c.result() == alone.result();
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(std::ranges::all_of(same, std::identity{}));
}

TEST_CASE("a first call compiles on a thread with little stack", "[resources]") {
  if (tests::sanitized) return;  // sanitizers need more than such a stack for anything
  const Call c;
  std::string text = "s";
  for (int i = 0; i < 4; ++i) text = "max(0.25f, (" + text + "))";
  for (const std::size_t stack : {std::size_t{64} << 10, std::size_t{512} << 10}) {
    // Kernels that no test before this has made.
    const std::string scaled = text + " * " + std::to_string(stack + 1) + ".0f";
    std::string failure;
    c.forget();
    tests::on_stack_of(stack, [&] {
      try {
        Attention{.score = Text().score(scaled), .mask = mods::causal()}.run(c.forward);
      } catch (const std::exception& e) {
        failure = e.what();
      }
    });
    CHECK(failure == "");
    const std::vector<float> on_little = c.result();
    c.forget();
    Attention{.score = Text().score(scaled), .mask = mods::causal()}.run(c.forward);
    CHECK((c.result() == on_little));
  }
}
