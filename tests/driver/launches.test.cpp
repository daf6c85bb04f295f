// tests/driver/launches.test.cpp — for each kind of call, all steps that it enqueues on its stream, with every argument
#include <attune/attune.h>

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <string>
#include <vector>

#include "codegen/choose/kernels.h"
#include "codegen/choose/kind.h"
#include "runtime/attention/tools.h"
#include "tests/catch.h"
#include "tests/codegen/kernels/forward_plain.h"
#include "tests/driver/fake_driver.h"
#include "tests/driver/launch_text.h"
#include "tests/golden.h"

using namespace attune;
namespace fake = tests::fake_driver;
using tests::Region;

namespace {

Device device_of(int arch) {
  const auto found = std::ranges::find(fake::archs, arch);
  return Device::cuda(static_cast<int>(found - std::begin(fake::archs)));
}

/// Calls of one device as text, one after another.
class Calls {
 public:
  explicit Calls(int arch) : gpu(device_of(arch)) {}

  /// A contiguous tensor at an address of its own, without memory.
  Tensor tensor(const std::string& name, std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
    constexpr std::uintptr_t apart = std::uintptr_t{1} << 36;
    const auto at = reinterpret_cast<const void*>((regions_.size() + 1) * apart);
    regions_.push_back({name, at, apart});
    return {at, dtype, shape, {}, gpu};
  }
  void run(const char* name, const std::string& kind, const Attention& attention, const Forward& call,
           const char* variant = "") {
    std::vector<codegen::Preference> preference;
    if (*variant) preference.push_back({codegen::variant(variant), true, ""});
    const codegen::Preference* const asked = preference.empty() ? nullptr : preference.data();
    put(name, kind, call.o_before.given() || call.fixed_split_size != 0, attention.workspace(call) + more_room,
        [&](const Resources& with) { runtime::run(attention, call, asked, with); });
  }
  void run(const char* name, const Attention& attention, const Backward& call) {
    put(name, "backward", false, attention.workspace(call),
        [&](const Resources& with) { attention.backward(call, with); });
  }
  std::string text;
  Device gpu;

 private:
  // A requested kernel may need more memory than the usual one.
  static constexpr std::size_t more_room = std::size_t{1} << 24;

  template <class F>
  void put(const char* name, const std::string& kind, bool further, std::size_t bytes, const F& call) {
    const auto memory = gpu.array<float>({static_cast<std::int64_t>(bytes / 4 + 1)});
    const std::span<std::byte> workspace = std::as_writable_bytes(std::span(memory.data(), bytes / 4 + 1));
    const Resources with{.workspace = workspace};
    call(with);  // loads its kernels
    std::vector<Region> regions = regions_;
    regions.push_back({"room", workspace.data(), workspace.size()});
    text += fmt::format("{}\n{}", name, tests::launch_text(regions, kind, further, [&] { call(with); }));
  }

  std::vector<Region> regions_;
};

struct Heads {
  std::int64_t batch = 2, q = 4, kv = 2, q_len = 300, kv_len = 300, d = 64;
};

Forward dense(Calls& on, const Heads& h, DType dtype = DType::bf16) {
  return {.q = on.tensor("q", {h.batch, h.q, h.q_len, h.d}, dtype),
          .k = on.tensor("k", {h.batch, h.kv, h.kv_len, h.d}, dtype),
          .v = on.tensor("v", {h.batch, h.kv, h.kv_len, h.d}, dtype),
          .o = on.tensor("o", {h.batch, h.q, h.q_len, h.d}, dtype == DType::e4m3 ? DType::bf16 : dtype),
          .lse = on.tensor("lse", {h.batch, h.q, h.q_len}, DType::f32)};
}

const Attention causal{.mask = mods::causal()};

Attention documents(Calls& on) {
  const Capture<int> doc(on.tensor("doc", {6000}, DType::i32), "doc");
  return {.mask = [doc](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; }};
}

Forward mla(Calls& on, std::int64_t batch, std::int64_t heads, std::int64_t length) {
  const Tensor k = on.tensor("k", {batch, 1, length, 576});
  Tensor v = k;
  v.shape[3] = 512;
  return {.q = on.tensor("q", {batch, heads, 1, 576}),
          .k = k,
          .v = v,
          .o = on.tensor("o", {batch, heads, 1, 512}),
          .q_offset = 2047};
}

}  // namespace

