// tests/gpu/backward.test.cpp — gradients on a device: every kernel's shapes, equal bits, masked-out NaN, graphs
#include <attune/attune.h>
#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "runtime/engines/cuda/engine.h"
#include "tests/gpu/disturbance.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/inputs.h"
#include "tests/turn.h"

namespace attune::tests {
namespace {

namespace cu = runtime::cuda::cu;

std::string judge(const Attention& attention, const Shape& shape, bool captured = true) {
  return compare(Subject(attention), inputs(shape), std::span(&device_engine(), 1),
                 {.forward = false, .captured = captured})
      .wrong;
}

/// Documents of uneven lengths, which a kernel learns from lists or a table of tiles.
Attention documents(const Device& device) {
  const auto doc = Device::cpu().array<std::int32_t>({1024});
  for (std::size_t i = 0; i < doc.values().size(); ++i)
    doc.values()[i] = static_cast<std::int32_t>(i < 70 ? 0 : i < 90 ? 1 : i < 300 ? 2 : i / 150);
  const Array<std::int32_t> there = doc.on(device);
  return {.mask = [=](At at) { return there[at.q] == there[at.kv]; }};
}

Attention softcapped() {
  return {.score = [](Float s, At) { return 20.0f * tanh(s / 20.0f); }, .mask = mods::causal()};
}

/// What a call of 2 x 8 heads over 2 key heads wrote, as bytes.
struct Gradients {
  static constexpr std::int64_t batch = 2, q_heads = 8, kv_heads = 2, q_len = 515, kv_len = 640;

  std::int64_t d;
  Device gpu = Device::cuda();
  Array<bf16> q = filled(1, {batch, q_heads, q_len, d}).on(gpu), k = filled(2, {batch, kv_heads, kv_len, d}).on(gpu),
              v = filled(3, {batch, kv_heads, kv_len, d}).on(gpu),
              grad_o = filled(4, {batch, q_heads, q_len, d}).on(gpu), o = gpu.array<bf16>({batch, q_heads, q_len, d});
  Array<float> lse = gpu.array<float>({batch, q_heads, q_len});
  Array<bf16> dq = gpu.array<bf16>({batch, q_heads, q_len, d}), dk = gpu.array<bf16>({batch, kv_heads, kv_len, d}),
              dv = gpu.array<bf16>({batch, kv_heads, kv_len, d});

  explicit Gradients(std::int64_t width) : d(width) {}

