// tests/driver/calls.test.cpp — calls on a fake driver: no hidden allocations or waits; refusals become Errors
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <random>
#include <string>

#include "codegen/source/source.h"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/attention/tools.h"
#include "runtime/attention/watched.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/oracle/verify_rows.h"
#include "runtime/machine/options.h"
#include "runtime/platform/nvidia/driver.h"
#include "tests/catch.h"
#include "tests/driver/fake_driver.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;
using runtime::cuda::driver;
namespace cu = runtime::cuda::cu;
namespace fake = tests::fake_driver;

namespace {

Device device_of(int arch) {
  const auto found = std::ranges::find(fake::archs, arch);
  return Device::cuda(static_cast<int>(found - std::begin(fake::archs)));
}

Attention documents_of(const Array<int>& doc, float number = 1) {
  return {.score = [=](Float s, At) { return s * number; },
          .mask = [=](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; }};
}

struct Call {
  Array<bf16> q, k, v, o;
  Array<int> doc;
  Forward forward;

  explicit Call(std::int64_t length = 300, std::int64_t d = 64, const Device& gpu = device_of(90))
      : q(gpu.array<bf16>({2, 4, length, d})), k(gpu.array<bf16>({2, 2, length, d})),
        v(gpu.array<bf16>({2, 2, length, d})), o(gpu.array<bf16>({2, 4, length, d})),
        doc(gpu.array<int>({1000}, "doc")), forward{.q = q, .k = k, .v = v, .o = o} {}

  /// `number` makes an attention that no other test has compiled.
  Attention causal(float number = 1) const {
    return {.score = [=](Float s, At) { return s * number; }, .mask = mods::causal()};
  }
  /// An attention whose tiles are listed on the device.
  Attention documents(float number = 1) const { return documents_of(doc, number); }
};

/// The first batch entries and heads of a call.
Forward part_of(const Call& call, std::int64_t batch, std::int64_t heads) {
  const Tensor& q = call.forward.q;
  const auto part = [&](const Array<bf16>& t, std::int64_t of_heads) {
    return Tensor(t.data(), DType::bf16, {batch, of_heads, q.shape[2], q.shape[3]}, {}, q.device);
  };
  return {
      .q = part(call.q, heads), .k = part(call.k, heads / 2), .v = part(call.v, heads / 2), .o = part(call.o, heads)};
}

/// A call in f32, with its arrays on `where`.
struct Single {
  Array<float> q, k, v, o, lse;
  Forward forward;

  explicit Single(const Device& where)
      : q(where.array<float>({1, 4, 40, 64})), k(where.array<float>({1, 2, 50, 64})),
        v(where.array<float>({1, 2, 50, 64})), o(where.array<float>({1, 4, 40, 64})),
        lse(where.array<float>({1, 4, 40})), forward{.q = q, .k = k, .v = v, .o = o, .lse = lse} {}
};

/// Two sequences.
struct Packed {
  Array<bf16> q, k, v, o;
  Array<int> starts;
  Forward forward;

  explicit Packed(const Device& gpu = device_of(90))
      : q(gpu.array<bf16>({300, 4, 64})), k(gpu.array<bf16>({300, 2, 64})), v(gpu.array<bf16>({300, 2, 64})),
        o(gpu.array<bf16>({300, 4, 64})), starts(Device::cpu().array<int>({3})),
        forward{.q = q, .k = k, .v = v, .o = o, .cu_seqlens_q = starts, .cu_seqlens_kv = starts} {
    starts.data()[1] = 100, starts.data()[2] = 300;
  }
};

/// The code of the Error that is thrown, or `bug`, or `nothing`.
template <class F>
std::string code_of(F call) {
  try {
    return tests::refusal(call).code;
  } catch (const Bug&) {
    return "bug";
  }
}

/// The kernel of a causal call on such a device.
fake::Launch launched_on(int arch, std::int64_t d) {
  const Call call(300, d, device_of(arch));
  fake::forget();
  call.causal().run(call.forward);
  const auto launches = fake::launches();
  REQUIRE(launches.size() == 1);
  return launches[0];
}

void fits(const fake::Launch& launch, const std::string& kernel, unsigned most_shared) {
  CHECK(launch.kernel.find(kernel) != std::string::npos);
  CHECK(launch.shared_bytes <= most_shared);
  CHECK(launch.threads > 0);
  CHECK(launch.threads % 32 == 0);
  CHECK(launch.blocks > 0);
}

}  // namespace

TEST_CASE("an A100 is given the portable kernel", "[driver]") { fits(launched_on(80, 128), "forward_sm80", 163 << 10); }
TEST_CASE("an L40S is given the portable kernel in its small memory", "[driver]") {
  fits(launched_on(89, 256), "forward_sm80", 99 << 10);
}
TEST_CASE("an H200 is given Hopper's kernel", "[driver]") { fits(launched_on(90, 128), "forward_sm90", 227 << 10); }
TEST_CASE("a B200 is given the portable kernel", "[driver]") { fits(launched_on(100, 128), "forward_sm80", 227 << 10); }
TEST_CASE("an RTX 5090 is given the portable kernel in its small memory", "[driver]") {
  fits(launched_on(120, 256), "forward_sm80", 99 << 10);
}

TEST_CASE("a repeated call is one launch, and neither waits nor takes memory that is not its stream's",
          "[driver][cold]") {
  const Call call;
  const Attention causal = call.causal(), documents = call.documents();
  causal.run(call.forward);
  documents.run(call.forward);
  const auto compiled = runtime::cuda::compiled_kernels();
  const int memory = fake::live_memory();

  fake::forget();
  causal.run(call.forward);
  CHECK(fake::calls("cuLaunchKernelEx") == 1);
  documents.run(call.forward);
  CHECK(fake::calls("cuLaunchKernelEx") == 3);  // the lists are a separate launch
  CHECK(fake::calls_behind_the_back() == 0);
  CHECK(fake::calls("cuMemAllocAsync") == fake::calls("cuMemFreeAsync"));
  CHECK(fake::live_memory() == memory);
  CHECK(fake::contexts() == 0);

  // Other data, batches, and lengths of more than 80 compile nothing.
  const auto run = [&](std::int64_t length) {
    const Call other(length);
    causal.run(other.forward);
    other.documents().run(other.forward);
  };
  for (const std::int64_t length : {81, 130, 299, 512}) run(length);
  CHECK(runtime::cuda::compiled_kernels() == compiled);
  // Causal masks of fewer have another tile, and lists have not.
  run(65);
  CHECK(runtime::cuda::compiled_kernels() == compiled + 1);
  // Heads that share keys share a tile if there are few queries.
  run(64);
  CHECK(runtime::cuda::compiled_kernels() == compiled + 3);
  run(33);
  CHECK(runtime::cuda::compiled_kernels() == compiled + 3);
  // With very few queries, blocks also share the keys (split-KV).
  run(1);
  CHECK(runtime::cuda::compiled_kernels() == compiled + 6);  // with the one that clears counters
  for (const std::int64_t length : {2, 8}) run(length);
  CHECK(runtime::cuda::compiled_kernels() == compiled + 6);
}

