// tests/driver/tiers.test.cpp — a spliced kernel answers first, and the whole one takes over: calls, threads, captures,
// failures
#include <attune/attune.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codegen/choose/choose.h"
#include "compiler/lower.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/cuda/kernels/spliced.h"
#include "runtime/machine/background.h"
#include "runtime/machine/options.h"
#include "runtime/platform/nvidia/driver.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/driver/fake_driver.h"
#include "tests/driver/fake_nvrtc.h"

using namespace attune;
using runtime::cuda::driver;
namespace cu = runtime::cuda::cu;
namespace cuda = runtime::cuda;
namespace fake = tests::fake_driver;
namespace fake_nvrtc = tests::fake_nvrtc;

namespace {

/// A call of a score with an additional term, 128 wide, on Hopper: its forward has two tiers. `number` makes a mod that
/// no other test has compiled. Its spliced kernel is in the cache, as an earlier process may have left it there.
struct Call {
  static constexpr int hopper = 0;
  Device gpu = Device::cuda(hopper);
  Array<bf16> q = gpu.array<bf16>({1, 2, 300, 128}), k = gpu.array<bf16>({1, 2, 300, 128}),
              v = gpu.array<bf16>({1, 2, 300, 128}), o = gpu.array<bf16>({1, 2, 300, 128});
  Attention attention;
  Forward forward{.q = q, .k = k, .v = v, .o = o};

  explicit Call(float number, bool spliced = true)
      : attention{.score = [=](Float s, At at) { return s + number * f32(at.kv - at.q); }, .mask = mods::causal()} {
    if (spliced) keep_spliced();
  }
  void run(cu::Stream stream = nullptr) const { attention.run(forward, {.stream = stream}); }
  std::string notes() const {
    std::string out;
    const runtime::KernelStory story = runtime::stories(attention, forward).front();
    for (const std::string& note : story.notes) out += note + "\n";
    return out;
  }
  bool is_last() const { return notes().find("the last of two tiers") != std::string::npos; }

 private:
  void keep_spliced() const {
    const compiler::LoweredMod lowered = compiler::lower(attention);
    const codegen::WayChoices chosen = codegen::call_choices(lowered, runtime::call_spec(attention, forward)).ways[0];
    const codegen::GpuParts& parts = chosen.parts;
    const codegen::KernelPlan& plan = chosen.choices.choices.front().plan;
    const codegen::Source source = cuda::kernel_source_of(parts, plan).source;
    runtime::objects().get(cuda::asked_for_spliced(source), [&] {
      cuda::Binary made{.cubin = std::string("\177ELF") + source.text, .symbol = "spliced", .made = "spliced"};
      return cuda::entry_of(made, source);
    });
  }
};

/// Which kernels ran since fake::forget().
std::vector<bool> ran_spliced() {
  std::vector<bool> out;
  for (const fake::Launch& one : fake::launches()) out.push_back(one.kernel == "spliced");
  return out;
}

/// While this lives, compilations wait until may_go(), and then give the result.
class Compilations {
 public:
  explicit Compilations(int result = 0) {
    runtime::wait_for_spare_time();  // for skeletons of earlier tests
    fake_nvrtc::compile_with([this, result](const std::string&) {
      ++begun;
      may_.wait();
      return result;
    });
  }
  ~Compilations() {
    may_go();
    wait();
    fake_nvrtc::compile_with({});
  }
  Compilations(const Compilations&) = delete;
  Compilations& operator=(const Compilations&) = delete;
  void may_go() {
    if (!std::exchange(gone_, true)) go_.set_value();
  }

  std::atomic<int> begun = 0;

 private:
  std::promise<void> go_;
  std::shared_future<void> may_ = go_.get_future().share();
  bool gone_ = false;
};

/// A stream of Hopper's, and what was captured from it.
class Stream {
 public:
  Stream() { driver().cuStreamCreate(&made, cu::stream_non_blocking); }
  ~Stream() {
    if (graph_) driver().cuGraphDestroy(graph_);
    driver().cuStreamDestroy(made);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  template <class F>
  void capture(F call) {
    driver().cuStreamBeginCapture(made, cu::CaptureMode::relaxed);
    call();
    driver().cuStreamEndCapture(made, &graph_);
  }

  cu::Stream made = nullptr;

 private:
  cuda::Current current_{Call::hopper};
  cu::Graph graph_ = nullptr;
};

}  // namespace

TEST_CASE("a spliced kernel that is slower answers first, and the whole one takes over", "[driver][tiers]") {
  const Call call(0.5f);
  std::vector<watch::Built> built;
  std::mutex mutex;
  const auto watching = watch::on({.built = [&](const watch::Built& fact) {
    const std::lock_guard lock(mutex);
    built.push_back(fact);
  }});
  Compilations held;
  fake::forget();
  call.run();
  CHECK(ran_spliced() == std::vector{true});
  CHECK(call.notes().find("the first of two tiers") != std::string::npos);
  const std::size_t bytes = call.attention.workspace(call.forward);
  held.may_go();
  wait();
  fake::forget();
  call.run();
  CHECK(ran_spliced() == std::vector{false});
  CHECK(call.is_last());
  CHECK(call.attention.workspace(call.forward) == bytes);
  CHECK(held.begun == 1);
  const std::lock_guard lock(mutex);
  REQUIRE(built.size() == 1);  // the first one was there
  CHECK(built[0].tier == "last");
}

TEST_CASE("a whole kernel that is there answers at once", "[driver][tiers]") {
  const Call call(0.25f, false);
  call.run();
  const Call same(0.25f);  // other attentions, the same mod: the spliced kernel is there too now
  fake::forget();
  same.run();
  CHECK(ran_spliced() == std::vector{false});
  CHECK(same.notes().find("tiers") == std::string::npos);
}

TEST_CASE("threads that call while a kernel takes over get one of the two, and the last one from then on",
          "[driver][tiers]") {
  const Call call(0.75f);
  Compilations held;
  fake::forget();
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      const Stream own;
      while (!stop) call.run(own.made), ++calls;
    });
  CHECK(tests::comes_true([&] { return calls > 100 && held.begun == 1; }));
  held.may_go();
  CHECK(tests::comes_true([&] { return call.is_last(); }));
  const int after = calls;
  CHECK(tests::comes_true([&] { return calls > after + 100; }));
  stop = true;
  for (std::thread& one : threads) one.join();
  CHECK(held.begun == 1);
  CHECK(fake::calls("cuLibraryLoadData") == 2);
  fake::forget();
  call.run();
  CHECK(ran_spliced() == std::vector{false});
}

