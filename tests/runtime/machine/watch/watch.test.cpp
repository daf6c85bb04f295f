// tests/runtime/machine/watch/watch.test.cpp — facts reach the listeners that want them, and listeners cannot harm a
// call
#include <attune/attune.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "runtime/engines/dump.h"
#include "tests/catch.h"
#include "tests/child.h"

using namespace attune;

namespace {

const Device host = Device::cpu();

struct Call {
  Array<float> q = host.array<float>({1, 2, 5, 8}), k = host.array<float>({1, 1, 7, 8}),
               v = host.array<float>({1, 1, 7, 16}), o = host.array<float>({1, 2, 5, 16});
  Forward forward{.q = q, .k = k, .v = v, .o = o};
};

/// An attention that no other test uses, so that its kernel is not in memory.
Attention fresh(Target target = Target::automatic) {
  static std::atomic<int> next{0};
  const float own = 1.0f + 0.001f * static_cast<float>(++next);
  return {.score = [own](Float s, At) { return s * own + 7.25f; }, .target = target};
}

struct Facts {
  std::mutex mutex;
  std::vector<watch::Lowered> lowered;
  std::vector<watch::Chosen> chosen;
  std::vector<watch::Built> built;
  std::vector<watch::Called> called;
  std::vector<watch::Notice> notice;

  watch::Callbacks all() {
    const auto to = [this](auto& list) {
      return [this, &list](const auto& fact) {
        const std::lock_guard lock(mutex);
        list.push_back(fact);
      };
    };
    return {
        .lowered = to(lowered), .chosen = to(chosen), .built = to(built), .called = to(called), .notice = to(notice)};
  }
};

}  // namespace

TEST_CASE("a call of the oracle is told with its sizes and its line, and lowered once", "[watch]") {
  const Call c;
  const Attention attention = fresh(Target::oracle);
  Facts facts;
  auto watching = watch::on(facts.all());
  for (int again = 0; again < 2; ++again) attention.run(c.forward, Line{.file = "mine.cpp", .number = 12});
  REQUIRE(facts.lowered.size() == 1);
  CHECK(facts.lowered[0].mod.size() == 32);
  CHECK(facts.lowered[0].steps.front().name == "trace");
  CHECK(facts.lowered[0].steps.back().name == "cover");
  for (const auto& step : facts.lowered[0].steps) CHECK(step.nodes > 0);
  CHECK(facts.built.empty());
  REQUIRE(facts.called.size() == 2);
  const watch::Called& call = facts.called[1];
  CHECK(call.call == "forward");
  CHECK(call.mod == facts.lowered[0].mod);
  CHECK(call.target == "oracle");
  CHECK(call.dtype == "f32");
  CHECK(std::array{call.batch, call.q_heads, call.kv_heads, call.q_len, call.kv_len, call.d, call.dv} ==
        std::array<std::int64_t, 7>{1, 2, 1, 5, 7, 8, 16});
  CHECK_FALSE(call.packed);
  CHECK(std::string(call.file) == "mine.cpp");
  CHECK(call.line == 12);
  watching.stop();
  attention.run(c.forward);
  CHECK(facts.called.size() == 2);
}

TEST_CASE("what is left out is not asked for, and who leaves leaves nothing behind", "[watch]") {
  using runtime::Fact, runtime::wants;
  const bool noted_before = wants(Fact::notice), called_before = wants(Fact::called);
  {
    const auto watching = watch::on({.notice = [](const auto&) {}});
    CHECK(wants(Fact::notice));
    CHECK(wants(Fact::called) == called_before);
    auto moved = watch::on({.called = [](const auto&) {}});
    moved = watch::Watching();
    CHECK(wants(Fact::called) == called_before);
  }
  CHECK(wants(Fact::notice) == noted_before);
}