TEST_CASE("an attention that becomes more exact, or less, gets another kernel, and the first one again", "[driver]") {
  const Call call;
  const Single single(device_of(90));
  for (const Forward* forward : {&call.forward, &single.forward}) {
    const bool usual = forward->q.dtype == DType::f32;
    Attention attention{.score = mods::softcap(31), .mask = mods::causal()};
    const auto is_exact = [&](std::optional<bool> asked) {
      attention.exact = asked;
      fake::forget();
      attention.run(*forward);
      REQUIRE(fake::launches().size() == 1);
      const std::string kernel = fake::launches()[0].kernel;
      CHECK((kernel.find("exact") == std::string::npos) != (kernel.find("fast") == std::string::npos));
      CHECK(runtime::call_spec(attention, *forward).spec.exact == (kernel.find("exact") != std::string::npos));
      return kernel.find("exact") != std::string::npos;
    };
    CHECK(is_exact({}) == usual);
    CHECK(is_exact(!usual) == !usual);
    const auto compiled = runtime::cuda::compiled_kernels();
    CHECK(is_exact(usual) == usual);
    CHECK(is_exact({}) == usual);
    const Attention copy = attention;
    attention.exact = !usual;
    fake::forget();
    copy.run(*forward);
    CHECK((fake::launches()[0].kernel.find("exact") != std::string::npos) == usual);
    CHECK(runtime::cuda::compiled_kernels() == compiled);
  }
}

TEST_CASE("a cover is for calls of its mask, however exact they are", "[driver]") {
  const Call call;
  Attention documents = call.documents();
  const Cover cover = documents.cover(call.forward);
  documents.exact = true;
  fake::forget();
  documents.run(call.forward, {.cover = cover});
  CHECK(fake::launches().size() == 1);
}

TEST_CASE("a cold kernel has its parts derived once and each candidate's source written once", "[driver][cold]") {
  const Call call;
  const Attention causal = call.causal(0.625f);
  const auto compiled = runtime::cuda::compiled_kernels(), derived = codegen::gpu_parts_derived(),
             written = codegen::kernel_sources_written();
  causal.run(call.forward);
  CHECK(runtime::cuda::compiled_kernels() == compiled + 1);
  CHECK(codegen::gpu_parts_derived() == derived + 1);
  CHECK(codegen::kernel_sources_written() == written + 1);
  causal.run(call.forward);
  CHECK(codegen::gpu_parts_derived() == derived + 1);
  CHECK(codegen::kernel_sources_written() == written + 1);
  // The kernel that writes its lists needs no parts of its own. No other test has this mask, whose lists' kernel serves
  // all scores.
  Attention earlier = call.documents(0.625f);
  earlier.mask = [doc = call.doc](At at) { return at.kv < at.q && doc[at.q] == doc[at.kv]; };
  earlier.run(call.forward);
  CHECK(runtime::cuda::compiled_kernels() == compiled + 3);
  CHECK(codegen::gpu_parts_derived() == derived + 2);
  CHECK(codegen::kernel_sources_written() == written + 2);
}

TEST_CASE("a call on a device is told with its kernel and its workspace", "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  std::vector<watch::Called> told;
  const auto watching = watch::on({.called = [&](const watch::Called& fact) { told.push_back(fact); }});
  documents.run(call.forward);
  REQUIRE(told.size() == 1);
  CHECK(told[0].target == "sm_90a");
  CHECK(told[0].kernel.starts_with("forward_sm90:"));
  CHECK(told[0].dtype == "bf16");
  CHECK(told[0].workspace == documents.workspace(call.forward));
}

TEST_CASE("rows of a device's results come to the host and are verified", "[driver]") {
  const Call call(20);
  const Array<float> lse = device_of(90).array<float>({2, 4, 20});
  const compiler::LoweredMod lowered = compiler::lower(call.documents());
  const auto found = [&](const Forward& forward) {
    return code_of([&] {
      runtime::verify(runtime::call_of(lowered, forward, compiler::check(lowered, forward, {})), {.rows = 1000},
                      nullptr);
    });
  };
  // Nothing is computed, so all results are 0: correct for o, whose values are 0, and wrong for lse, in rows of many
  // keys.
  fake::forget();
  CHECK(found(call.forward) == "nothing");
  CHECK(fake::calls("cuStreamSynchronize") > 0);
  Forward with_lse = call.forward;
  with_lse.lse = lse;
  CHECK(found(with_lse) == "bug");
  CHECK(fake::contexts() == 0);
}

TEST_CASE("starts on a device are neither sent nor waited for, and verified by what they say", "[driver]") {
  const Packed packed;
  const auto starts = packed.starts.on(packed.q.tensor().device);
  Forward there = packed.forward;
  there.cu_seqlens_q = there.cu_seqlens_kv = starts;
  there.max_q_len = there.max_kv_len = 1000;
  const Attention causal{.mask = mods::causal()};
  const auto sent = [&](const Forward& forward) {
    causal.prepare(forward);
    fake::forget();
    causal.run(forward);
    CHECK(fake::calls("cuLaunchKernelEx") == 1);
    CHECK(fake::calls_behind_the_back() == 0);
    return fake::calls("cuMemcpyAsync");
  };
  CHECK(sent(packed.forward) == 1);
  CHECK(sent(there) == 0);
  const auto found = [&](const Forward& forward) {
    const compiler::LoweredMod lowered = compiler::lower(causal);
    return code_of([&] {
      runtime::verify(runtime::call_of(lowered, forward, compiler::check(lowered, forward, {})), {.rows = 1000},
                      nullptr);
    });
  };
  CHECK(found(there) == "nothing");
  // Verification, which reads the starts, finds invalid ones.
  auto wrong = Device::cpu().array<int>({starts.tensor().shape[0]});
  wrong.data()[0] = 5;
  copy(wrong, starts);
  CHECK(found(there) == "cu-seqlens");
}

