// tests/runtime/attention/calls.test.cpp — calls of the CPU engine: numbers of threads, callers' threads, memory,
// progress
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/engines/workspace.h"
#include "runtime/machine/progress.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/golden.h"
#include "tests/guarded.h"
#include "tests/numerics/inputs.h"

using namespace attune;
using namespace std::chrono_literals;
using tests::comes_true, tests::Guarded, tests::Inputs, tests::Placed, tests::Shape;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes(const Placed& p) { return {p.memory.get(), p.memory.get() + p.size}; }
std::span<const std::int64_t> extents(const Tensor& t) {
  return std::span(t.shape).first(static_cast<std::size_t>(t.rank));
}

/// A call and its outputs.
struct ForwardCall {
  explicit ForwardCall(const Shape& shape) : in(tests::inputs(shape)) {}
  Inputs in;
  Placed o = tests::place(in.shape.dtype, in.shape_of_o(), in.shape.layout);
  Placed lse = tests::place(DType::f32, in.shape_of_lse(), in.shape.layout);
  Placed max = tests::place(DType::f32, in.shape_of_lse(), in.shape.layout);

  Forward call() const {
    Forward f = in.forward();
    f.o = o.tensor;
    f.lse = lse.tensor;
    f.max = max.tensor;
    return f;
  }
  Bytes results() const {
    Bytes all = bytes(o);
    for (const Placed* p : {&lse, &max}) {
      const Bytes more = bytes(*p);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  /// The call's results with these resources.
  Bytes operator()(const Attention& attention, const Resources& with = {}) const {
    for (const Placed* p : {&o, &lse, &max}) std::memset(p->memory.get(), 0xa5, p->size);
    attention.run(call(), with);
    return results();
  }
};

struct BackwardCall {
  BackwardCall(const Shape& shape, const std::vector<Tensor>& captures) : in(tests::inputs(shape)) {
    for (const Tensor& t : {in.q.tensor, in.k.tensor, in.v.tensor})
      outputs.push_back(tests::place(t.dtype, extents(t), shape.layout));
    backward = in.backward();
    backward.dq = outputs[0].tensor;
    backward.dk = outputs[1].tensor;
    backward.dv = outputs[2].tensor;
    for (const Tensor& t : captures) {
      outputs.push_back(tests::place(DType::f32, extents(t), tests::Layout::bhsd));
      backward.captured.push_back({t, outputs.back().tensor});
    }
  }
  Inputs in;
  std::vector<Placed> outputs;
  Backward backward;

  Backward call() const { return backward; }
  Bytes operator()(const Attention& attention, const Resources& with = {}) const {
    for (const Placed& p : outputs) std::memset(p.memory.get(), 0xa5, p.size);
    attention.backward(backward, with);
    Bytes all;
    for (const Placed& p : outputs) {
      const Bytes more = bytes(p);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
};

/// Every level of fields, a mask, a sink, a row term.
struct Rich {
  Array<float> slope = Device::cpu().array<float>({8}, "slope"), bias = Device::cpu().array<float>({3000}, "bias"),
               sinks = Device::cpu().array<float>({8}, "sinks");
  Attention attention{.score = [slope = slope, bias = bias](
                                   Float s, At at) { return s + slope[at.head] * (at.kv - at.q) + bias[at.kv]; },
                      .mask = [](At at) { return at.kv <= at.q + 60 && at.kv % 7 != 3; },
                      .sink = [sinks = sinks](SinkAt at) { return sinks[at.head]; }};

  Rich() {
    for (std::int64_t i = 0; i < 8; ++i) slope.data()[i] = 0.1f * static_cast<float>(i + 1);
    for (std::int64_t i = 0; i < 3000; ++i) bias.data()[i] = 0.2f * static_cast<float>(i % 11);
  }
  std::vector<Tensor> captures() const { return {slope, bias, sinks}; }
};

const Shape several_tiles{.q_len = 150, .kv_len = 300, .d = 24, .dv = 20};
const Shape one_query{.q_heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 3000, .d = 64, .dv = 64, .q_offset = 3000};
const Shape packed{.d = 16, .dv = 16, .dtype = DType::bf16, .q_lens = {70, 0, 1, 130}, .kv_lens = {200, 3, 0, 140}};

/// Threads of the caller, in another order.
Executor own_threads(int workers) {
  return {.workers = workers, .parallel_for = [workers](std::int64_t count, const Task& run) {
            std::atomic<std::int64_t> next{count};
            std::vector<std::thread> threads;
            for (int w = 0; w < workers; ++w)
              threads.emplace_back([&, w] {
                for (std::int64_t i = --next; i >= 0; i = --next) run(i, workers - 1 - w);
              });
            for (std::thread& t : threads) t.join();
          }};
}

template <class Call>
void same_bits_on_any_threads(const Attention& attention, const Call& call) {
  const Bytes one = call(attention, {.executor = {.workers = 1}});
  for (int workers = 2; workers <= 16; ++workers) {
    INFO(workers << " workers, " << call.in.shape.describe());
    CHECK(call(attention, {.executor = {.workers = workers}}) == one);
  }
  for (const int workers : {1, 3, 8}) CHECK(call(attention, {.executor = own_threads(workers)}) == one);
  for (int repeat = 0; repeat < 10; ++repeat) CHECK(call(attention, {.executor = {.workers = 4}}) == one);
}

/// Gives exactly the bytes that the call asks for, full of NaN.
template <class Call>
void works_in_the_memory_it_is_given(const Attention& attention, const Call& call, const Executor& executor) {
  const Bytes expected = call(attention, {.executor = executor});
  const std::size_t size = attention.workspace(call.call(), {.executor = executor});
  REQUIRE(size > 0);
  const Guarded<std::byte> exact(size);
  std::memset(exact.data(), 0xff, size);
  CHECK(call(attention, {.executor = executor, .workspace = {exact.data(), size}}) == expected);
  CHECK(exact.front_untouched());
  // With other data before and after it.
  constexpr std::size_t margin = 256;
  const std::shared_ptr<std::byte> around = tests::guarded((size + 2 * margin + 63) / 64 * 64);
  CHECK(call(attention, {.executor = executor, .workspace = {around.get() + margin, size}}) == expected);
  const auto is_as_before = [](std::byte b) { return b == std::byte{Guarded<std::byte>::fill}; };
  CHECK(std::all_of(around.get(), around.get() + margin, is_as_before));
  CHECK(std::all_of(around.get() + margin + size, around.get() + 2 * margin + size, is_as_before));
}

template <class Call>
std::string refusal(const Attention& attention, const Call& call, const Resources& with) {
  try {
    call(attention, with);
  } catch (const Error& e) {
    return e.code;
  }
  return "nothing was refused";
}

template <class Call>
void refuses_less_memory(const Attention& attention, const Call& call) {
  const Executor executor{.workers = 2};
  std::vector<std::byte> memory(attention.workspace(call.call(), {.executor = executor}), std::byte{0x77});
  REQUIRE(memory.size() > 1);
  for (const std::size_t less : {memory.size() - 1, memory.size() / 2, std::size_t{1}})
    CHECK(refusal(attention, call, {.executor = executor, .workspace = {memory.data(), less}}) == "workspace-small");
  CHECK(std::ranges::all_of(memory, [](std::byte b) { return b == std::byte{0x77}; }));
}

/// Enough arithmetic to make a call take some tenths of a second.
Attention slow_attention(int rounds) {
  return {.score = [=](Float s, At at) {
    return s + sum(rounds, [=](Int i) { return tanh(s + i) * sin(0.1f * (at.kv + i)); });
  }};
}

}  // namespace

TEST_CASE("1 to 16 threads, attune's or the caller's, give the same bits", "[calls]") {
  const Rich rich;
  for (const Shape& shape : {several_tiles, one_query, packed})
    same_bits_on_any_threads(rich.attention, ForwardCall(shape));
}

TEST_CASE("1 to 16 threads give the same bits backward, captured gradients too", "[calls]") {
  const Rich rich;
  for (const Shape& shape : {several_tiles, packed})
    same_bits_on_any_threads(rich.attention, BackwardCall(shape, rich.captures()));
}

TEST_CASE("a call works in the caller's memory, of exactly the size asked for", "[calls]") {
  const Rich rich;
  for (const int workers : {1, 3})
    for (const Shape& shape : {several_tiles, one_query, packed})
      works_in_the_memory_it_is_given(rich.attention, ForwardCall(shape), {.workers = workers});
}
TEST_CASE("a backward works in the caller's memory, of exactly the size asked for", "[calls]") {
  const Rich rich;
  for (const Shape& shape : {several_tiles, packed})
    works_in_the_memory_it_is_given(rich.attention, BackwardCall(shape, rich.captures()), {.workers = 3});
}

TEST_CASE("memory that is a byte too small is refused, and not touched", "[calls]") {
  const Rich rich;
  const ForwardCall call(several_tiles);
  refuses_less_memory(rich.attention, call);
}
TEST_CASE("memory that is a byte too small is refused backward too", "[calls]") {
  const Rich rich;
  refuses_less_memory(rich.attention, BackwardCall(several_tiles, rich.captures()));
}

TEST_CASE("memory that is too small, or begins within a cache line, is told so at the line of the call", "[calls]") {
  const auto told = [](const char* golden, std::span<std::byte> memory) {
    try {
      runtime::workspace_of(memory, {}, 1000);
      FAIL_CHECK(golden << " was not refused");
    } catch (const Error& e) {
      tests::golden_error(golden, e.what());
    }
  };
  alignas(64) std::array<std::byte, 2000> memory;
  told("workspace-small", std::span(memory).first(999));
  told("workspace-alignment", std::span(memory).subspan(1));
  try {
    ForwardCall({.q_len = 1, .kv_len = 1})(Attention{}, {.workspace = std::span(memory).first(64)});
    FAIL("64 bytes were enough");
  } catch (const Error& e) {
    CHECK(e.where.name.ends_with("calls.test.cpp"));
  }
}

TEST_CASE("more threads are asked more memory for", "[calls]") {
  const ForwardCall call(several_tiles);
  const Attention attention;
  CHECK(attention.workspace(call.call(), {.executor = {.workers = 8}}) >
        attention.workspace(call.call(), {.executor = {.workers = 1}}));
}

TEST_CASE("a listener is told of growing shares, on its own thread, and may end the call", "[calls]") {
  const Attention slow = slow_attention(100);
  // Only a long call reports progress before its end. How long that takes depends on the machine, and on a busy one on
  // when the calling thread runs between two tasks. So the call grows until it reports.
  const auto is_long_enough = [](const auto& tell) {
    for (std::int64_t batch = 1; batch <= 64; batch *= 2)
      if (tell(ForwardCall({.batch = batch, .q_len = 256, .kv_len = 512, .d = 8, .dv = 8}))) return true;
    return false;
  };
  for (const int workers : {1, 2}) {
    const bool reported = is_long_enough([&](const ForwardCall& call) {
      std::vector<double> told;
      bool here = true;
      const auto listen = [&, self = std::this_thread::get_id()](double share) {
        here = here && std::this_thread::get_id() == self;
        told.push_back(share);
      };
      const auto start = std::chrono::steady_clock::now();
      call(slow, {.executor = {.workers = workers}, .progress = listen});
      const auto took = std::chrono::steady_clock::now() - start;
      INFO(told.size() << " times in " << std::chrono::duration<double>(took).count() << " s");
      CHECK(here);
      CHECK(std::ranges::is_sorted(told));
      CHECK(std::ranges::all_of(told, [](double share) { return share >= 0 && share <= 1; }));
      REQUIRE(told.size() >= 1);
      CHECK(told.back() == 1);
      CHECK(std::ranges::count(told, 1.0) == 1);
      CHECK(runtime::progress_pause * (static_cast<std::int64_t>(told.size()) - 1) <= took);
      return told.size() >= 2;
    });
    CHECK(reported);
    const bool ended = is_long_enough([&](const ForwardCall& call) {
      std::vector<double> told;
      const auto end = [&](double share) {
        told.push_back(share);
        throw std::runtime_error("enough");
      };
      CHECK_THROWS_WITH(call(slow, {.executor = {.workers = workers}, .progress = end}), "enough");
      REQUIRE(told.size() == 1);
      return told[0] < 1;
    });
    CHECK(ended);
  }
}

TEST_CASE("a pool whose caller only waits reports progress, one thread at a time", "[calls]") {
  const ForwardCall call(several_tiles);
  constexpr auto until_due = runtime::progress_pause + 10ms;
  std::atomic<bool> listens{false}, another_ran{false};
  std::atomic<int> inside{0};
  std::atomic<bool> alone{true};
  std::vector<double> told;
  // The first thread ends a task when a report is due. While it is in the listener, the second thread ends a task when
  // the next report would be due. The last task runs at the end, because a finished call reports only its end.
  const Executor waiting{.workers = 2, .parallel_for = [&](std::int64_t count, const Task& run) {
                           std::atomic<bool> ended{false};
                           std::thread second([&] {
                             comes_true([&] { return listens || ended; });
                             if (listens) std::this_thread::sleep_for(until_due);
                             run(count - 2, 1);
                             another_ran = listens.load();
                           });
                           std::thread first([&] {
                             for (std::int64_t i = 0; i < count - 2; ++i) {
                               if (i == count - 3) std::this_thread::sleep_for(until_due);
                               run(i, 0);
                             }
                             ended = true;
                             second.join();
                             run(count - 1, 0);
                           });
                           first.join();
                         }};
  call(Attention{}, {.executor = waiting, .progress = [&](double share) {
                       if (++inside != 1) alone = false;
                       told.push_back(share);
                       if (told.size() == 1) {
                         listens = true;
                         if (!comes_true([&] { return another_ran.load(); })) alone = false;
                       }
                       --inside;
                     }});
  CHECK(alone);
  CHECK(std::ranges::is_sorted(told));
  REQUIRE(told.size() >= 2);
  CHECK(told.front() < 1);
  CHECK(told.back() == 1);
}

TEST_CASE("a call that is too short for reports tells its end", "[calls]") {
  const ForwardCall call({.batch = 1, .q_len = 4, .kv_len = 4, .d = 8, .dv = 8});
  for (const Target target : {Target::oracle, Target::cpu}) {
    std::vector<double> told;
    Attention attention;
    attention.target = target;
    call(attention, {.progress = [&](double share) { told.push_back(share); }});
    REQUIRE(!told.empty());
    CHECK(told.back() == 1);
  }
}

TEST_CASE("an executor that leaves tasks out is refused", "[calls]") {
  const Executor lazy{.workers = 2, .parallel_for = [](std::int64_t count, const Task& run) {
                        for (std::int64_t i = 0; i + 1 < count; ++i) run(i, 0);
                      }};
  CHECK(refusal(Attention{}, ForwardCall(several_tiles), {.executor = lazy}) == "executor-tasks");
}

TEST_CASE("a forked child attends after its parent did, and the parent after it", "[calls]") {
  if (tests::skips_threads_in_child()) return;
  const Rich rich;
  const ForwardCall call(several_tiles);
  const Bytes before = call(rich.attention, {.executor = {.workers = 4}});
  CHECK(tests::in_child([&] {
          const bool same = call(rich.attention, {.executor = {.workers = 4}}) == before;
          // A mod that has to be compiled, too.
          const Attention other{.score = [](Float s, At at) { return s * 0.123f + at.kv; }};
          call(other, {.executor = {.workers = 4}});
          return same ? 0 : 1;
        }) == 0);
  CHECK(call(rich.attention, {.executor = {.workers = 4}}) == before);
}

TEST_CASE("a forked child attends with an attention that the parent's threads are using", "[calls]") {
  if (tests::skips_threads_in_child()) return;
  const Rich rich;
  const ForwardCall call(several_tiles);
  const Bytes before = call(rich.attention, {.executor = {.workers = 1}});
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!over) rich.attention.memo.get(rich.attention);
    });
  int failed = 0;
  for (int i = 0; i < 50 && failed == 0; ++i)
    failed += tests::in_child([&] { return call(rich.attention, {.executor = {.workers = 1}}) == before ? 0 : 1; }) !=
              0;
  CHECK(failed == 0);
  over = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("8 threads compile different and equal mods at once, and each gets its own results", "[calls]") {
  constexpr int users = 8, rounds = 6;
  // In odd rounds all threads ask for the same mods, in even ones each for its own.
  const auto attention = [](int user, int round) {
    const float own = 0.5f + static_cast<float>(round) + (round % 2 ? 0 : 100 * static_cast<float>(user + 1));
    return Attention{.score = [=](Float s, At at) { return s * 0.01f + own * 1e-4f * (at.kv - at.q); },
                     .mask = [=](At at) { return at.kv % (round + 2) != 1; }};
  };
  std::array<std::array<Bytes, rounds>, users> results;
  std::vector<std::thread> threads;
  for (int u = 0; u < users; ++u)
    threads.emplace_back([&, u] {
      for (int r = 0; r < rounds; ++r)
        results[static_cast<std::size_t>(u)][static_cast<std::size_t>(r)] = ForwardCall(
            {.dtype = r % 3 == 2 ? DType::bf16 : DType::f32})(attention(u, r), {.executor = {.workers = 2}});
    });
  for (std::thread& t : threads) t.join();
  for (int u = 0; u < users; ++u)
    for (int r = 0; r < rounds; ++r) {
      const auto& got = results[static_cast<std::size_t>(u)][static_cast<std::size_t>(r)];
      CHECK(got == ForwardCall({.dtype = r % 3 == 2 ? DType::bf16 : DType::f32})(attention(u, r)));
      if (r % 2 == 0 && u > 0) CHECK(got != results[0][static_cast<std::size_t>(r)]);
    }
}

TEST_CASE("a prepared call compiles nothing", "[calls]") {
  const Attention attention{.score = [](Float s, At at) { return s * 0.7f + sin(at.kv * 0.37f); }};
  const ForwardCall call({.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 8, .kv_len = 8});
  std::atomic<int> built{0};
  const auto watching = watch::on({.built = [&](const watch::Built&) { ++built; }});
  attention.prepare(call.call());
  CHECK(built > 0);
  built = 0;
  call(attention, {.executor = {.workers = 1}});
  CHECK(built == 0);
}

TEST_CASE("calls of one Attention run at the same time on shared threads", "[calls]") {
  const Rich rich;
  const Bytes expected = ForwardCall(several_tiles)(rich.attention, {.executor = {.workers = 1}});
  std::atomic<int> same{0};
  std::vector<std::thread> threads;
  for (int u = 0; u < 6; ++u)
    threads.emplace_back([&] {
      const ForwardCall call(several_tiles);
      for (int repeat = 0; repeat < 5; ++repeat) same += call(rich.attention, {.executor = {.workers = 3}}) == expected;
    });
  for (std::thread& t : threads) t.join();
  CHECK(same == 30);
}