  Forward forward() const { return {.q = q, .k = k, .v = v, .o = o, .lse = lse}; }
  Backward backward() const {
    return {.q = q, .k = k, .v = v, .grad_o = grad_o, .o = o, .lse = lse, .dq = dq, .dk = dk, .dv = dv};
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    for (const Array<bf16>* one : {&dq, &dk, &dv}) {
      const auto here = one->on(Device::cpu());
      const auto all = std::as_bytes(here.values());
      out.insert(out.end(), all.begin(), all.end());
    }
    return out;
  }
  /// Which elements of which gradient have other bits, in words; empty if none.
  std::string difference(const std::vector<std::byte>& wanted, const std::vector<std::byte>& got) const {
    std::size_t begin = 0;
    std::string out;
    for (const auto& [name, one] : {std::pair{"dq", &dq}, {"dk", &dk}, {"dv", &dv}}) {
      const auto count = static_cast<std::size_t>(one->tensor().size());
      std::size_t first = count, different = 0;
      for (std::size_t i = 0; i < count; ++i)
        if (std::memcmp(&wanted[begin + i * sizeof(bf16)], &got[begin + i * sizeof(bf16)], sizeof(bf16)) != 0) {
          first = std::min(first, i);
          ++different;
        }
      if (different > 0) out += fmt::format("{}: {} of {} elements, first {}; ", name, different, count, first);
      begin += count * sizeof(bf16);
    }
    return out;
  }
};

}  // namespace

TEST_CASE("gradients of 16-bit heads of every width, ratio and length are what the oracle says", "[gpu]") {
  if (skipped()) return;
  const Attention plain, causal{.mask = mods::causal()}, window{.mask = mods::sliding_window(100)},
      lifted{.score = [](Float s, At at) { return s + 0.1f * f32(at.kv - at.q); }, .mask = mods::causal()},
      capped = softcapped(), of_documents = documents(Device::cpu());
  struct Case {
    const Attention* attention;
    Shape shape;
  };
  std::vector<Case> cases;
  std::uint64_t seed = 0;
  for (const Attention* attention : {&plain, &causal, &window, &lifted, &capped, &of_documents})
    for (const std::int64_t d : {16, 40, 64, 72, 96, 128, 136, 192, 240, 256}) {
      ++seed;
      const std::int64_t group = std::array{1, 2, 3, 8}[seed % 4], q_len = std::array{1, 131, 300}[seed % 3];
      cases.push_back({attention,
                       {.batch = 1 + static_cast<std::int64_t>(seed % 2),
                        .q_heads = 2 * group,
                        .kv_heads = 2,
                        .q_len = q_len,
                        .kv_len = seed % 5 ? 257 : q_len,
                        .d = d,
                        .dv = seed % 7 ? d : std::max<std::int64_t>(d - 8, 8),
                        .dtype = seed % 2 ? DType::bf16 : DType::f16,
                        .kv_shared = seed % 6 == 0,
                        .q_offset = static_cast<std::int32_t>(seed % 3 * 57),
                        .seed = seed}});
      if (seed % 2) continue;
      Shape packed = cases.back().shape;
      packed.q_lens = {q_len, 1, 130, 77}, packed.kv_lens = {257, 1, 40, 129};
      packed.kv_shared = false;
      cases.push_back({attention, packed});
    }
  CHECK(side_by_side(cases.size(), [&](std::size_t i) { return judge(*cases[i].attention, cases[i].shape); }) == "");
}

TEST_CASE("gradients do not depend on other work, or on how many blocks there are", "[gpu]") {
  if (skipped()) return;
  const Disturbance disturbance;
  const Attention plain, causal{.mask = mods::causal()}, capped = softcapped(),
                                                         sparse{.mask = [](At at) { return (at.q ^ at.kv) % 3 != 0; }},
                                                         listed = documents(Device::cuda());
  const std::pair<const char*, const Attention*> mods[] = {
      {"plain", &plain}, {"causal", &causal}, {"capped", &capped}, {"sparse", &sparse}, {"listed", &listed}};
  constexpr std::array<std::int64_t, 4> widths{64, 128, 192, 256};
  // Kernels are compiled side by side; what follows runs alone.
  REQUIRE(side_by_side(widths.size() * std::size(mods), [&](std::size_t i) {
            const Gradients call(widths[i / std::size(mods)]);
            const Attention& attention = *mods[i % std::size(mods)].second;
            attention.run(call.forward());
            attention.backward(call.backward());
            return "";
          }) == "");
  for (const std::int64_t d : widths)
    for (const auto& [name, attention] : mods) {
      const Gradients call(d);
      attention->run(call.forward());
      const Subject subject(*attention);
      const Backward backward = call.backward();
      const compiler::Problem problem = compiler::check(subject.written, backward, subject.scale);
      runtime::cuda::engine.run(runtime::call_of(subject.lowered, backward, problem), {});
      const std::vector<std::byte> wanted = call.bytes();
      // One block also shows that no block waits for another that comes later.
      for (const int blocks : {132, 131, 7, 1}) {
        for (int i = 0; i < 5; ++i) {
          disturbance.run(i);
          runtime::cuda::engine.run(runtime::call_of(subject.lowered, backward, problem), {.blocks = blocks});
          INFO(name << ", d " << d << ", " << blocks << " blocks, run " << i);
          CHECK(call.difference(wanted, call.bytes()) == "");
        }
      }
    }
}

TEST_CASE("captured gradients have the same bits every time, also where all pairs add to one element", "[gpu]") {
  if (skipped()) return;
  const Device gpu = Device::cuda();
  const auto one = normal<float>(7, {1}).on(gpu), table = normal<float>(8, {129}).on(gpu);
  const auto grad_one = gpu.array<float>({1}), grad_table = gpu.array<float>({129});
  const Attention attention{.score = [=](Float s, At at) {
    return s * one[0] + table[clamp(at.kv - at.q, -64, 64) + 64] * one[min(at.kv % 2, 0)];
  }};
  const Gradients call(64);
  Backward backward = call.backward();
  backward.o = backward.lse = {};
  backward.captured = {{.of = one, .into = grad_one}, {.of = table, .into = grad_table}};
  const Disturbance disturbance;
  const auto run = [&] {
    attention.backward(backward);
    std::vector<float> out;
    for (const Array<float>* x : {&grad_one, &grad_table}) {
      const auto here = x->on(Device::cpu());
      out.insert(out.end(), here.values().begin(), here.values().end());
    }
    return out;
  };
  const std::vector<float> wanted = run();
  CHECK(wanted[0] != 0);
  int different = 0;
  for (int i = 0; i < 20; ++i) {
    disturbance.run(i);
    different += std::memcmp(run().data(), wanted.data(), wanted.size() * sizeof(float)) != 0;
  }
  CHECK(different == 0);
}

TEST_CASE("gradients of what is read at q - kv are what the oracle says, whatever tiles are visited", "[gpu]") {
  if (skipped()) return;
  const Array<float> table = normal<float>(8, {4, 1401}), slope = normal<float>(9, {4}), bias = normal<float>(10, {2});
  const auto clamped = [=](int reach) {
    return [=](Float s, At at) { return s + table(at.head % 4, clamp(at.q - at.kv, -reach, reach) + reach); };
  };
  const Mask holes = [](At at) { return (at.q / 130 + at.kv / 150) % 2 == 0; };
  const std::array attentions{
      Attention{.score = clamped(700), .mask = mods::causal()},
      Attention{.score = clamped(5)},
      Attention{.score = clamped(300), .mask = mods::sliding_window(100)},
      Attention{.score = clamped(700), .mask = holes},
      Attention{.score = clamped(64), .mask = documents(Device::cpu()).mask},
      Attention{
          .score = [=](Float s, At at) { return s + slope[at.head % 4] * f32(at.kv - at.q) + bias[at.batch % 2]; },
          .mask = mods::causal()},
  };
  struct Case {
    const Attention* attention;
    Shape shape;
  };
  std::vector<Case> cases;
  std::uint64_t seed = 0;
  for (const Attention& attention : attentions)
    for (const std::int64_t d : {40, 64, 96, 128}) {
      ++seed;
      const std::int64_t group = std::array{1, 2, 4}[seed % 3];
      cases.push_back({&attention,
                       {.batch = 1 + static_cast<std::int64_t>(seed % 2),
                        .q_heads = 2 * group,
                        .kv_heads = 2,
                        .q_len = std::array{515, 1, 300}[seed % 3],
                        .kv_len = std::array{640, 257, 130}[seed / 3 % 3],
                        .d = d,
                        .dv = d,
                        .dtype = seed % 4 ? DType::bf16 : DType::f16,
                        .kv_shared = seed % 5 == 0,
                        .q_offset = static_cast<std::int32_t>(seed % 3 * 57),
                        .seed = seed}});
      Shape packed = cases.back().shape;
      packed.q_lens = {300, 1, 130, 77}, packed.kv_lens = {257, 1, 400, 129};
      packed.kv_shared = false;
      cases.push_back({&attention, packed});
    }
  CHECK(side_by_side(cases.size(), [&](std::size_t i) { return judge(*cases[i].attention, cases[i].shape); }) == "");
}

TEST_CASE("gradients of what is read at q - kv have the same bits on any number of blocks", "[gpu]") {
  if (skipped()) return;
  const Device gpu = Device::cuda();
  const auto table = normal<float>(8, {1401}).on(gpu), grad = gpu.array<float>({1401});
  const Attention causal{.score = [=](Float s, At at) { return s + table[clamp(at.q - at.kv, -700, 700) + 700]; },
                         .mask = mods::causal()};
  const Disturbance disturbance;
  for (const std::int64_t d : {64, 128}) {
    const Gradients call(d);
    causal.run(call.forward());
    const Subject subject(causal);
    Backward backward = call.backward();
    backward.captured = {{.of = table, .into = grad}};
    const compiler::Problem problem = compiler::check(subject.written, backward, subject.scale);
    const auto run = [&](int blocks) {
      runtime::cuda::engine.run(runtime::call_of(subject.lowered, backward, problem), {.blocks = blocks});
      const auto here = grad.on(Device::cpu());
      const auto bytes = std::as_bytes(here.values());
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    const std::vector<std::byte> wanted = run(132);
    for (const int blocks : {132, 131, 7, 1}) {
      int different = 0;
      for (int i = 0; i < 5; ++i) {
        disturbance.run(i);
        different += run(blocks) != wanted;
      }
      INFO("d " << d << ", " << blocks << " blocks");
      CHECK(different == 0);
    }
  }
}

TEST_CASE("what a mask removes is NaN, and reaches no gradient", "[gpu][small]") {
  if (skipped()) return;
  // Queries see the first 100 keys; all other keys, and the queries that see no key, are NaN or infinite.
  const Array<float> table = normal<float>(8, {400});
  const Attention attention{.score = [=](Float s, At at) { return s + table[at.q - at.kv + 200]; },
                            .mask = [](At at) { return at.kv < 100 && at.q < 90; }};
  std::size_t nth = 0;
  for (const std::int64_t d : {64, 128, 192}) {
    INFO("d " << d);
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      if (!in_turn(nth++ + (d == 128), 2)) continue;
      Inputs in = inputs({.batch = 1,
                          .q_heads = 2,
                          .kv_heads = 1,
                          .q_len = 150,
                          .kv_len = 170,
                          .d = d,
                          .dv = d,
                          .dtype = DType::bf16,
                          .seed = static_cast<std::uint64_t>(d)});
      const auto spoil = [&](const Placed& of, std::int64_t from) {
        const Tensor& t = of.tensor;
        for (std::int64_t h = 0; h < t.shape[1]; ++h)
          for (std::int64_t i = from; i < t.shape[2]; ++i)
            static_cast<bf16*>(t.data)[h * t.strides[1] + i * t.strides[2] + i % d] = poison;
      };
      spoil(in.k, 100);
      spoil(in.v, 100);
      spoil(in.q, 90);
      CHECK(compare(Subject(attention), in, std::span(&device_engine(), 1), {.forward = false}).wrong == "");
    }
  }
}

TEST_CASE("a prepared backward is captured into a graph, and replayed", "[gpu]") {
  if (skipped()) return;
  const runtime::cuda::Current current(0);
  const runtime::cuda::Driver& d = runtime::cuda::driver();
  cu::Stream stream = nullptr;
  d.cuStreamCreate(&stream, cu::stream_non_blocking);
  const Attention attention = softcapped();
  const Gradients call(128);
  attention.run(call.forward());
  attention.backward(call.backward());
  const std::vector<std::byte> wanted = call.bytes();
  const std::size_t bytes = attention.workspace(call.backward());
  const auto workspace = Device::cuda().array<float>({static_cast<std::int64_t>(bytes / sizeof(float) + 1)});
  const Resources with{.workspace = {reinterpret_cast<std::byte*>(workspace.data()), bytes}, .stream = stream};
  d.cuStreamBeginCapture(stream, cu::CaptureMode::thread_local_);
  attention.backward(call.backward(), with);
  cu::Graph graph = nullptr;
  d.cuStreamEndCapture(stream, &graph);
  cu::GraphExec replay = nullptr;
  d.cuGraphInstantiateWithFlags(&replay, graph, 0);
  for (int i = 0; i < 3; ++i) {
    copy(call.q, call.dq);
    copy(call.k, call.dk);
    copy(call.k, call.dv);
    d.cuGraphLaunch(replay, stream);
    d.cuStreamSynchronize(stream);
    CHECK(call.bytes() == wanted);
  }
  d.cuGraphExecDestroy(replay);
  d.cuGraphDestroy(graph);
  d.cuStreamDestroy(stream);
}

}  // namespace attune::tests