TEST_CASE("results of one product of TF32 are verified as what they are", "[driver]") {
  const Single there(device_of(90)), here(Device::cpu());
  const Attention causal{.score = [](Float s, At at) { return s - 0.125f * f32(at.q - at.kv); },
                         .mask = mods::causal(),
                         .target = Target::oracle};
  const auto found = [&](std::optional<bool> exact) {
    const compiler::LoweredMod lowered = compiler::lower(causal);
    return code_of([&] {
      const compiler::Problem problem = compiler::check(lowered, there.forward, {});
      runtime::Call checked = runtime::call_of(lowered, there.forward, problem);
      checked.exact = exact;
      runtime::verify(checked, {.rows = 1000}, nullptr);
    });
  };
  for (const bool alike : {false, true}) {  // true: all of v is alike, so its roundings do not average out
    std::mt19937 dice(5);
    const auto fill = [&](const Array<float>& h, const Array<float>& t, bool same) {
      for (float& x : h.values()) x = same ? 0.1f : std::normal_distribution<float>()(dice);
      copy(h, t);
      for (float& x : h.values()) x = static_cast<float>(runtime::tf32(x));
    };
    fill(here.q, there.q, false);
    fill(here.k, there.k, false);
    fill(here.v, there.v, alike);
    causal.run(here.forward);
    copy(here.o, there.o);
    copy(here.lse, there.lse);
    CHECK(found(false) == "nothing");
    CHECK(found(true) == "bug");
    CHECK(found({}) == "bug");
    here.o.values()[7 * 64 + 3] += 0.05f;
    copy(here.o, there.o);
    CHECK(found(false) == "bug");
  }
}

TEST_CASE("a call with a workspace takes no memory at all", "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  const std::size_t bytes = documents.workspace(call.forward);
  REQUIRE(bytes > 0);
  auto room = device_of(90).array<std::uint8_t>({static_cast<std::int64_t>(bytes)});
  const std::span<std::byte> workspace(reinterpret_cast<std::byte*>(room.data()), bytes);
  fake::forget();
  documents.run(call.forward, {.workspace = workspace});
  CHECK(fake::calls("cuMemAllocAsync") == 0);
  CHECK(fake::calls_behind_the_back() == 0);
  CHECK(code_of([&] { documents.run(call.forward, {.workspace = workspace.first(bytes - 1)}); }) == "workspace-small");
}

TEST_CASE("a cover is one launch, and a call with it another: it lists nothing and takes no memory for lists",
          "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  documents.prepare(call.forward);
  const int memory = fake::live_memory();
  fake::forget();
  {
    Cover cover = documents.cover(call.forward);
    REQUIRE(cover);
    REQUIRE(fake::launches().size() == 1);
    CHECK(fake::launches()[0].kernel.find("cover") != std::string::npos);
    CHECK(fake::live_memory() == memory + 1);
    for (int layer = 0; layer < 3; ++layer) documents.run(call.forward, {.cover = cover});
    CHECK(fake::launches().size() == 4);
    for (int i = 1; i < 4; ++i)
      CHECK(fake::launches()[static_cast<std::size_t>(i)].kernel.find("forward") != std::string::npos);
    CHECK(fake::calls("cuMemAllocAsync") == 1);
    CHECK(documents.workspace(call.forward, {.cover = cover}) == 0);
    const Cover copy = cover;
    cover = {};
    CHECK(fake::live_memory() == memory + 1);
  }
  CHECK(fake::live_memory() == memory);
  CHECK(fake::calls_behind_the_back() == 0);
  CHECK(fake::contexts() == 0);
}

TEST_CASE("a call of more tiles than blocks clears its counter by itself where a cover has its lists", "[driver]") {
  const Call call(8192);
  const auto doc = device_of(90).array<int>({8192}, "doc");
  const Attention documents{.mask = mods::document(doc)};
  const Cover cover = documents.cover(call.forward);
  const std::size_t bytes = documents.workspace(call.forward, {.cover = cover});
  CHECK(bytes > 0);
  CHECK(bytes < documents.workspace(call.forward));
  for (const auto& [with, cleared] : {std::pair{Resources{}, 0}, {Resources{.cover = cover}, 1}}) {
    fake::forget();
    documents.run(call.forward, with);
    CHECK(fake::calls("cuMemsetD32Async") == cleared);
  }
}

TEST_CASE("a cover lies in the memory it is given, of exactly the size that was asked for", "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  const std::size_t bytes = documents.cover_bytes(call.forward);
  REQUIRE(bytes > 0);
  const auto room = device_of(90).array<std::uint8_t>({static_cast<std::int64_t>(bytes)});
  const std::span<std::byte> memory = std::as_writable_bytes(std::span(room.data(), bytes));
  fake::forget();
  const Cover cover = documents.cover(call.forward, {.workspace = memory});
  documents.run(call.forward, {.cover = cover});
  CHECK(fake::calls("cuMemAllocAsync") == 0);
  const Error small = tests::refusal([&] { documents.cover(call.forward, {.workspace = memory.first(bytes - 1)}); });
  CHECK(small.code == "workspace-small");
  CHECK(small.fix.find("cover_bytes") != std::string::npos);
}

TEST_CASE("a cover is empty where no lists are needed, and an empty one fits every call", "[driver]") {
  const Call call;
  const Packed packed;
  fake::forget();
  const Cover none = call.causal().cover(call.forward);
  CHECK(!none);
  CHECK(call.causal().cover_bytes(call.forward) == 0);
  CHECK(!call.documents().cover(packed.forward));
  CHECK(call.documents().cover_bytes(packed.forward) == 0);
  CHECK(fake::launches().empty());
  call.documents().run(call.forward, {.cover = none});
  CHECK(fake::launches().size() == 2);
}

TEST_CASE("a cover is for calls of its mask, whatever else they compute", "[driver]") {
  const Call call, other;
  const auto slope = device_of(90).array<float>({4}, "slope");
  const Attention capped{.score = [=](Float s, At at) { return s * slope[at.head]; }, .mask = call.documents().mask};
  const Cover cover = call.documents().cover(call.forward);
  fake::forget();
  capped.run(call.forward, {.cover = cover});
  capped.run(other.forward, {.cover = cover});
  call.documents().run(part_of(call, 1, 2), {.cover = cover});
  for (const fake::Launch& launch : fake::launches()) CHECK(launch.kernel.find("forward") != std::string::npos);
  CHECK(fake::launches().size() == 3);
}