TEST_CASE("what forwards put on their streams", "[driver][launches]") {
  std::string all;
  for (const int arch : {90, 80}) {
    Calls on(arch);
    on.run("causal", "forward", causal, dense(on, {}));
    on.run("documents", "forward", documents(on), dense(on, {}));
    on.run("documents, long", "forward", documents(on), dense(on, {.q_len = 6000, .kv_len = 6000}));
    on.run("causal, long", "forward", causal, dense(on, {.q_len = 6000, .kv_len = 6000}));
    on.run("heads share tiles", "forward", causal, dense(on, {.q = 8, .q_len = 40}));
    Forward packed{.q = on.tensor("q", {300, 4, 64}),
                   .k = on.tensor("k", {300, 2, 64}),
                   .v = on.tensor("v", {300, 2, 64}),
                   .o = on.tensor("o", {300, 4, 64})};
    const auto starts = Device::cpu().array<int>({3});
    starts.data()[1] = 100, starts.data()[2] = 300;
    packed.cu_seqlens_q = packed.cu_seqlens_kv = starts;
    on.run("packed", "forward", causal, packed);
    packed.cu_seqlens_q = on.tensor("cu_q", {3}, DType::i32),
    packed.cu_seqlens_kv = on.tensor("cu_kv", {3}, DType::i32);
    packed.max_q_len = packed.max_kv_len = 300;
    on.run("packed, starts on the device", "forward", causal, packed);
    Forward merged = dense(on, {});
    merged.max = on.tensor("max", {2, 4, 300}, DType::f32);
    merged.o_before = on.tensor("o_before", {2, 4, 300, 64}, DType::f32), merged.lse_before = merged.lse;
    on.run("merged with another's results", "forward", causal, merged);
    Forward entries = dense(on, {});
    entries.kv_len = on.tensor("kv_len", {2}, DType::i32), entries.q_offsets = on.tensor("q_offsets", {2}, DType::i32);
    on.run("lengths of entries", "forward", causal, entries);
    Forward drafts = dense(on, {.q = 16, .q_len = 8, .kv_len = 20000, .d = 128});
    drafts.kv_len = on.tensor("kv_len", {2}, DType::i32), drafts.q_offsets = on.tensor("q_offsets", {2}, DType::i32);
    on.run("few queries of long entries", arch == 90 ? "parts" : "forward", causal, drafts);
    all += fmt::format("---- sm_{}\n{}", arch, on.text);
  }
  Calls on(90);
  const Heads large{.q_len = 5000, .kv_len = 5000, .d = 128};
  on.run("e4m3", "forward", causal, dense(on, large, DType::e4m3));
  on.run("e4m3, values transposed before", "forward", {}, dense(on, large, DType::e4m3),
         "forward_e4m3_sm90:n=128,transposed=1");
  on.run("e4m3, values transposed before, documents", "forward", documents(on), dense(on, {.d = 128}, DType::e4m3),
         "forward_e4m3_sm90:n=128,transposed=1");
  Calls f32(90);
  f32.run("f32", "forward", causal, dense(f32, {.kv_len = 5000, .d = 128}, DType::f32));
  f32.run("f32, documents", "forward", documents(f32), dense(f32, {}, DType::f32));
  f32.run("f32, one product", "forward", {.exact = false}, dense(f32, {.q = 8, .q_len = 64, .d = 100}, DType::f32));
  Forward packed{.q = f32.tensor("q", {300, 4, 64}, DType::f32),
                 .k = f32.tensor("k", {300, 2, 64}, DType::f32),
                 .v = f32.tensor("v", {300, 2, 64}, DType::f32),
                 .o = f32.tensor("o", {300, 4, 64}, DType::f32)};
  packed.cu_seqlens_q = f32.tensor("cu_q", {3}, DType::i32);
  packed.cu_seqlens_kv = f32.tensor("cu_kv", {3}, DType::i32);
  packed.max_q_len = packed.max_kv_len = 300;
  f32.run("f32, packed, starts on the device", "forward", causal, packed);
  tests::golden("driver/forwards", all + "---- e4m3\n" + on.text + "---- f32\n" + f32.text);
}

TEST_CASE("a kernel that a test adds gets its own struct, memory and companion in a call", "[driver][launches]") {
  const codegen::KernelBefore first(tests::forward_plain());
  Calls on(80);
  const Attention attention{.score = [](Float s, At at) { return s - 0.5f * f32(at.q - at.kv); }};
  const Forward call = dense(on, {.q_len = 30, .kv_len = 40}, DType::f32);
  Forward other = call;
  other.lse = {};
  on.run("plain", "plain", attention, other);
  CHECK(on.text.find("plain_tops 240 x 32 threads") < on.text.find("forward_plain 240 x 64 threads"));
  CHECK(on.text.find("    tops room\n", on.text.find("  forward_plain")) != std::string::npos);
  CHECK(attention.workspace(other) == 240 * sizeof(float));
  CHECK(runtime::stories(attention, other).front().kernel.starts_with("forward_plain:threads=64"));
}