TEST_CASE("a callback that throws is told of, and the call is as good as unwatched", "[watch]") {
  const Call c;
  Facts facts;
  int others = 0;
  const auto thrower = watch::on(
      {.called = [](const auto&) { throw std::runtime_error("not today"); }, .notice = [](const auto&) { throw 1; }});
  const auto other = watch::on({.called = [&](const auto&) { ++others; }, .notice = facts.all().notice});
  CHECK_NOTHROW(fresh(Target::oracle).run(c.forward));
  CHECK(others == 1);
  REQUIRE(facts.notice.size() == 1);
  CHECK(facts.notice[0].of == watch::Notice::Of::watch);
  CHECK(facts.notice[0].text.find("not today") != std::string::npos);
}

TEST_CASE("a callback may call attune, the attention that it is told of too, and is not told of that", "[watch]") {
  const Call c, inner;
  const Attention attention = fresh(), nested = fresh(Target::oracle);
  int calls = 0, seen_by_other = 0;
  const auto again = [&](const auto&) {
    ++calls;
    attention.run(inner.forward);
    nested.run(inner.forward);
  };
  const auto watching = watch::on({.lowered = again, .chosen = again, .built = again, .called = again});
  const auto other = watch::on({.called = [&](const auto&) { ++seen_by_other; }});
  try {
    attention.run(c.forward);
  } catch (const Error& e) {
    REQUIRE(e.code == "no-engine");
    return;
  }
  CHECK(calls >= 3);  // lowered, chosen, one or more built, called
  CHECK(seen_by_other == 1 + 2 * calls);
}

TEST_CASE("stop waits for the callbacks of other threads, and not for its own", "[watch]") {
  std::atomic<bool> entered{false}, go{false}, left{false};
  auto watching = watch::on({.notice = [&](const auto&) {
    entered = true;
    while (!go) std::this_thread::yield();
    left = true;
  }});
  std::thread teller([] { runtime::note(watch::Notice::Of::cache, "a note"); });
  while (!entered) std::this_thread::yield();
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go = true;
  });
  watching.stop();
  CHECK(left);
  teller.join();
  late.join();

  watch::Watching own;
  int told = 0;
  own = watch::on({.notice = [&](const auto&) {
    ++told;
    own.stop();
  }});
  for (int i = 0; i < 2; ++i) runtime::note(watch::Notice::Of::cache, "a note");
  CHECK(told == 1);
}

TEST_CASE("a forked child stops a watch whose callback a thread of its parent is in", "[watch]") {
  std::atomic<bool> entered{false}, go{false};
  auto watching = watch::on({.notice = [&](const auto&) {
    entered = true;
    while (!go) std::this_thread::yield();
  }});
  std::thread teller([] { runtime::note(watch::Notice::Of::cache, "a note"); });
  while (!entered) std::this_thread::yield();
  CHECK(tests::in_child([&] {
          watching.stop();
          return 0;
        }) == 0);
  go = true;
  teller.join();

  pid_t child = -1;
  auto forks = watch::on({.notice = [&](const auto&) {
    if (child < 0) child = tests::fork_child();
  }});
  runtime::note(watch::Notice::Of::cache, "a note");
  runtime::note(watch::Notice::Of::cache, "another note");
  forks.stop();
  if (child == 0) _exit(0);
  CHECK(tests::status_of(child) == 0);
}

TEST_CASE("threads that call, listen and leave at the same time lose and repeat nothing", "[watch]") {
  const Attention attention = fresh(Target::oracle);
  std::atomic<int> called{0}, passing{0};
  const auto watching = watch::on({.called = [&](const auto&) { ++called; }});
  constexpr int threads = 4, each = 25;
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&] {
      const Call c;
      for (int i = 0; i < each; ++i) {
        const auto own = watch::on({.called = [&](const auto&) { ++passing; }});
        attention.run(c.forward);
      }
    });
  for (std::thread& t : all) t.join();
  CHECK(called == threads * each);
  CHECK(passing >= threads * each);
}