TEST_CASE("a cover is of the captures that a call binds, and new ones compile and lower nothing", "[driver]") {
  const Call call;
  Text text;
  text.capture("doc", Tensor::declared(DType::i32, 1)).param("window", 0);
  const Attention attention{.mask = text.mask("q - kv < window && doc[q] == doc[kv]")};
  const auto other = device_of(90).array<int>({1000}, "doc");
  const auto bound = [&](const std::array<Tensor, 1>& captures, const std::array<double, 1>& params) {
    Forward out = call.forward;
    out.captures = captures;
    out.params = params;
    return out;
  };
  const std::array<Tensor, 1> doc{call.doc}, elsewhere{other};
  const std::array<double, 1> near{100}, far{200};
  const Cover cover = attention.cover(bound(doc, near));
  REQUIRE(cover);
  int lowered = 0, built = 0;
  const auto watching = watch::on({.lowered = [&](const auto&) { ++lowered; }, .built = [&](const auto&) { ++built; }});
  fake::forget();
  attention.run(bound(doc, near), {.cover = cover});
  CHECK(fake::launches().size() == 1);
  const auto refused = [&](const Forward& forward) {
    return tests::refusal([&] { attention.run(forward, {.cover = cover}); });
  };
  CHECK(refused(bound(elsewhere, near)).why == "its `doc` is at another address than this call's");
  CHECK(refused(bound(doc, far)).why == "`window` was 100, and is 200");
  CHECK(refused(call.forward).code == "capture-missing");
  fake::forget();
  attention.run(bound(elsewhere, far));
  CHECK(fake::launches().size() == 2);
  CHECK(lowered == 0);
  CHECK(built == 0);
  const std::array<Tensor, 1> on_host{Tensor(other.data(), DType::i32, {1000})};
  CHECK(refused(bound(on_host, near)).code == "tensor-device");
}

TEST_CASE("a cover that was made for other calls is refused, and the reason is told", "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  const Cover cover = documents.cover(call.forward);
  fake::forget();
  // Not through Attention::run, which would add this file's line.
  const auto told = [](const char* golden, const Cover& made, const Attention& attention, const Forward& forward) {
    tests::golden_error(golden,
                        tests::refusal([&] { runtime::run(attention, forward, nullptr, {.cover = made}); }).what());
  };
  told("cover-other.mask", cover, {.mask = mods::document(call.doc)}, call.forward);
  told("cover-other.no-lists", cover, call.causal(), call.forward);
  const auto short_doc = device_of(90).array<int>({600}, "doc"), other_doc = device_of(90).array<int>({1000}, "doc");
  told("cover-other.capture", cover, documents_of(short_doc), call.forward);
  told("cover-other.memory", cover, documents_of(other_doc), call.forward);
  told("cover-other.lengths", cover, documents, Call(301).forward);
  Forward later = call.forward;
  later.q_offset = 5;
  told("cover-other.offset", cover, documents, later);
  told("cover-other.packed", cover, documents, Packed().forward);
  told("cover-other.tiles", cover, documents, Call(300, 256).forward);
  told("cover-other.device", cover, call.causal(), Call(300, 64, device_of(80)).forward);

  Param<int> window("window", 100);
  const Attention near{
      .mask = [window, doc = call.doc](At at) { return at.q - at.kv < window && doc[at.q] == doc[at.kv]; }};
  const Cover nearby = near.cover(call.forward);
  window = 200;
  told("cover-other.parameter", nearby, near, call.forward);

  const auto ids = device_of(90).array<int>({4, 1000}, "ids");
  const Attention by_batch{.mask = [=](At at) { return ids(at.batch, at.q) == ids(at.batch, at.kv); }},
      by_head{.mask = [=](At at) { return ids(at.head, at.q) == ids(at.head, at.kv); }};
  told("cover-other.batch", by_batch.cover(call.forward), by_batch, part_of(call, 1, 4));
  told("cover-other.heads", by_head.cover(call.forward), by_head, part_of(call, 2, 2));
  for (const fake::Launch& launch : fake::launches()) CHECK(launch.kernel.find("forward") == std::string::npos);

  const int line = __LINE__ + 1;
  const Error placed = tests::refusal([&] { call.causal().run(call.forward, {.cover = cover}); });
  CHECK(placed.code == "cover-other");
  CHECK(placed.where.line == line);
  CHECK(code_of([&] { documents.workspace(Call(301).forward, {.cover = cover}); }) == "cover-other");
}

TEST_CASE("the stream is the caller's", "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  const runtime::cuda::Current current(0);
  cu::Stream stream = nullptr;
  driver().cuStreamCreate(&stream, cu::stream_non_blocking);
  documents.prepare(call.forward);
  fake::forget();
  documents.run(call.forward, {.stream = stream});
  for (const fake::Launch& launch : fake::launches()) CHECK(launch.stream == stream);
  CHECK(fake::contexts() == 1);
  driver().cuStreamDestroy(stream);
}

TEST_CASE("what would be loaded during a capture is refused, and what is there is captured", "[driver]") {
  const Call call;
  const Attention causal = call.causal(0.5f);
  const runtime::cuda::Current current(0);
  cu::Stream stream = nullptr;
  cu::Graph graph = nullptr;
  driver().cuStreamCreate(&stream, cu::stream_non_blocking);
  driver().cuStreamBeginCapture(stream, cu::CaptureMode::relaxed);
  CHECK(code_of([&] { causal.run(call.forward, {.stream = stream}); }) == "stream-capture");
  causal.prepare(call.forward);
  CHECK(code_of([&] { causal.run(call.forward, {.stream = stream}); }) == "nothing");
  driver().cuStreamEndCapture(stream, &graph);
  driver().cuGraphDestroy(graph);
  driver().cuStreamDestroy(stream);
}