TEST_CASE("a call that is captured has the last kernel, whether its compilation runs or has not begun",
          "[driver][tiers]") {
  const Stream stream;
  const Call running(1.5f), waiting(2.5f);
  std::optional<Compilations> held(std::in_place);
  running.run();
  CHECK(tests::comes_true([&] { return held->begun == 1; }));
  waiting.run();  // compiled after the other one's
  fake::forget();
  std::thread capture([&] {
    const cuda::Current current(Call::hopper);
    Stream own;
    own.capture([&] { running.run(own.made); });
  });
  Stream third;
  std::thread other([&] {
    const cuda::Current current(Call::hopper);
    third.capture([&] { waiting.run(third.made); });
  });
  CHECK(tests::comes_true([&] { return held->begun == 2; }));  // the capture does not wait for the queue
  CHECK(fake::launches().empty());
  held->may_go();
  capture.join();
  other.join();
  CHECK(ran_spliced() == std::vector{false, false});
  held.reset();
}

TEST_CASE("a whole kernel that cannot be compiled leaves the first one in place, and captures have that",
          "[driver][tiers]") {
  const Call call(3.5f);
  {
    Compilations failing(6);
    failing.may_go();
    call.run();
    wait();
    CHECK(failing.begun == 1);
  }
  CHECK(call.notes().find("the first of two tiers stays: ") != std::string::npos);
  CHECK(call.notes().find("NVRTC 13.0 rejects a source") != std::string::npos);
  Stream stream;
  fake::forget();
  stream.capture([&] { call.run(stream.made); });
  call.run();
  wait();
  CHECK(ran_spliced() == std::vector{true, true});
}

TEST_CASE("the first kernel is unloaded once its stream is done with it, and stays where a graph has it",
          "[driver][tiers]") {
  Stream stream, other;
  const Call call(4.5f), captured(5.5f);
  fake::forget();
  call.run(stream.made);
  wait();
  {
    Compilations failing(6);
    failing.may_go();
    captured.run(stream.made);
    wait();
  }
  other.capture([&] { captured.run(other.made); });
  wait();
  // Each load looks for what the stream has done with: one takes note of where it is, and the next unloads.
  for (const float number : {6.5f, 7.5f, 8.5f}) Call(number, false).run(stream.made);
  CHECK(fake::calls("cuLibraryUnload") == 1);
  captured.run(other.made);
}

TEST_CASE("a process that ends while a kernel waits to take over drops it", "[driver][tiers]") {
  if (tests::skips_threads_in_child()) return;
  const Call call(9.5f), next(10.5f);
  CHECK(tests::in_child([&] {
          static std::atomic<int> begun = 0;
          static std::promise<void> go;
          static const auto may = go.get_future().share();
          fake_nvrtc::compile_with([](const std::string&) {
            ++begun;
            may.wait();
            return 6;
          });
          call.run();
          if (!tests::comes_true([] { return begun == 1; })) return 2;
          next.run();
          std::atexit([] { _exit(begun == 1 ? 0 : 1); });
          std::thread([] {
            // exit() has dropped the next one by then, or waits for this one.
            while (!runtime::stopping_background()) std::this_thread::yield();
            go.set_value();
          }).detach();
          std::exit(3);
          return 4;
        }) == 0);
}

TEST_CASE("a forked child does not wait for what its parent compiles", "[driver][tiers]") {
  if (tests::skips_threads_in_child()) return;
  const Call call(11.5f);
  Compilations held;
  call.run();
  CHECK(tests::comes_true([&] { return held.begun == 1; }));
  CHECK(tests::in_child([&] {
          Stream stream;
          fake::forget();
          stream.capture([&] { call.run(stream.made); });
          return ran_spliced() == std::vector{true} ? 0 : 1;
        }) == 0);
}

TEST_CASE("ATTUNE_TIERS=off: the whole kernel alone", "[driver][tiers]") {
  if (!runtime::set_option("ATTUNE_TIERS", "off")) {
    std::puts("[skip] options were read before: run this case alone");
    return;
  }
  const Call call(12.5f);
  fake::forget();
  call.run();
  CHECK(ran_spliced() == std::vector{false});
  CHECK(call.notes().find("tiers") == std::string::npos);
}

TEST_CASE("a kernel that is asked for by name has one tier", "[driver][tiers]") {
  const Call call(13.5f);
  const codegen::Variant usual = runtime::stories(call.attention, call.forward).front().variant;
  const codegen::Preference asked{usual, true, ""};
  fake::forget();
  runtime::run(call.attention, call.forward, &asked);
  CHECK(ran_spliced() == std::vector{false});
}