TEST_CASE("a kernel is told with where it came from, and not again", "[watch]") {
  using runtime::CacheEntry, runtime::Origin;
  std::string folder = (std::filesystem::temp_directory_path() / "attune-watch-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  Facts facts;
  const auto watching = watch::on(facts.all());
  const auto get = [&](runtime::Objects& from) {
    Origin origin;
    const auto kept = from.get(
        {"a key"},
        [] {
          return CacheEntry{{}, "code"};
        },
        &origin);
    runtime::record_built(
        {nullptr, "kernel", "sm_90a"}, origin, {"a key"}, 0.5,
        {.bytes = kept->bytes.size(), .registers = 168, .spilled = 4, .shared = 1024, .flaw = "spills"});
  };
  runtime::Objects first(std::make_unique<runtime::Cache>(folder)), second(std::make_unique<runtime::Cache>(folder));
  for (int again = 0; again < 2; ++again) get(first);
  get(second);
  REQUIRE(facts.built.size() == 2);
  using From = watch::Built::From;
  CHECK(facts.built[0].from == From::compiler);
  CHECK(facts.built[1].from == From::disk);
  for (const watch::Built& one : facts.built) {
    CHECK(one.kernel == "kernel");
    CHECK(one.target == "sm_90a");
    CHECK(one.bytes == 4);
    CHECK(std::array{one.registers, one.spilled, one.shared} == std::array{168, 4, 1024});
    CHECK(one.flaw == "spills");
    CHECK(one.key == runtime::cache_key("a key").name());
    CHECK(one.seconds == 0.5);
  }
  // The cache's notes are told too.
  const auto entry = runtime::Cache(folder).file_of(runtime::cache_key("a key"));
  std::filesystem::resize_file(entry, 10);
  runtime::Objects third(std::make_unique<runtime::Cache>(folder));
  get(third);
  CHECK(facts.built.back().from == From::compiler);
  REQUIRE(facts.notice.size() == 1);
  CHECK(facts.notice[0].of == watch::Notice::Of::cache);
  CHECK(facts.notice[0].text.find("is discarded") != std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST_CASE("many kernels that differ by a number alone are told of", "[watch]") {
  Facts facts;
  const auto watching = watch::on(facts.all());
  const auto build = [](const Score& score) {
    const compiler::BoundMod bound = compiler::trace(Attention{.score = score});
    runtime::record_built({&bound.mod, "forward-f32", "a test's"}, runtime::Origin::compiler, {"a key"}, 0.5, {});
  };
  const auto scaled = [&](int i) {
    build([=](Float s, At at) { return s * (0.5f + float(i)) + f32(at.q - at.kv) * 1e-20f; });
  };
  for (int i = 0; i < 63; ++i) scaled(i), build([=](Float s, At) { return tanh(s) + float(i) * s; });
  CHECK(facts.notice.empty());
  for (int i = 63; i < 130; ++i) scaled(i);
  REQUIRE(facts.notice.size() == 2);
  CHECK_THAT(facts.notice[0].text, Catch::StartsWith("64 kernels forward-f32 of a test's differ only in numbers"));
  CHECK_THAT(facts.notice[1].text, Catch::StartsWith("128 kernels"));
}

TEST_CASE("the first call builds and the next does not, whatever engine there is", "[watch]") {
  const Call c;
  const Attention attention = fresh();
  Facts facts;
  const auto watching = watch::on(facts.all());
  try {
    attention.run(c.forward);
  } catch (const Error& e) {
    REQUIRE(e.code == "no-engine");
    return;
  }
  const auto is_ours = [&](const auto& fact) { return fact.mod == facts.lowered.at(0).mod; };
  REQUIRE(std::ranges::count_if(facts.built, is_ours) == 1);
  const watch::Built built = *std::ranges::find_if(facts.built, is_ours);
  CHECK(built.kernel == "forward-f32");
  CHECK(built.bytes > 0);
  CHECK(built.seconds > 0);
  CHECK(std::ranges::count_if(facts.chosen, is_ours) == 1);
  REQUIRE(facts.called.size() == 1);
  CHECK(facts.called[0].target == built.target);
  CHECK(facts.called[0].workspace == attention.workspace(c.forward));
  CHECK(facts.called[0].seconds >= built.seconds);
  const auto before = facts.built.size();
  attention.run(c.forward);
  CHECK(facts.built.size() == before);
  CHECK(facts.called.size() == 2);
  CHECK(facts.lowered.size() == 1);
}