TEST_CASE("kernels that no call uses are unloaded when their stream is done with them, but for those of graphs",
          "[driver]") {
  if (!runtime::set_option("ATTUNE_LOADED", "4")) {
    std::puts("[skip] options were read before: run this case alone");
    return;
  }
  const Call call;
  const runtime::cuda::Current current(0);
  std::array<cu::Stream, 2> streams{};
  for (cu::Stream& one : streams) driver().cuStreamCreate(&one, cu::stream_non_blocking);
  float number = 10;
  const auto run = [&](float by, cu::Stream on) { call.causal(by).run(call.forward, {.stream = on}); };
  const auto run_others = [&](int count, cu::Stream on) {
    for (int i = 0; i < count; ++i) run(number += 1, on);
  };
  run_others(40, streams[0]);
  // The first two stay loaded, four more are kept, and four may wait for the stream.
  const int loaded = fake::calls("cuLibraryLoadData"), unloaded = fake::calls("cuLibraryUnload");
  CHECK(loaded - unloaded <= 2 + 4 + 2);

  // Used in a graph, on two streams, or on a stream that is not used again: they stay or wait.
  run(1, streams[0]);
  cu::Graph graph = nullptr;
  driver().cuStreamBeginCapture(streams[0], cu::CaptureMode::relaxed);
  run(1, streams[0]);
  driver().cuStreamEndCapture(streams[0], &graph);
  run(2, streams[0]);
  run(2, streams[1]);
  fake::forget();
  run_others(20, streams[0]);
  run(1, streams[0]);
  run(2, streams[1]);
  CHECK(fake::calls("cuLibraryLoadData") == 20);

  // A stream that is not done keeps what it runs.
  fake::stick(0);
  fake::forget();
  run_others(20, streams[0]);
  CHECK(fake::calls("cuLibraryUnload") == 0);
  fake::stick(-1);
  driver().cuGraphDestroy(graph);
  for (const cu::Stream one : streams) driver().cuStreamDestroy(one);
}

TEST_CASE("calls with a cover are captured, and so is the cover where it is given memory", "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  const runtime::cuda::Current current(0);
  cu::Stream stream = nullptr;
  cu::Graph graph = nullptr;
  driver().cuStreamCreate(&stream, cu::stream_non_blocking);
  const std::size_t bytes = documents.cover_bytes(call.forward);
  const auto room = device_of(90).array<std::uint8_t>({static_cast<std::int64_t>(bytes)});
  const Cover before = documents.cover(call.forward, {.stream = stream});
  driver().cuStreamBeginCapture(stream, cu::CaptureMode::relaxed);
  CHECK(code_of([&] { documents.cover(call.forward, {.stream = stream}); }) == "stream-capture");
  fake::forget();
  documents.run(call.forward, {.stream = stream, .cover = before});
  const Cover within = documents.cover(
      call.forward, {.workspace = std::as_writable_bytes(std::span(room.data(), bytes)), .stream = stream});
  documents.run(call.forward, {.stream = stream, .cover = within});
  CHECK(fake::launches().size() == 3);
  CHECK(fake::calls("cuMemAllocAsync") == 0);
  CHECK(fake::calls_behind_the_back() == 0);
  driver().cuStreamEndCapture(stream, &graph);
  driver().cuGraphDestroy(graph);
  driver().cuStreamDestroy(stream);
}

namespace {

/// Refuses every function in turn, with every result. `run` must be repeatable.
template <class F>
void refuse_each(const F& run) {
  using enum cu::Result;
  for (const std::string_view function : fake::functions())
    for (const cu::Result result : {out_of_memory, invalid_value, invalid_image, unsupported_ptx_version,
                                    invalid_handle, illegal_address, stream_capture_unsupported}) {
      const int memory = fake::live_memory();
      fake::forget();
      fake::refuse(function, static_cast<int>(result));
      const std::string code = code_of(run);
      const bool asked = fake::calls(function) > 0;
      fake::refuse(function, 0);
      INFO(function << " gives " << static_cast<int>(result));
      // A refused free leaks the memory; the call is done by then.
      const bool ends = function == "cuMemFreeAsync" || function == "cuCtxPopCurrent";
      if (!asked || ends) {
        CHECK(code == "nothing");
      } else {
        CHECK(code != "nothing");
        if (result == out_of_memory) CHECK(code == "device-memory");
        if (result == illegal_address) CHECK(code == "device-failed");
        if (result == invalid_image || result == unsupported_ptx_version)
          CHECK(code == (function == "cuLibraryLoadData" ? "driver-old" : "bug"));
      }
      if (ends) {
        cu::Context popped = nullptr;
        while (fake::contexts() > 0) driver().cuCtxPopCurrent(&popped);
      } else {
        CHECK(fake::live_memory() == memory);
        CHECK(fake::contexts() == 0);
      }
    }
}

}  // namespace

TEST_CASE("whatever the driver refuses comes back and leaves no memory taken", "[driver]") {
  const Call call;
  const Attention documents = call.documents();
  documents.prepare(call.forward);
  refuse_each([&] { documents.run(call.forward); });
  refuse_each([&] { documents.cover(call.forward); });
  CHECK(code_of([&] { documents.run(call.forward); }) == "nothing");
}

TEST_CASE("lengths, positions and page tables have a decode kernel, and that of other calls for others", "[driver]") {
  const Device gpu = device_of(90);
  const auto numbers = gpu.array<std::int32_t>({2});
  const auto table = gpu.array<std::int32_t>({2, 3});
  const auto with = [&]<class Element>(Element, const Attention& attention, std::int64_t q_len, const auto& change) {
    const auto q = gpu.array<Element>({2, 8, q_len, 64}), k = gpu.array<Element>({2, 2, 100, 64}),
               o = gpu.array<Element>({2, 8, q_len, 64});
    Forward call{.q = q, .k = k, .v = k, .o = o};
    change(call);
    fake::forget();
    attention.run(call, Line{});
    return fake::launches().back();
  };
  const auto lengths = [&](Forward& call) { call.kv_len = numbers; };
  const Attention plain, causal{.mask = mods::causal()};
  const std::function<void(Forward&)> changes[] = {lengths,
                                                   {[&](Forward& call) { call.q_offsets = numbers; }},
                                                   {[&](Forward& call) { call.kv_offset = 3; }},
                                                   {[&](Forward& call) { call.page_table = table; }}};
  for (const auto& change : changes) {
    fits(with(bf16(), causal, 4, change), "decode_sm80", 227 << 10);
    for (const std::int64_t many : {5, 64, 65, 300})
      fits(with(bf16(), causal, many, change), "forward_sm90", 227 << 10);
    fits(with(float(), causal, 1, change), "forward_sm80", 227 << 10);
  }
  // Masks that read data are evaluated pair by pair there.
  fits(with(bf16(), {.prob = [](Float p, At) { return p * p; }}, 1, lengths), "decode_sm80", 227 << 10);
  fits(with(bf16(), {.prob = [](Float p, At) { return p * p + p; }}, 1, lengths), "forward_sm80", 227 << 10);
  const auto doc = gpu.array<int>({300}, "doc");
  fits(with(bf16(), documents_of(doc), 1, lengths), "decode_sm80", 227 << 10);
  fits(with(bf16(), documents_of(doc), 300, lengths), "forward_sm90", 227 << 10);
  fits(with(bf16(), plain, 1, lengths), "decode_sm80", 227 << 10);
}

