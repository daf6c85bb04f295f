// tests/driver/backward.test.cpp — backward calls on a fake driver: which kernels, in which order, in what memory
#include <attune/attune.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/contract/args.cuh"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/attention/tools.h"
#include "runtime/attention/watched.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/oracle/verify.h"
#include "runtime/platform/nvidia/driver.h"
#include "tests/catch.h"
#include "tests/driver/fake_driver.h"
#include "tests/refusal.h"

using namespace attune;
using runtime::cuda::driver;
namespace cu = runtime::cuda::cu;
namespace fake = tests::fake_driver;

namespace {

// An A100, which has the portable kernels; and an H200.
constexpr int a100 = 1, h200 = 0;
constexpr std::int64_t length = 250, narrow = 64, wide = 192;  // few enough pairs to verify captured gradients

struct Call {
  explicit Call(int device = a100, std::int64_t of_head = narrow) : gpu(Device::cuda(device)), width(of_head) {}

  Device gpu;
  std::int64_t width;
  Array<bf16> q = array(4), k = array(2), v = array(2), o = array(4), grad_o = array(4), dq = array(4), dk = array(2),
              dv = array(2);
  Array<float> lse = gpu.array<float>({2, 4, length}), table = gpu.array<float>({2 * length}, "table"),
               grad_table = gpu.array<float>({2 * length});
  Array<int> doc = gpu.array<int>({1000}, "doc");
  Backward backward{.q = q, .k = k, .v = v, .grad_o = grad_o, .o = o, .lse = lse, .dq = dq, .dk = dk, .dv = dv};

