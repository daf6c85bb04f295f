// tests/gpu/mla.test.cpp — MLA on a device: values are the first columns of the keys
#include <attune/attune.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "codegen/choose/choose.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/machine/tensor.h"
#include "tests/gpu/device.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/mla.h"
#include "tests/numerics/moved.h"
#include "tests/refusal.h"
#include "tests/turn.h"

namespace attune::tests {
namespace {

const Attention plain{};
const Attention causal{.mask = mods::causal()};
const Attention windowed{.mask = mods::sliding_window(70)};
const Attention rich = [] {
  static const auto slope = Device::cpu().array<float>({256}, "slope"),
                    bias = Device::cpu().array<float>({900}, "bias"),
                    sinks = Device::cpu().array<float>({256}, "sinks");
  for (std::int64_t i = 0; i < 256; ++i) slope.data()[i] = 1.0f / static_cast<float>(i + 2);
  for (std::int64_t i = 0; i < 256; ++i) sinks.data()[i] = 0.5f * static_cast<float>(i % 5) - 1;
  for (std::int64_t i = 0; i < 900; ++i) bias.data()[i] = static_cast<float>(i % 7) * 0.3f - 1;
  return Attention{
      .score = [](Float s, At at) { return 5 * tanh((s + slope[at.head] * (at.kv - at.q) + bias[at.kv]) / 5); },
      .mask = [](At at) { return at.kv <= at.q + 130 && at.kv % 3 != at.q % 2; },
      .prob = [](Float p, At) { return where(random(11) < 0.9f, p / 0.9f, 0); },
      .sink = [](SinkAt at) { return sinks[at.head]; }};
}();
/// Different heads keep different keys, so heads share no tiles.
const Attention by_head{.mask = [](At at) { return at.kv % 5 != at.head % 5; }};

/// The reason to skip: no device, or no kernel for it.
bool no_hopper() { return skipped() || runtime::cuda::facts(0).arch() != 90; }

std::string judge(const Attention& attention, const Inputs& in) {
  Engine engine = device_engine();
  engine.per_entry = engine.mla = true;
  return compare(Subject(attention), in, std::span(&engine, 1), {.backward = false, .max = in.shape.seed % 2 == 0})
      .wrong;
}

std::vector<Shape> shapes() {
  std::vector<Shape> out;
  for (const std::int64_t heads : {1, 5, 16, 24, 64, 128, 200})
    for (const std::int64_t q_len : {1, 3}) {
      const std::size_t nth = out.size();
      Shape shape = mla_shape(heads, q_len, nth % 3 ? 700 : 129);
      shape.dtype = nth % 4 == 1 ? DType::f16 : DType::bf16;
      shape.layout = nth % 3 == 1 ? Layout::bshd : Layout::bhsd;
      if (nth % 2) shape.used = {shape.kv_len, 0, 67};
      if (nth % 5 == 2) {
        shape.q_offset = 0;
        shape.q_offsets = {static_cast<std::int32_t>(shape.kv_len) - 3, 0, 64};
      }
      shape.page = std::array{0, 8, 64, 48, 128, 16}[nth % 6];
      shape.holes = nth % 7 == 3;
      shape.before = nth % 7 == 5;
      shape.seed = nth + 1;
      out.push_back(shape);
    }
  Shape two = mla_shape(32, 2, 300);  // key heads
  two.kv_heads = 2;
  two.q_offset = 100;
  two.kv_offset = 77;
  out.push_back(two);
  Shape shared = mla_shape(16, 1, 200);
  shared.kv_shared = true;
  out.push_back(shared);
  Shape packed = mla_shape(40, 1, 260);
  packed.q_lens = {2, 0, 1, 70};
  packed.used = {260, 3, 0, 131};
  packed.q_offset = 60;
  out.push_back(packed);
  packed.used = {};
  packed.kv_lens = {100, 3, 0, 131};
  out.push_back(packed);
  out.push_back(mla_shape(8, 150, 150));  // many queries
  return out;
}

}  // namespace

TEST_CASE("MLA gets what the oracle says", "[gpu][mla]") {
  if (no_hopper()) return;
  const Attention* const what[] = {&plain, &causal, &windowed, &rich, &by_head};
  const std::vector<Shape> all = shapes();
  // Each kernel takes some seconds to compile: two mods for each shape, by turns.
  const std::string wrong = side_by_side(all.size() * 2, [&](std::size_t i) {
    const Attention& attention = *what[(i / 2 + i % 2 * 2) % std::size(what)];
    return judge(attention, inputs(all[i / 2]));
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("MLA: what is removed reaches no result, even NaN", "[gpu][mla][small]") {
  if (no_hopper()) return;
  const Attention odd{.mask = [](At at) { return at.kv % 2 == 0; }};
  std::size_t nth = 0;
  for (const std::int64_t page : {0, 64})
    for (const auto& [heads, queries] : {std::pair{3, 1}, {128, 1}, {128, 2}}) {
      if (!in_turn(nth++, 2)) continue;
      Shape shape = mla_shape(heads, queries, 200);
      shape.page = page;
      shape.used = {200, 190, 1};
      Inputs in = inputs(shape);
      const Tensor& k = in.k.tensor;
      for (std::int64_t b = 0; b < k.shape[0]; ++b)
        for (std::int64_t i = 1; i < k.shape[2]; i += 2)
          for (std::int64_t j = 0; j < k.shape[3]; j += 31)
            runtime::store(k, runtime::offset(k, b, 0, i, j), std::numeric_limits<double>::quiet_NaN());
      const std::string wrong = judge(odd, in);
      INFO(wrong);
      CHECK(wrong.empty());
    }
}

TEST_CASE("MLA: keys that many blocks share add up to what few give, and to the same bits every time", "[gpu][mla]") {
  if (no_hopper()) return;
  const Device gpu = Device::cuda();
  struct Size {
    std::int64_t heads, kv_len, batch;
  };
  for (const Size& of :
       {Size{16, 64, 1}, {128, 131, 1}, {128, 5000, 1}, {16, 3000, 3}, {128, 800, 40}, {256, 3000, 3}}) {
    const std::int64_t heads = of.heads, kv_len = of.kv_len, batch = of.batch;
    const auto q = normal<bf16>(1, {batch, heads, 1, 576}).on(gpu),
               k = normal<bf16>(2, {batch, 1, kv_len, 576}).on(gpu);
    Tensor v = k.tensor();
    v.shape[3] = 512;
    const auto o = gpu.array<bf16>({batch, heads, 1, 512});
    const auto lse = gpu.array<float>({batch, heads, 1});
    const Subject subject(causal);
    const auto run = [&](int blocks) {
      Forward call{.q = q, .k = k, .v = v, .o = o, .lse = lse, .q_offset = static_cast<std::int32_t>(kv_len - 1)};
      const compiler::Problem problem = compiler::check(subject.lowered, call, {});
      runtime::cuda::engine.run(runtime::call_of(subject.lowered, call, problem), {.blocks = blocks});
      return std::pair{o.on(Device::cpu()), lse.on(Device::cpu())};
    };
    const auto whole = run(2);
    for (const int blocks : {1, 4, 7, 33, 131, 132}) {
      const auto cut = run(blocks);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < whole.first.values().size(); ++i)
        wrong += !is_near(cut.first.values()[i], whole.first.values()[i]);
      for (std::size_t i = 0; i < whole.second.values().size(); ++i)
        wrong += !(std::fabs(cut.second.values()[i] - whole.second.values()[i]) < 1e-4f);
      INFO(heads << " heads, " << kv_len << " keys, " << batch << " entries, " << blocks << " blocks");
      CHECK(wrong == 0);
      for (int again = 0; again < 10; ++again) {
        const auto same = run(blocks);
        REQUIRE(std::memcmp(same.first.data(), cut.first.data(), cut.first.values().size_bytes()) == 0);
      }
    }
  }
}

TEST_CASE("MLA gets what the oracle says, however tiles are cut", "[gpu][mla]") {
  if (no_hopper()) return;
  const char* const variants[] = {
      "mla_sm90:cluster=1",     "mla_sm90:cluster=2",     "mla_sm90:cluster=2,issue_order=2",
      "mla_sm90:issue_order=0", "mla_sm90:issue_order=1", "mla_sm90:issue_order=2",
      "mla_sm90:issue_order=3"};
  const std::string wrong = side_by_side(std::size(variants), [&](std::size_t i) {
    Engine engine = device_engine();
    engine.per_entry = engine.mla = true;
    engine.forward = [&](const Subject& subject, const Forward& call, const compiler::Problem& problem) {
      const codegen::Preference preference{codegen::variant(variants[i]), true, ""};
      on_device(subject, call, problem, {.preference = &preference});
    };
    std::string out;
    for (const std::int64_t kv_len : {64, 130, 1500}) {
      Shape shape = mla_shape(200, 1, kv_len);
      shape.page = 64;
      shape.used = {kv_len, 0, kv_len / 2 + 1};
      shape.q_offset = 0;
      shape.q_offsets = {static_cast<std::int32_t>(kv_len) - 1, 0, static_cast<std::int32_t>(kv_len) / 2};
      out += compare(Subject(causal), inputs(shape), std::span(&engine, 1), {.backward = false}).wrong;
    }
    return out.empty() ? "" : std::string(variants[i]) + ": " + out;
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("MLA calls that no kernel takes are refused by name", "[gpu][mla]") {
  if (no_hopper()) return;
  const Device gpu = Device::cuda();
  const auto q = gpu.array<bf16>({1, 4, 1, 576}), k = gpu.array<bf16>({1, 1, 64, 576}),
             apart = gpu.array<bf16>({1, 1, 64, 512}), o = gpu.array<bf16>({1, 4, 1, 512});
  Tensor v = k.tensor();
  v.shape[3] = 512;
  CHECK(refusal([&] { plain.run({.q = q, .k = k, .v = apart, .o = o}); }).code == "engine-width");
  CHECK(refusal([&] { plain.run({.q = q, .k = k, .v = v, .o = o, .fixed_split_size = 256}); }).code == "engine-call");
  const Attention squared{.prob = [](Float p, At) { return p * p; }};
  CHECK(refusal([&] { squared.run({.q = q, .k = k, .v = v, .o = o}); }).code == "engine-call");
}

}  // namespace attune::tests