TEST_CASE("a fixed split size is for decode, and refused in words for others", "[driver]") {
  const Device gpu = device_of(90);
  const Attention causal{.mask = mods::causal()};
  const auto call = [&](std::int64_t q_len) {
    const auto q = gpu.array<bf16>({2, 8, q_len, 64}), k = gpu.array<bf16>({2, 2, 100, 64}),
               o = gpu.array<bf16>({2, 8, q_len, 64});
    causal.run({.q = q, .k = k, .v = k, .o = o, .fixed_split_size = 256}, Line{});
  };
  call(4);
  tests::golden_error("engine-call", tests::refusal([&] { call(5); }).what());
}

TEST_CASE("keys of e4m3 are read by one kernel, and refused in words where it takes no such call", "[driver]") {
  const Attention causal{.mask = mods::causal()};
  const auto called = [&]<class Element>(Element, int arch, std::int64_t q_len, std::int64_t d, std::int64_t row,
                                         bool pages) {
    const Device gpu = device_of(arch);
    const auto q = gpu.array<Element>({2, 4, q_len, d}), o = gpu.array<Element>({2, 4, q_len, d});
    const auto memory = gpu.array<e4m3>({9, 1, 64, row});
    const auto table = gpu.array<std::int32_t>({2, 9});
    const Tensor kept(memory.data(), DType::e4m3, {pages ? 9 : 2, 1, 64, d}, {64 * row, 64 * row, row, 1}, gpu);
    fake::forget();
    causal.run({.q = q, .k = kept, .v = kept, .o = o, .page_table = pages ? Tensor(table) : Tensor()}, Line{});
    const auto launches = fake::launches();
    REQUIRE(launches.size() == (arch < 90 ? 1 : 2));
    return launches.back();
  };
  for (const int arch : {80, 89, 90, 120})
    for (const bool pages : {false, true})
      fits(called(bf16(), arch, 4, 128, 128, pages), "decode_sm80",
           (arch == 80   ? 163U
            : arch == 90 ? 227U
                         : 99U)
               << 10);
  fits(called(f16(), 90, 1, 40, 48, false), "decode_sm80", 227 << 10);
  const auto refusal = [&](const auto& call) {
    const Error error = tests::refusal(call);
    CHECK(error.code == "engine-type");
    return error;
  };
  tests::golden_error("engine-type.e4m3", refusal([&] { called(bf16(), 90, 5, 64, 64, false); }).what());
  CHECK(refusal([&] { called(float(), 90, 1, 64, 64, false); }).why.find("bf16 or f16") != std::string::npos);
  for (const auto& widths : {std::pair{40, 40}, {64, 72}})
    CHECK(refusal([&] { called(bf16(), 90, 1, widths.first, widths.second, false); }).why.find("16 bytes") !=
          std::string::npos);
}

TEST_CASE("queries, keys and values of e4m3 get a kernel of their own on Hopper, and are refused in words elsewhere",
          "[driver]") {
  const Attention causal{.mask = mods::causal()};
  const auto called = [&]<class Out>(Out, int arch, std::int64_t q_len, std::int64_t d, bool lengths) {
    const Device gpu = device_of(arch);
    const auto q = gpu.array<e4m3>({2, 4, q_len, d}), kept = gpu.array<e4m3>({2, 1, 300, d});
    const auto o = gpu.array<Out>({2, 4, q_len, d});
    const auto kv_len = gpu.array<std::int32_t>({2});
    fake::forget();
    causal.run({.q = q, .k = kept, .v = kept, .o = o, .kv_len = lengths ? Tensor(kv_len) : Tensor()}, Line{});
    return fake::launches().back();
  };
  for (const std::int64_t q_len : {1, 7, 300})
    for (const std::int64_t d : {16, 64, 112, 128, 144, 192, 256}) {
      fits(called(bf16(), 90, q_len, d, false), "forward_e4m3_sm90", 227 << 10);
      fits(called(f16(), 90, q_len, d, false), "forward_e4m3_sm90", 227 << 10);
    }
  const auto refusal = [&](const auto& call) { return tests::refusal(call); };
  tests::golden_error("engine-type.e4m3-queries", refusal([&] { called(bf16(), 80, 300, 64, false); }).what());
  CHECK(refusal([&] { called(bf16(), 90, 300, 272, false); }).code == "engine-call");
  CHECK(refusal([&] { called(bf16(), 90, 300, 40, false); }).why.find("multiples of 16 bytes") != std::string::npos);
  CHECK(refusal([&] { called(float(), 90, 300, 64, false); }).why.find("writes o as bf16 or f16") != std::string::npos);
  CHECK(refusal([&] { called(bf16(), 90, 1, 64, true); }).why.find("their own lengths, positions or pages") !=
        std::string::npos);
}