  Array<bf16> array(std::int64_t heads) const { return gpu.array<bf16>({2, heads, length, width}); }
  Attention causal() const {
    return {.score = [table = table](Float s, At at) { return s + table[at.q - at.kv + 250]; }, .mask = mods::causal()};
  }
  Attention documents() const {
    return {.mask = [doc = doc](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; }};
  }
  Backward with_table() const {
    Backward out = backward;
    out.captured = {{.of = table, .into = grad_table}};
    return out;
  }
  Backward without_forward() const {
    Backward out = backward;
    out.o = out.lse = {};
    return out;
  }
};

/// The kernels that a call launches, each by the first of these names that its name contains.
std::vector<std::string> launched(const Attention& attention, const Backward& call, const Resources& with = {}) {
  attention.prepare(call);
  fake::forget();
  attention.backward(call, with);
  std::vector<std::string> out;
  for (const fake::Launch& one : fake::launches())
    for (const char* name : {"end_queries_sm90",
                             "split_rows_sm90",
                             "queries_f32_sm90",
                             "keys_f32_sm90",
                             "queries_sm80",
                             "keys_sm80",
                             "queries_sm90",
                             "keys_sm90",
                             "store_sums",
                             "sum_ds",
                             "sum_sinks",
                             "sum_pairs",
                             "sum_deltas",
                             "spread_diagonals",
                             "backward_sm90",
                             "repair_sm80",
                             "forward_sm80",
                             "cover",
                             "copy_rows",
                             "rows",
                             ""})
      if (one.kernel.find(name) != std::string::npos) {
        out.emplace_back(name);
        break;
      }
  return out;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a backward is its rows, the gradient of q, and those of k and v", "[driver]") {
  const Call call;
  CHECK(launched(call.causal(), call.backward) == Names{"rows", "queries_sm80", "keys_sm80"});
  CHECK(fake::calls("cuMemsetD32Async") == 0);
  CHECK(fake::calls_behind_the_back() == 0);
  CHECK(fake::calls("cuMemAllocAsync") == fake::calls("cuMemFreeAsync"));
  CHECK(fake::contexts() == 0);
  // Results that are not requested are not computed; the kernels are the same.
  const auto compiled = runtime::cuda::compiled_kernels();
  Backward some = call.backward;
  some.dq = {};
  CHECK(launched(call.causal(), some) == Names{"rows", "keys_sm80"});
  some = call.backward;
  some.dk = some.dv = {};
  CHECK(launched(call.causal(), some) == Names{"rows", "queries_sm80"});
  some.dq = {};
  CHECK(launched(call.causal(), some) == Names{});
  CHECK(runtime::cuda::compiled_kernels() == compiled);
}

TEST_CASE("an H200 has one kernel for the whole backward, which also sums by head and by key", "[driver]") {
  const Call call(h200);
  CHECK(launched(call.causal(), call.backward) == Names{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80"});
  CHECK(fake::calls("cuMemsetD32Async") == 1);  // its counters
  CHECK(fake::calls_behind_the_back() == 0);
  CHECK(launched(Attention{}, call.backward) == Names{"rows", "backward_sm90", "end_queries_sm90"});
  const Attention by_key{.score = [&](Float s, At at) { return s + call.table[at.kv]; }};
  CHECK(launched(by_key, call.with_table()) ==
        Names{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80", "store_sums"});
  // Sums by query are made by a kernel of their own.
  const Attention by_row{.prob = [&](Float p, At at) { return p * (call.table[at.q] + call.table[at.kv]); }};
  CHECK(launched(by_row, call.with_table()) ==
        Names{"rows", "backward_sm90", "end_queries_sm90", "sum_pairs", "store_sums"});
  // Those of a row's gate follow from delta, and from pairs where it is 0.
  const Attention gate{.prob = [&](Float p, At at) { return p * call.table[at.q]; }};
  CHECK(launched(gate, call.with_table()) ==
        Names{"rows", "backward_sm90", "end_queries_sm90", "sum_sinks", "sum_pairs", "store_sums"});
  // So are deltas that are not multiples of the product of o and grad_o.
  const Attention mixed{.prob = [](Float p, At) { return p * p + p; }};
  CHECK(launched(mixed, call.backward) == Names{"rows", "sum_deltas", "backward_sm90", "end_queries_sm90"});
  const Attention square{.prob = [](Float p, At) { return p * p; }};
  CHECK(launched(square, call.backward) == Names{"rows", "backward_sm90", "end_queries_sm90"});
  // Both read the table of visits.
  CHECK(launched({.mask = call.documents().mask, .prob = mixed.prob}, call.backward) ==
        Names{"rows", "cover", "sum_deltas", "backward_sm90", "end_queries_sm90", "repair_sm80"});
  const Attention listed{.mask = call.documents().mask, .prob = by_row.prob};
  CHECK(launched(listed, call.with_table()) ==
        Names{"rows", "cover", "backward_sm90", "end_queries_sm90", "repair_sm80", "sum_pairs", "store_sums"});
}

TEST_CASE("the most steps that a set of captured gradients needs have room on the stream", "[driver]") {
  const Device gpu = Device::cuda(h200);
  const auto starts = Device::cpu().array<int>({3});
  starts.data()[1] = 100, starts.data()[2] = length;
  const auto rows = [&](std::int64_t heads) { return gpu.array<bf16>({length, heads, narrow}); };
  const Call tensors(h200);
  const Array<float> table = tensors.table;
  const Array<bf16> q = rows(4), k = rows(2), v = rows(2), grad_o = rows(4), o = rows(4), dq = rows(4), dk = rows(2),
                    dv = rows(2);
  const Array<float> lse = gpu.array<float>({4, length});
  const Backward call{.q = q,
                      .k = k,
                      .v = v,
                      .grad_o = grad_o,
                      .o = o,
                      .lse = lse,
                      .dq = dq,
                      .dk = dk,
                      .dv = dv,
                      .captured = {{.of = table, .into = tensors.grad_table}},
                      .cu_seqlens_q = starts,
                      .cu_seqlens_kv = starts};
  // Along diagonals, by row, pair by pair, and of a sink, with delta to sum and lists of tiles.
  const Attention all{.score = [=](Float s, At at) { return s + table[at.q - at.kv + length] + table[at.q]; },
                      .mask = tensors.documents().mask,
                      .prob = [=](Float p, At at) { return (p * p + p) * table[at.q * at.kv % 7]; },
                      .sink = [=](SinkAt at) { return table[at.head]; }};
  // In any order of additions the sums of dq are cleared too.
  const codegen::Preference unordered{codegen::variant("backward_sm90:ordered=0"), true, ""};
  runtime::run(all, call, &unordered);
  fake::forget();
  runtime::run(all, call, &unordered);
  CHECK(fake::calls("cuMemcpyAsync") == 1);     // starts
  CHECK(fake::calls("cuMemsetD32Async") == 4);  // exact sums, those along diagonals, counters, sums of dq
  // Rows, a table, delta, the kernel, dq, a repair, sinks, diagonals, pairs; and the gradient.
  CHECK(fake::launches().size() == 10);
}

TEST_CASE("an H200 sums along diagonals in its one kernel, and spreads the sums behind the repair", "[driver]") {
  const Call call(h200);
  const Names all{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80", "spread_diagonals", "store_sums"};
  CHECK(launched(call.causal(), call.with_table()) == all);
  CHECK(fake::calls("cuMemsetD32Async") == 3);  // exact sums, those along diagonals, counters
  CHECK(fake::calls_behind_the_back() == 0);
  // Nothing but the table's gradient.
  Backward some = call.with_table();
  some.dq = some.dk = some.dv = {};
  CHECK(launched(call.causal(), some) ==
        Names{"rows", "backward_sm90", "repair_sm80", "spread_diagonals", "store_sums"});
  // 250 queries in tiles of 128, and 2 tiles of keys of 8 heads.
  const std::size_t sums = 8 * 2 * (256 + 128) * sizeof(float);
  CHECK(call.causal().workspace(call.with_table()) >= call.causal().workspace(call.backward) + sums);
}

TEST_CASE("an H200 adds up the gradient of a sink's tensor after its one kernel", "[driver]") {
  const Call call(h200);
  const Array<float> sinks = call.gpu.array<float>({4}, "sinks"), grad = call.gpu.array<float>({4});
  const auto reads = [=](SinkAt at) { return sinks[at.head]; };
  const Attention causal{.mask = mods::causal(), .sink = reads}, plain{.sink = reads};
  Backward with_sinks = call.backward;
  with_sinks.captured = {{.of = sinks, .into = grad}};
  CHECK(launched(causal, with_sinks) ==
        Names{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80", "sum_sinks", "store_sums"});
  CHECK(launched(plain, with_sinks) == Names{"rows", "backward_sm90", "end_queries_sm90", "sum_sinks", "store_sums"});
  CHECK(launched(causal, call.backward) == Names{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80"});
  const Attention with_table{.score = [&](Float s, At at) { return s + call.table[at.q - at.kv + 250]; },
                             .mask = mods::causal(),
                             .sink = reads};
  Backward both = call.with_table();
  both.captured.push_back({.of = sinks, .into = grad});
  CHECK(launched(with_table, both) == Names{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80",
                                            "spread_diagonals", "sum_sinks", "store_sums", "store_sums"});
  // What a row's scores share has the sum that its lse and delta give.
  const Attention by_row{.score = [&](Float s, At at) { return s + call.table[at.q]; }};
  CHECK(launched(by_row, call.with_table()) ==
        Names{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80", "sum_sinks", "store_sums"});
}

TEST_CASE("an H200 stores dS for the gradient of a dense bias, in workspace if it is not the gradient", "[driver]") {
  const Call call(h200);
  const Array<bf16> bias = call.gpu.array<bf16>({4, length, length}, "bias");
  const auto into = [&](const Tensor& gradient) {
    Backward out = call.backward;
    out.captured = {{.of = bias, .into = gradient}};
    return out;
  };
  const Attention dense{.score = [=](Float s, At at) { return s + bias(at.head, at.q, at.kv); }};
  const Backward summed = into(call.gpu.array<float>({4, length, length}));
  const Names all{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80", "sum_ds"};
  CHECK(launched(dense, summed) == all);
  CHECK(fake::calls("cuMemsetD32Async") == 1);  // its counters
  const std::size_t pairs = 2 * 4 * length * 256 * sizeof(bf16);
  CHECK(dense.workspace(summed) >= dense.workspace(call.backward) + pairs);
  CHECK(dense.workspace(summed) < dense.workspace(call.backward) + 2 * pairs);
  // Tiles that a mask skips store nothing, and nothing clears their memory.
  const Attention causal{.score = dense.score, .mask = mods::causal()};
  CHECK(launched(causal, summed) == all);
  CHECK(fake::calls("cuMemsetD32Async") == 1);
}

TEST_CASE("an H200 stores the gradient of what only a mask reads: 0", "[driver]") {
  const Call call(h200);
  const Attention masked{.mask = [&](At at) { return at.kv <= at.q && call.table[at.kv] > 0.5f; }};
  CHECK(launched(masked, call.with_table()) ==
        Names{"rows", "cover", "backward_sm90", "end_queries_sm90", "repair_sm80", "store_sums"});
}

TEST_CASE("on an H200 each kernel of the backward starts as the one before it drains, the first and the last aside",
          "[driver]") {
  const Call call(h200), other(a100);
  const Attention masked{.mask = [&](At at) { return at.kv <= at.q && call.table[at.kv] > 0.5f; }};
  const auto early = [] {
    std::vector<bool> out;
    for (const fake::Launch& one : fake::launches()) out.push_back(one.early);
    return out;
  };
  launched(masked, call.with_table());
  CHECK(early() == std::vector{false, true, true, true, true, false});
  launched(call.causal(), call.with_table());
  CHECK(early() == std::vector{false, true, true, true, true, false});
  launched(other.causal(), other.backward);
  CHECK(early() == std::vector{false, false, false});
}

TEST_CASE("an H200 has two kernels for the backward of wide heads, and repairs what both leave", "[driver]") {
  const Call call(h200, wide);
  CHECK(launched(call.causal(), call.backward) == Names{"rows", "queries_sm90", "keys_sm90", "repair_sm80"});
  CHECK(fake::calls("cuMemsetD32Async") == 1);  // whether a result is not finite
  CHECK(fake::calls_behind_the_back() == 0);
  Backward some = call.backward;
  some.dq = {};
  CHECK(launched(call.causal(), some) == Names{"rows", "keys_sm90", "repair_sm80"});
  CHECK(launched(Attention{}, call.backward) == Names{"rows", "queries_sm90", "keys_sm90"});
  CHECK(fake::calls("cuMemsetD32Async") == 0);
  CHECK(launched(Attention{.prob = mods::dropout(0.9f, 7)}, call.backward) ==
        Names{"rows", "queries_sm90", "keys_sm90"});
  CHECK(launched(call.causal(), call.with_table()) == Names{"rows", "queries_sm80", "keys_sm80", "store_sums"});
  CHECK(launched(call.documents(), call.backward) == Names{"rows", "cover", "queries_sm80", "cover", "keys_sm80"});
}

TEST_CASE("an H200 splits operands of f32 once, for both kernels of their backward, and repairs what both leave",
          "[driver]") {
  const Device gpu = Device::cuda(h200);
  const auto array = [&](std::int64_t heads) { return gpu.array<float>({2, heads, length, narrow}); };
  const Array<float> q = array(4), k = array(2), v = array(2), o = array(4), grad_o = array(4), dq = array(4),
                     dk = array(2), dv = array(2), lse = gpu.array<float>({2, 4, length});
  const Backward all{.q = q, .k = k, .v = v, .grad_o = grad_o, .o = o, .lse = lse, .dq = dq, .dk = dk, .dv = dv};
  const Attention causal{.mask = mods::causal()};
  CHECK(launched(causal, all) == Names{"rows", "split_rows_sm90", "queries_f32_sm90", "keys_f32_sm90", "repair_sm80"});
  CHECK(launched(Attention{}, all) ==
        Names{"rows", "split_rows_sm90", "queries_f32_sm90", "keys_f32_sm90", "repair_sm80"});
  CHECK(fake::calls_behind_the_back() == 0);
  Backward some = all;
  some.dq = {};
  CHECK(launched(causal, some) == Names{"rows", "split_rows_sm90", "keys_f32_sm90", "repair_sm80"});
  some = all, some.dk = some.dv = {};
  CHECK(launched(causal, some) == Names{"rows", "split_rows_sm90", "queries_f32_sm90", "repair_sm80"});
  // Four bytes for each element, or two, and a factor for each row of a head, up to a multiple of 64.
  const std::size_t elements = 2 * 12 * length * narrow, factors = 2 * 12 * 256 * sizeof(float);
  const Attention one{.mask = mods::causal(), .exact = false};
  CHECK(causal.workspace(all) - one.workspace(all) == 2 * elements);
  CHECK(causal.workspace(all) >= 4 * elements + factors);
}

TEST_CASE("a backward without o and lse computes its forward first, in its workspace", "[driver]") {
  const Call call;
  const Attention causal = call.causal();
  CHECK(launched(causal, call.without_forward()) == Names{"forward_sm80", "rows", "queries_sm80", "keys_sm80"});
  const std::size_t results = 2 * 4 * length * (narrow * sizeof(bf16) + sizeof(float));
  CHECK(causal.workspace(call.without_forward()) >= causal.workspace(call.backward) + results);
}

TEST_CASE("a grad_o whose rows are not contiguous is copied, and the kernels are those of others", "[driver]") {
  const Call call(h200);
  const Attention causal = call.causal();
  Backward expanded = call.backward;
  expanded.grad_o.strides = {};
  CHECK(launched(causal, expanded) == Names{"copy_rows", "rows", "backward_sm90", "end_queries_sm90", "repair_sm80"});
  CHECK(fake::calls_behind_the_back() == 0);
  const std::size_t copy = 2 * 4 * length * narrow * sizeof(bf16);
  CHECK(causal.workspace(expanded) == causal.workspace(call.backward) + copy);
  // Without the copy of grad_o, TMA could not read keys either.
  expanded.k.strides[3] = 0;
  CHECK(launched(causal, expanded) == Names{"rows", "queries_sm80", "keys_sm80"});
  CHECK(launched(causal, call.backward) == Names{"rows", "backward_sm90", "end_queries_sm90", "repair_sm80"});
  const Call older(a100);
  expanded = older.backward;
  expanded.grad_o.strides = {};
  CHECK(launched(older.causal(), expanded) == Names{"copy_rows", "rows", "queries_sm80", "keys_sm80"});
}

TEST_CASE("sums of captured gradients are cleared first, and stored last", "[driver]") {
  const Call call;
  const Attention causal = call.causal();
  CHECK(launched(causal, call.with_table()) == Names{"rows", "queries_sm80", "keys_sm80", "store_sums"});
  CHECK(fake::calls("cuMemsetD32Async") == 1);
  const std::size_t sums = 2 * length * exact_words * sizeof(unsigned long long);
  CHECK(causal.workspace(call.with_table()) >= causal.workspace(call.backward) + sums);
}

TEST_CASE("tiles are listed for each kernel of a backward whose mask looks at data", "[driver]") {
  const Call call;
  CHECK(launched(call.documents(), call.backward) == Names{"rows", "cover", "queries_sm80", "cover", "keys_sm80"});
}

TEST_CASE("rows whose deltas are sums over pairs have them from the kernel of q", "[driver]") {
  const Call call;
  const Attention mixed{.mask = mods::causal(), .prob = [](Float p, At) { return p * p + p; }};
  Backward some = call.backward;
  some.dq = {};
  CHECK(launched(mixed, some) == Names{"rows", "queries_sm80", "keys_sm80"});
}

TEST_CASE("a cold backward compiles each of its kernels once, and a repeated one none", "[driver][cold]") {
  const Call call;
  // An attention that no other test has compiled; rows and sums are the same for all.
  launched(call.causal(), call.with_table());
  const Attention other{.score = [&](Float s, At at) { return s * 0.75f + call.table[at.q]; }};
  const auto compiled = runtime::cuda::compiled_kernels();
  other.prepare(call.with_table());
  CHECK(runtime::cuda::compiled_kernels() == compiled + 2);
  other.backward(call.with_table());
  CHECK(runtime::cuda::compiled_kernels() == compiled + 2);
  CHECK(fake::contexts() == 0);
}

TEST_CASE("prepare_async gets a call's kernels on another thread, and the call finds them", "[driver][cold]") {
  const Call call;
  std::optional<Attention> other = Attention{.score = [](Float s, At) { return s * 0.8125f; }};
  std::atomic<int> built = 0;
  const auto watching = watch::on({.built = [&](const watch::Built&) { ++built; }});
  {
    // As from torch, which has not allocated the gradients yet.
    Backward of = call.backward;
    std::uintptr_t address = std::uintptr_t{1} << 48;
    for (Tensor* one : {&of.dq, &of.dk, &of.dv}) one->data = reinterpret_cast<void*>(address *= 2);
    of.grad_o = call.o;
    const double none = 0;
    of.params = std::span(&none, 0);
    other->prepare_async(of);
  }
  const Attention same = *other;
  other.reset();  // the thread has what it needs
  wait();
  const int early = built;
  CHECK(early >= 2);
  same.backward(call.backward);
  CHECK(built == early);
  // A mistake is for the call to report.
  Backward wrong = call.backward;
  wrong.grad_o = call.table;
  CHECK_NOTHROW(same.prepare_async(wrong));
  wait();
  CHECK(tests::refusal([&] { same.backward(wrong); }).code == "tensor-shape");
}

TEST_CASE("a backward is told with its kernels and its workspace", "[driver]") {
  const Call call;
  const Attention causal = call.causal();
  causal.prepare(call.backward);
  std::vector<watch::Called> told;
  const auto watching = watch::on({.called = [&](const watch::Called& fact) { told.push_back(fact); }});
  causal.backward(call.backward);
  REQUIRE(told.size() == 1);
  CHECK(told[0].call == "backward");
  CHECK(told[0].target == "sm_80");
  CHECK(told[0].kernel.starts_with("queries_sm80:"));
  CHECK(told[0].kernel.find(" keys_sm80:") != std::string::npos);
  CHECK(told[0].workspace == causal.workspace(call.backward));
}

TEST_CASE("a backward is captured after it was prepared, and refused before", "[driver]") {
  const Call call;
  const Attention attention{.score = [&](Float s, At at) { return s * 0.375f + call.table[at.kv]; }};
  cu::Stream stream = nullptr;
  const runtime::cuda::Current current(a100);
  driver().cuStreamCreate(&stream, cu::stream_non_blocking);
  const auto captured = [&](const Backward& backward) {
    driver().cuStreamBeginCapture(stream, cu::CaptureMode::relaxed);
    std::string code = "nothing";
    try {
      attention.backward(backward, {.stream = stream});
    } catch (const Error& e) {
      code = e.code;
    }
    cu::Graph graph = nullptr;
    driver().cuStreamEndCapture(stream, &graph);
    driver().cuGraphDestroy(graph);
    return code;
  };
  CHECK(captured(call.with_table()) == "stream-capture");
  attention.prepare(call.with_table());
  fake::forget();
  CHECK(captured(call.with_table()) == "nothing");
  CHECK(fake::launches().size() == 4);
  CHECK(fake::calls_behind_the_back() == 0);
  driver().cuStreamDestroy(stream);
}

TEST_CASE("gradients of a device come to the host and are verified, captured ones too", "[driver]") {
  const Call call;
  const Attention causal = call.causal();
  const compiler::LoweredMod lowered = compiler::lower(causal);
  const auto found = [&] {
    const Backward backward = call.with_table();
    try {
      runtime::verify(runtime::call_of(lowered, backward, compiler::check(lowered, backward, {})), {.rows = 3},
                      nullptr);
    } catch (const Bug& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  // The fake driver computes nothing: all results are 0, and because all tensors are 0, so are the true gradients.
  CHECK(found() == "");
  const auto wrong = Device::cpu().array<float>({2 * length});
  wrong.data()[length + 7] = 1;
  copy(wrong, call.grad_table);
  CHECK(found().find("table[257]") != std::string::npos);
}

TEST_CASE("a backward's kernels are refused where compiling is off, and the command compiles what is missing",
          "[driver][cold]") {
  // A width that no other test uses: if the kernel of rows were already compiled, a different one would be missing.
  const Call call(a100, 96);
  const Attention attention{.score = [&](Float s, At at) { return s * 0.875f + call.table[at.q - at.kv + 250]; }};
  offline::jit(false);
  const auto refusal = [&](const Backward& backward) { return tests::refusal([&] { attention.backward(backward); }); };
  const Error given = refusal(call.with_table());
  CHECK(given.code == "kernel-missing");
  CHECK(given.fix.find("--target sm_80 --pass backward --dtype bf16 --d 96 --length to_1k --grads table") !=
        std::string::npos);
  CHECK(refusal(call.backward).fix.find("--grads none") != std::string::npos);
  offline::jit(true);
  attention.prepare(call.backward);
  offline::jit(false);
  // Its own forward keeps o in f32, for which a kernel of rows is missing too.
  const Error missing = refusal(call.without_forward());
  offline::jit(true);
  CHECK(missing.code == "kernel-missing");
  CAPTURE(missing.what());
  CHECK(missing.fix.find("--pass backward --dtype bf16 --out-dtype f32") != std::string::npos);
}