TEST_CASE("what decode calls put on their streams", "[driver][launches]") {
  std::string all;
  for (const int arch : {90, 80}) {
    Calls on(arch);
    on.run("one query", "decode", causal, dense(on, {.q = 8, .q_len = 1, .kv_len = 2048}));
    on.run("whole tiles", "decode", {}, dense(on, {.batch = 132, .q = 8, .kv = 1, .q_len = 1, .kv_len = 2048}));
    on.run("two blocks a tile", "decode", {}, dense(on, {.batch = 66, .q = 8, .kv = 1, .q_len = 1, .kv_len = 2048}));
    on.run("documents", "decode", documents(on), dense(on, {.q_len = 3, .kv_len = 800}));
    Forward entries = dense(on, {.q = 8, .q_len = 1, .kv_len = 700});
    entries.kv_len = on.tensor("kv_len", {2}, DType::i32), entries.q_offsets = on.tensor("q_offsets", {2}, DType::i32);
    on.run("lengths of entries", "decode", causal, entries);
    Forward paged = entries;
    paged.k = on.tensor("k", {60, 2, 64, 64}), paged.v = on.tensor("v", {60, 2, 64, 64});
    paged.page_table = on.tensor("page_table", {2, 20}, DType::i32);
    on.run("paged", "decode", causal, paged);
    Forward fixed = dense(on, {.batch = 3, .q = 8, .q_len = 1, .kv_len = 1000});
    fixed.fixed_split_size = 256;
    on.run("a fixed split size", "decode", {}, fixed);
    all += fmt::format("---- sm_{}\n{}", arch, on.text);
  }
  Calls on(90);
  on.run("one", "mla", {}, mla(on, 1, 8, 2048));
  on.run("many, which stay whole", "mla", {}, mla(on, 132, 8, 2048));
  on.run("more than 64 rows", "mla", causal, mla(on, 3, 128, 2048));
  on.run("more than 128 rows", "mla", causal, mla(on, 3, 256, 2048));
  Forward merged = mla(on, 3, 16, 700);
  merged.lse = on.tensor("lse", {3, 16, 1}, DType::f32);
  merged.o_before = on.tensor("o_before", {3, 16, 1, 512}, DType::f32), merged.lse_before = merged.lse;
  on.run("merged with another's results", "mla", {}, merged);
  Forward paged = mla(on, 60, 16, 64);
  paged.q = on.tensor("q", {3, 16, 1, 576}), paged.o = on.tensor("o", {3, 16, 1, 512});
  paged.page_table = on.tensor("page_table", {3, 20}, DType::i32), paged.kv_len = on.tensor("kv_len", {3}, DType::i32);
  on.run("paged", "mla", causal, paged);
  tests::golden("driver/decodes", all + "---- MLA\n" + on.text);
}

TEST_CASE("what backwards put on their streams", "[driver][launches]") {
  std::string all;
  for (const auto& [arch, d] : {std::pair{90, 64}, {90, 192}, {80, 64}}) {
    Calls on(arch);
    const Heads h{.q_len = 250, .kv_len = 250, .d = d};
    const Forward of = dense(on, h);
    Backward call{.q = of.q,
                  .k = of.k,
                  .v = of.v,
                  .grad_o = on.tensor("grad_o", {2, 4, 250, d}),
                  .o = of.o,
                  .lse = of.lse,
                  .dq = on.tensor("dq", {2, 4, 250, d}),
                  .dk = on.tensor("dk", {2, 2, 250, d}),
                  .dv = on.tensor("dv", {2, 2, 250, d})};
    const Capture<float> table(on.tensor("table", {500}, DType::f32), "table");
    const Attention biased{.score = [=](Float s, At at) { return s + table[at.q - at.kv + 250]; },
                           .mask = mods::causal()},
        by_key{.score = [=](Float s, At at) { return s + table[at.kv]; }},
        masked{.mask = [=](At at) { return at.kv <= at.q && table[at.kv] > 0.5f; }};
    on.run("plain", {}, call);
    on.run("causal", causal, call);
    on.run("documents", documents(on), call);
    Backward some = call;
    some.dq = {};
    on.run("of keys", causal, some);
    some = call;
    some.dk = some.dv = {};
    on.run("of queries", causal, some);
    Backward with_table = call;
    with_table.captured = {{.of = table, .into = on.tensor("grad_table", {500}, DType::f32)}};
    on.run("captured, along diagonals", biased, with_table);
    on.run("captured, by key", by_key, with_table);
    on.run("captured, of the mask alone", masked, with_table);
    some = call;
    some.o = some.lse = {};
    on.run("without a forward's results", causal, some);
    const auto starts = Device::cpu().array<int>({3});
    starts.data()[1] = 100, starts.data()[2] = 300;
    Backward packed{.q = on.tensor("q", {300, 4, d}),
                    .k = on.tensor("k", {300, 2, d}),
                    .v = on.tensor("v", {300, 2, d}),
                    .grad_o = on.tensor("grad_o", {300, 4, d}),
                    .o = on.tensor("o", {300, 4, d}),
                    .lse = on.tensor("lse", {4, 300}, DType::f32),
                    .dq = on.tensor("dq", {300, 4, d}),
                    .dk = on.tensor("dk", {300, 2, d}),
                    .dv = on.tensor("dv", {300, 2, d}),
                    .cu_seqlens_q = starts,
                    .cu_seqlens_kv = starts};
    on.run("packed", causal, packed);
    all += fmt::format("---- sm_{}, D={}\n{}", arch, d, on.text);
  }
  tests::golden("driver/backwards", all);
}