TEST_CASE("values of e4m3 are transposed by a launch before, in the call's workspace", "[driver]") {
  const Device gpu = device_of(90);
  constexpr std::int64_t batch = 2, heads = 4, kv_heads = 2, length = 5000, d = 128;
  const auto q = gpu.array<e4m3>({batch, heads, length, d}), kept = gpu.array<e4m3>({batch, kv_heads, length, d});
  const auto o = gpu.array<bf16>({batch, heads, length, d});
  const codegen::Preference asked{codegen::variant("forward_e4m3_sm90:n=128,transposed=1"), true, ""};
  const auto launched = [&](const Attention& attention, const Forward& call, const codegen::Preference* preference) {
    runtime::run(attention, call, preference, {});
    fake::forget();
    runtime::run(attention, call, preference, {});
    return fake::launches();
  };
  const auto transposed = [&](const Forward& call, std::int64_t tiles) {
    const Attention plain;
    const auto launches = launched(plain, call, &asked);
    REQUIRE(launches.size() == 2);
    CHECK(launches[0].kernel.find("transpose_v_sm90") != std::string::npos);
    CHECK(launches[0].blocks == tiles);
    CHECK_FALSE(launches[0].early);
    CHECK(launches[1].kernel.find("forward_e4m3_sm90") != std::string::npos);
    CHECK(launches[1].early);
    CHECK(fake::calls("cuMemAllocAsync") == 1);
  };
  Forward call{.q = q, .k = kept, .v = kept, .o = o};
  transposed(call, batch * kv_heads * 40);
  // Keys that all entries share are transposed once.
  const Tensor one(kept.data(), DType::e4m3, {1, kv_heads, length, d}, {}, gpu);
  call.k = call.v = one;
  transposed(call, kv_heads * 40);
  // Sequences reserve places for their tiles.
  const auto starts = Device::cpu().array<std::int32_t>({3});
  starts.data()[1] = 4500, starts.data()[2] = length;
  const Tensor packed_q(q.data(), DType::e4m3, {length, heads, d}, {}, gpu),
      packed_k(kept.data(), DType::e4m3, {length, kv_heads, d}, {}, gpu),
      packed_o(o.data(), DType::bf16, {length, heads, d}, {}, gpu);
  transposed(
      {.q = packed_q, .k = packed_k, .v = packed_k, .o = packed_o, .cu_seqlens_q = starts, .cu_seqlens_kv = starts},
      kv_heads * (length / 128 + 2));
  // Left to attune, they are where all keys of a long call are read.
  call.k = call.v = kept;
  CHECK(launched({}, call, nullptr).size() == 2);
  CHECK(launched({.mask = mods::causal()}, call, nullptr).size() == 1);
  CHECK(Attention{}.workspace(call) >= static_cast<std::size_t>(batch * kv_heads * 40 * 128 * d));
}

TEST_CASE("keys and values of f32 are split by a launch before, in the call's workspace, if enough queries read them",
          "[driver]") {
  const Device gpu = device_of(90);
  constexpr std::int64_t batch = 2, kv_heads = 2, length = 1000, d = 128;
  const auto kept = gpu.array<float>({batch, kv_heads, length, d});
  const auto launched = [&](std::int64_t heads, std::int64_t q_len, std::optional<bool> exact) {
    const auto q = gpu.array<float>({batch, heads, q_len, d}), o = gpu.array<float>({batch, heads, q_len, d});
    Attention attention;
    attention.exact = exact;
    const Forward call{.q = q, .k = kept, .v = kept, .o = o};
    attention.run(call);
    fake::forget();
    attention.run(call);
    return std::pair{fake::launches(), attention.workspace(call)};
  };
  // A tile has 64 keys; a part of it, a number of TF32 for each element.
  constexpr std::size_t part = batch * kv_heads * 16 * 64 * 2 * d * sizeof(float);
  for (const auto& [exact, parts] : {std::pair{std::optional<bool>{}, 2u}, {true, 2u}, {false, 1u}}) {
    const auto [launches, workspace] = launched(4, 128, exact);
    REQUIRE(launches.size() == 2);
    CHECK(launches[0].kernel.find("split_keys_sm90") != std::string::npos);
    CHECK(launches[0].blocks == batch * kv_heads * 16);
    CHECK_FALSE(launches[0].early);
    CHECK(launches[1].kernel.find("forward_f32_sm90") != std::string::npos);
    CHECK(launches[1].early);
    CHECK(workspace >= parts * part);
    CHECK(workspace < parts * part + 4096);
  }
  CHECK(launched(2, 256, {}).first.size() == 2);
  const auto few = launched(2, 255, {}).first;
  REQUIRE(few.size() == 1);
  CHECK(few[0].kernel.find("forward_sm80") != std::string::npos);
}

TEST_CASE("a call that is merged with another's has a kernel of its own", "[driver]") {
  for (const int arch : {90, 120})
    for (const std::int64_t length : {1, 300}) {
      const Device gpu = device_of(arch);
      const auto q = gpu.array<bf16>({2, 4, length, 64}), k = gpu.array<bf16>({2, 4, 300, 64}),
                 o = gpu.array<bf16>({2, 4, length, 64}), other = gpu.array<bf16>({2, 4, length, 64});
      const auto lse = gpu.array<float>({2, 4, length});
      const auto sinks = gpu.array<float>({4}, "sinks");
      // If o_before already includes the sink, the kernel has none.
      const Attention with_sink{.sink = [=](SinkAt at) { return sinks[at.head]; }};
      Forward call{.q = q, .k = k, .v = k, .o = o, .lse = lse};
      const auto launched = [&] {
        fake::forget();
        with_sink.run(call);
        const auto launches = fake::launches();
        REQUIRE(launches.size() == 1);
        return launches.back().kernel;
      };
      call.o_before = other;
      call.lse_before = lse;
      const std::string merged = launched();
      CHECK(merged.find(length == 1  ? "decode_sm80"
                        : arch == 90 ? "forward_sm90"
                                     : "forward_sm80") != std::string::npos);
      call.o_before = o;  // in the same place
      CHECK(launched() == merged);
      const auto wide = gpu.array<double>({2, 4, length, 64});
      call.o_before = wide;
      CHECK(code_of([&] { with_sink.run(call); }) == "engine-type");
    }
}

TEST_CASE("keys that are split at fixed places have a part for each, in the call's workspace", "[driver]") {
  const Device gpu = device_of(90);
  constexpr std::int64_t batch = 3, heads = 8, kv_heads = 2, length = 1000, d = 64;
  const auto q = gpu.array<bf16>({batch, heads, 1, d}), k = gpu.array<bf16>({batch, kv_heads, length, d}),
             o = gpu.array<bf16>({batch, heads, 1, d});
  const Attention plain;
  const auto bytes = [&](std::int64_t fixed_split_size) {
    Forward call{.q = q, .k = k, .v = k, .o = o};
    call.fixed_split_size = fixed_split_size;
    return static_cast<std::int64_t>(plain.workspace(call));
  };
  // Rows of f32 and the sums of each; an arrival for each of the six tiles, of four heads each.
  const auto parts = [&](std::int64_t splits) { return batch * kv_heads * splits * 4 * (d + 4) * 4; };
  const auto is_about = [](std::int64_t got, std::int64_t wanted) { return got >= wanted && got <= wanted + 512; };
  // A block of eight warps, of 32 keys each, divides splits of 256.
  CHECK(is_about(bytes(128), parts(4)));
  CHECK(is_about(bytes(256), parts(4)));
  CHECK(is_about(bytes(384), parts(2)));
  CHECK(is_about(bytes(512), parts(2)));
  CHECK(bytes(1024) <= 512);
  CHECK(bytes(std::int64_t{1} << 40) <= 512);
  Forward call{.q = q, .k = k, .v = k, .o = o};
  call.fixed_split_size = 256;
  plain.prepare(call);
  fake::forget();
  plain.run(call);
  const auto launches = fake::launches();
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].kernel.find("clear") != std::string::npos);
  CHECK(launches[0].early);
  CHECK(launches[1].early);
  CHECK(fake::calls("cuMemsetD32Async") == 0);
}

TEST_CASE("where all decode tiles stay whole, or two blocks share each, nothing is cleared before and nothing "
          "added up behind",
          "[driver]") {
  const Device gpu = device_of(90);
  const std::int64_t sms = runtime::cuda::facts(gpu.index).sms;
  const Attention plain, causal{.mask = mods::causal()};
  const auto lengths = gpu.array<std::int32_t>({2 * sms});
  const auto launched = [&](const Attention& attention, std::int64_t batch, bool mla, bool own_lengths = false) {
    const std::int64_t d = mla ? 576 : 64, dv = mla ? 512 : 64;
    const auto q = gpu.array<bf16>({batch, 8, 1, d}), k = gpu.array<bf16>({batch, 1, 2048, d}),
               o = gpu.array<bf16>({batch, 8, 1, dv});
    Tensor v = k.tensor(), kv_len = lengths.tensor();
    v.shape[3] = dv, kv_len.shape[0] = batch;
    const Forward call{.q = q, .k = k, .v = v, .o = o, .kv_len = own_lengths ? kv_len : Tensor(), .q_offset = 2047};
    attention.prepare(call);
    fake::forget();
    attention.run(call);
    const auto launches = fake::launches();
    for (const auto& one : launches) CHECK(one.early);
    return launches.size();
  };
  for (const bool mla : {false, true}) {
    CHECK(launched(plain, sms, mla) == 1);
    CHECK(launched(plain, sms - sms / 20, mla) == 1);
    CHECK(launched(plain, 2 * sms, mla) == 1);
    // Two parts of each.
    CHECK(launched(plain, sms / 2, mla) == (mla ? 2 : 1));
    if (!mla) {
      CHECK(fake::launches().back().cluster == 2);
      CHECK(fake::launches().back().blocks == sms / 2 * 2);
    }
    CHECK(launched(plain, 1, mla) == 2);
    CHECK(launched(plain, sms + 1, mla) == 2);    // equal ranges
    CHECK(launched(plain, sms, mla, true) == 2);  // the device knows
    CHECK(launched(causal, sms, mla) == 2);
  }
}

TEST_CASE("appending is one launch, a block a new row, captured once its kernel is there", "[driver]") {
  const Device gpu = device_of(120);
  const auto k_new = gpu.array<float>({5, 2, 64}), v_new = gpu.array<float>({5, 2, 32});
  const auto k = gpu.array<bf16>({9, 2, 16, 64}), v = gpu.array<bf16>({9, 2, 16, 32});
  const auto starts = gpu.array<std::int32_t>({4}), lengths = gpu.array<std::int32_t>({3}),
             page_table = gpu.array<std::int32_t>({3, 3});
  const Append call{.k_new = k_new,
                    .v_new = v_new,
                    .k = k,
                    .v = v,
                    .page_table = page_table,
                    .kv_len = lengths,
                    .cu_seqlens = starts};
  const runtime::cuda::Current current(gpu.index);
  cu::Stream stream = nullptr;
  cu::Graph graph = nullptr;
  driver().cuStreamCreate(&stream, cu::stream_non_blocking);
  driver().cuStreamBeginCapture(stream, cu::CaptureMode::relaxed);
  const Error refused = tests::refusal([&] { append(call, {.stream = stream}); });
  CHECK(refused.code == "stream-capture");
  CHECK(refused.fix == "make one such call before the capture");
  append(call);
  fake::forget();
  append(call, {.stream = stream});
  driver().cuStreamEndCapture(stream, &graph);
  driver().cuGraphDestroy(graph);
  driver().cuStreamDestroy(stream);
  const auto launches = fake::launches();
  REQUIRE(launches.size() == 1);
  CHECK(launches[0].kernel.find("append") != std::string::npos);
  CHECK(launches[0].blocks == 5);
  CHECK(launches[0].threads == 256);
  CHECK(launches[0].stream == stream);
  CHECK(fake::calls_behind_the_back() == 0);
  // Nothing new, nothing to launch.
  fake::forget();
  const Tensor none(k_new.data(), DType::f32, {3, 2, 0, 64}, {}, gpu),
      no_v(v_new.data(), DType::f32, {3, 2, 0, 32}, {}, gpu);
  append({.k_new = none, .v_new = no_v, .k = k, .v = v, .page_table = page_table, .kv_len = lengths});
  CHECK(fake::launches().empty());
  // By slot, of either type.
  const auto wide = gpu.array<std::int64_t>({5});
  const auto narrow = gpu.array<std::int32_t>({5});
  for (const Tensor& slots : {wide.tensor(), narrow.tensor()}) {
    fake::forget();
    append({.k_new = k_new, .v_new = v_new, .k = k, .v = v, .slots = slots});
    REQUIRE(fake::launches().size() == 1);
    CHECK(fake::launches()[0].blocks == 5);
    CHECK(fake::calls_behind_the_back() == 0);
  }
}

TEST_CASE("a kernel that was not loaded is loaded by a later call", "[driver]") {
  const Call call;
  const auto once = [&] { call.documents(0.5f).run(call.forward); };
  for (const char* function :
       {"cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelSetAttribute", "cuKernelGetFunction"}) {
    INFO(function);
    fake::forget();
    fake::refuse(function, static_cast<int>(cu::Result::out_of_memory));
    CHECK(code_of(once) == "device-memory");
    CHECK(fake::calls(function) == 1);
    fake::refuse(function, 0);
  }
  CHECK(code_of(once) == "nothing");
}
