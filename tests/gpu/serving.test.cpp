// tests/gpu/serving.test.cpp — decode and prefill on a device: split-KV, lengths, positions, page tables, graphs
#include <attune/attune.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <random>

#include "codegen/ceil_div.h"
#include "codegen/choose/choose.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/machine/tensor.h"
#include "tests/gpu/device.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/moved.h"

namespace attune::tests {
namespace {

const Attention plain{};
const Attention causal{.mask = mods::causal()};
const Attention windowed{.mask = mods::sliding_window(70)};
const Attention bent{.score = mods::alibi(8) | mods::softcap(5), .mask = mods::causal()};
const Attention rich = [] {
  static const auto slope = Device::cpu().array<float>({16}, "slope"),
                    sinks = Device::cpu().array<float>({16}, "sinks");
  for (std::int64_t i = 0; i < 16; ++i) slope.data()[i] = 1.0f / static_cast<float>(i + 2);
  for (std::int64_t i = 0; i < 16; ++i) sinks.data()[i] = 0.5f * static_cast<float>(i % 5) - 1;
  return Attention{.score = [](Float s, At at) { return 5 * tanh((s + slope[at.head] * (at.kv - at.q)) / 5); },
                   .mask = [](At at) { return at.kv <= at.q + 130 && at.kv % 3 != at.q % 2; },
                   .prob = [](Float p, At) { return where(random(11) < 0.9f, p / 0.9f, 0); },
                   .sink = [](SinkAt at) { return sinks[at.head]; }};
}();

/// Scores of -inf, without a mask, also remove tiles of keys.
const Attention unseen{.score = [](Float s, At at) { return where(at.kv <= at.q, s, -INFINITY); }};

std::string judge(const Attention& attention, const Shape& shape) {
  Engine engine = device_engine();
  engine.fp8_kv = Engine::Fp8Kv::all;
  return compare(Subject(attention), inputs(shape), std::span(&engine, 1),
                 {.backward = false, .max = shape.seed % 2 == 0})
      .wrong;
}

/// Entries with lengths and first query positions of their own.
std::vector<Shape> apart() {
  std::vector<Shape> out;
  for (const std::int64_t q_len : {1, 3}) {
    Shape shape{.batch = 5,
                .q_heads = 8,
                .kv_heads = 2,
                .q_len = q_len,
                .kv_len = 700,
                .d = q_len == 1 ? 128 : 64,
                .dv = 64,
                .dtype = q_len == 1 ? DType::bf16 : DType::f16,
                .used = {700, 0, 1, 131, 699},
                .q_offsets = {699, 0, 500, 100, 400},
                .seed = static_cast<std::uint64_t>(q_len)};
    out.push_back(shape);
    shape.layout = Layout::bshd;
    for (const std::int64_t page : {1, 7, 16, 100, 128}) {
      shape.page = page;
      shape.holes = page == 7;
      ++shape.seed;
      out.push_back(shape);
    }
    shape.page = 0;
    shape.q_offsets = {};
    shape.q_offset = 650;
    shape.kv_offset = 77;
    out.push_back(shape);
  }
  // Up to sixteen heads share a tile of one query.
  for (const std::int64_t heads : {11, 16}) {
    Shape shape{.batch = 3,
                .q_heads = heads,
                .kv_heads = 1,
                .q_len = 1,
                .kv_len = 700,
                .d = 128,
                .dv = 64,
                .dtype = DType::bf16,
                .used = {700, 1, 333},
                .q_offsets = {699, 0, 332},
                .seed = static_cast<std::uint64_t>(heads)};
    shape.page = heads == 16 ? 16 : 0;
    out.push_back(shape);
  }
  out.push_back({.q_heads = 4,
                 .kv_heads = 2,
                 .kv_len = 260,
                 .d = 64,
                 .dv = 64,
                 .dtype = DType::bf16,
                 .q_lens = {2, 0, 1, 3},
                 .q_offset = 200,
                 .used = {260, 3, 0, 131}});
  return out;
}

/// fp8_kv: decode with every width, number of queries and group, dense and paged, per-entry lengths and positions,
/// with a fixed split size, and merged with earlier results.
std::vector<Shape> fp8_kv() {
  std::vector<Shape> out;
  for (const std::int64_t d : {48, 64, 128, 256})
    for (const std::int64_t q_len : {1, 2, 3, 4})
      for (const std::int64_t group : {1, 4, 8, 16}) {
        if (!codegen::is_decode(q_len, group)) continue;
        const std::size_t nth = out.size();
        Shape shape{.batch = 4,
                    .q_heads = group == 16 ? 16 : 2 * group,
                    .kv_heads = group == 16 ? 1 : 2,
                    .q_len = q_len,
                    .kv_len = 777,
                    .d = d,
                    .dv = nth % 5 == 4 ? 64 : d,
                    .dtype = nth % 2 ? DType::f16 : DType::bf16,
                    .layout = nth % 3 ? Layout::bhsd : Layout::bshd,
                    .q_offset = 770,
                    .fp8_kv = true,
                    .before = nth % 4 == 3,
                    .seed = nth + 1};
        if (nth % 2) shape.used = {777, 0, 130, 31};
        if (nth % 3 == 1) shape.page = std::array{1, 16, 24, 128}[nth / 3 % 4];
        if (nth % 3 == 2) shape.fixed_split_size = nth % 2 ? 384 : 256;
        if (nth % 7 == 6) shape.q_offset = 0, shape.q_offsets = {776, 0, 129, 400};
        shape.holes = nth % 9 == 7;
        out.push_back(shape);
      }
  out.push_back({.q_heads = 4,
                 .kv_heads = 2,
                 .kv_len = 260,
                 .d = 64,
                 .dv = 64,
                 .dtype = DType::bf16,
                 .q_lens = {2, 0, 1, 3},
                 .q_offset = 200,
                 .used = {260, 3, 0, 131},
                 .fp8_kv = true});
  return out;
}

/// e4m3 of a tensor's scale, of each key head and of each position: mods that multiply s and p.
Attention scaled() {
  constexpr std::int64_t keys = 800;
  static const auto k_of_head = Device::cpu().array<float>({2}, "k_of_head"),
                    v_of_head = Device::cpu().array<float>({2}, "v_of_head"),
                    k_of_key = Device::cpu().array<float>({2, keys}, "k_of_key"),
                    v_of_key = Device::cpu().array<float>({2, keys}, "v_of_key");
  for (std::int64_t h = 0; h < 2; ++h) {
    k_of_head.data()[h] = 0.5f + static_cast<float>(h);
    v_of_head.data()[h] = 3.0f - static_cast<float>(h);
    for (std::int64_t i = 0; i < keys; ++i) {
      k_of_key.data()[h * keys + i] = 0.25f + 0.01f * static_cast<float>((i + h) % 100);
      v_of_key.data()[h * keys + i] = 0.75f + 0.02f * static_cast<float>((i + 3 * h) % 50);
    }
  }
  return {.score = [](Float s, At at) { return s * k_of_head[at.head / 4] * k_of_key(at.head / 4, at.kv); },
          .mask = mods::causal(),
          .prob = [](Float p, At at) { return p * v_of_head[at.head / 4] * v_of_key(at.head / 4, at.kv); }};
}

/// One call of 8 heads over 2 key heads, on the device, in the requested number of blocks.
struct Call {
  Array<bf16> q, k, v, o;
  Array<float> lse;

  Call(std::int64_t kv_len, std::int64_t batch)
      : q(normal<bf16>(1, {batch, 8, 1, 64}).on(Device::cuda())),
        k(normal<bf16>(2, {batch, 2, kv_len, 64}).on(Device::cuda())),
        v(normal<bf16>(3, {batch, 2, kv_len, 64}).on(Device::cuda())), o(Device::cuda().array<bf16>({batch, 8, 1, 64})),
        lse(Device::cuda().array<float>({batch, 8, 1})) {}
  Forward forward() const { return {.q = q, .k = k, .v = v, .o = o, .lse = lse}; }

  struct Results {
    Array<bf16> o;
    Array<float> lse;
    bool operator==(const Results& other) const {
      return std::memcmp(o.data(), other.o.data(), o.values().size() * sizeof(bf16)) == 0 &&
             std::memcmp(lse.data(), other.lse.data(), lse.values().size() * sizeof(float)) == 0;
    }
  };
  Results results() const { return {o.on(Device::cpu()), lse.on(Device::cpu())}; }
  Results run(const Attention& attention, int blocks = 0) const {
    const compiler::LoweredMod lowered = compiler::lower(attention);
    const Forward call = forward();
    const compiler::Problem p = compiler::check(lowered, call, attention.scale);
    runtime::cuda::engine.run(runtime::call_of(lowered, call, p), {.blocks = blocks});
    return results();
  }
};

}  // namespace

TEST_CASE("decode gets what the oracle says, whatever its entries' lengths, positions and page tables", "[gpu]") {
  if (skipped()) return;
  const Attention* const what[] = {&plain, &causal, &windowed, &rich, &unseen};
  std::vector<Shape> shapes = apart();
  // Entries of equal length that see few, some or all of their keys.
  for (const std::int32_t first : {0, 900, 1999})
    shapes.push_back({.batch = 4,
                      .q_heads = 8,
                      .kv_heads = 2,
                      .q_len = 1,
                      .kv_len = 2000,
                      .d = 64,
                      .dv = 64,
                      .dtype = DType::bf16,
                      .q_offset = first});
  const std::string wrong = side_by_side(shapes.size() * std::size(what), [&](std::size_t i) {
    return judge(*what[i % std::size(what)], shapes[i / std::size(what)]);
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("prefill gets what the oracle says, whatever its entries' lengths, positions and pages", "[gpu]") {
  if (skipped()) return;
  const Attention squares{.mask = mods::causal(), .prob = [](Float p, At) { return p * p; }};
  const Attention* const what[] = {&plain, &causal, &windowed, &rich, &unseen, &squares};
  std::vector<Shape> shapes;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const std::int64_t q_len : {5, 70, 300}) {
      Shape shape{.batch = 5,
                  .q_heads = 8,
                  .kv_heads = 2,
                  .q_len = q_len,
                  .kv_len = 700,
                  .d = q_len == 70 ? 128 : 64,
                  .dv = 64,
                  .dtype = dtype,
                  .used = {700, 0, 1, 131, 699},
                  .q_offsets = {400, 0, 500, 100, 690},
                  .seed = shapes.size() + 1};
      shape.page = std::array{0, 1, 7, 16, 128}[shapes.size() % 5];
      shape.holes = shape.page == 7;
      shapes.push_back(shape);
      shape.layout = Layout::bshd;
      shape.page = 0;
      shape.q_offsets = {};
      shape.q_offset = 650;
      shape.kv_offset = 77;
      ++shape.seed;
      shapes.push_back(shape);
    }
  // Prompts and decoding sequences in one call.
  shapes.push_back({.q_heads = 4,
                    .kv_heads = 2,
                    .kv_len = 400,
                    .d = 64,
                    .dv = 64,
                    .dtype = DType::bf16,
                    .q_lens = {1, 200, 0, 1, 33},
                    .used = {400, 200, 9, 1, 300},
                    .q_offsets = {399, 0, 9, 0, 267},
                    .page = 16});
  const std::string wrong = side_by_side(shapes.size() * std::size(what), [&](std::size_t i) {
    return judge(*what[i % std::size(what)], shapes[i / std::size(what)]);
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("prompts over pages of any size get what the oracle says, whatever their width and heads", "[gpu]") {
  if (skipped()) return;
  std::vector<Shape> shapes;
  for (const std::int64_t page : {0, 1, 3, 4, 8, 16, 48, 64, 256})
    for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}})
      shapes.push_back({.batch = 4,
                        .q_heads = 4,
                        .kv_heads = shapes.size() % 3 == 1 ? 1 : 4,
                        .q_len = shapes.size() % 5 == 1 ? 20 : 333,
                        .kv_len = 900,
                        .d = d,
                        .dv = dv,
                        .dtype = shapes.size() % 2 ? DType::f16 : DType::bf16,
                        .used = {900, 0, 177, 899},
                        .q_offsets = {600, 0, 40, 566},
                        .page = page,
                        .holes = shapes.size() % 4 == 3,
                        .seed = shapes.size() + 1});
  const Attention* const what[] = {&plain, &causal, &windowed, &bent};
  const std::string wrong = side_by_side(shapes.size() * std::size(what), [&](std::size_t i) {
    return judge(*what[i % std::size(what)], shapes[i / std::size(what)]);
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("drafts over few long entries, whose keys blocks share, get what the oracle says", "[gpu]") {
  if (skipped()) return;
  std::vector<Shape> shapes;
  for (const std::int64_t page : {0, 1, 16, 64})
    for (const std::int64_t d : {64, 128, 256}) {
      Shape shape{.batch = 2,
                  .q_heads = 4,
                  .kv_heads = 2,
                  .q_len = 20,
                  .kv_len = 5000,
                  .d = d,
                  .dv = d,
                  .dtype = shapes.size() % 2 ? DType::f16 : DType::bf16,
                  .used = {5000, 3777},
                  .q_offsets = {4980, 3757},
                  .page = page,
                  .before = shapes.size() % 5 == 4,
                  .seed = shapes.size() + 1};
      shapes.push_back(shape);
      shape.q_lens = {17, 0, 33};
      shape.used = {5000, 100, 4099};
      shape.q_offsets = {4983, 99, 4066};
      ++shape.seed;
      shapes.push_back(shape);
    }
  const Attention* const what[] = {&plain, &causal, &windowed, &bent, &rich};
  const std::string wrong = side_by_side(shapes.size() * std::size(what), [&](std::size_t i) {
    return judge(*what[i % std::size(what)], shapes[i / std::size(what)]);
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("decode beside keys and values of e4m3 gets what the oracle says", "[gpu]") {
  if (skipped()) return;
  const Attention* const what[] = {&plain, &causal, &windowed, &rich};
  const std::vector<Shape> shapes = fp8_kv();
  const std::string wrong = side_by_side(shapes.size() * 2, [&](std::size_t i) {
    return judge(*what[(i / 2 + i % 2 * 2) % std::size(what)], shapes[i / 2]);
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("scales of e4m3 are mods, of each head and of each position", "[gpu]") {
  if (skipped()) return;
  const Attention attention = scaled();
  const std::string wrong = side_by_side(8, [&](std::size_t i) {
    const std::int64_t d = std::array{64, 128}[i % 2], q_len = 1 + static_cast<std::int64_t>(i / 2 % 2) * 3;
    return judge(attention, {.batch = 3,
                             .q_heads = 8,
                             .kv_heads = 2,
                             .q_len = q_len,
                             .kv_len = 777,
                             .d = d,
                             .dv = d,
                             .dtype = i % 2 ? DType::f16 : DType::bf16,
                             .used = {777, 131, 4},
                             .q_offsets = {773, 127, 0},
                             .page = i < 4 ? 0 : 16,
                             .fp8_kv = true,
                             .seed = i + 1});
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("a device reads every e4m3 as it is, also NaN, which reaches no other key's result", "[gpu]") {
  if (skipped()) return;
  // One entry per key. All entries share the keys, and a mask keeps one key for each.
  constexpr std::int64_t all = 256;
  // The only score that is not 0 stands in column key % d, times 1.
  const Attention own{.mask = [](At at) { return at.kv == at.batch; }, .scale = 1.0};
  for (const std::int64_t d : {32, 48, 128, 256})
    for (const bool half : {false, true})
      for (const bool as_values : {true, false}) {
        const DType type = half ? DType::f16 : DType::bf16;
        const Placed q = place(type, {all, 1, 1, d}), k = place(DType::e4m3, {1, 1, all, d}),
                     v = place(DType::e4m3, {1, 1, all, d}), lse = place(DType::f32, {all, 1, 1});
        each_element(q.tensor, [&](std::int64_t at) { runtime::store(q.tensor, at, at % d == at / d % d); });
        each_element(k.tensor, [&](std::int64_t at) {
          const std::int64_t key = at / d;
          static_cast<std::uint8_t*>(k.tensor.data)[at] = static_cast<std::uint8_t>(
              as_values || at % d != key % d ? 0 : key);
          static_cast<std::uint8_t*>(v.tensor.data)[at] = static_cast<std::uint8_t>(as_values ? (key + at % d) % all
                                                                                              : 0);
        });
        const Moved there_q(q.tensor), there_k(k.tensor), there_v(v.tensor), there_o(q.tensor), there_lse(lse.tensor);
        Forward call{.q = there_q.tensor(), .k = there_k.tensor(), .v = there_v.tensor(), .o = there_o.tensor()};
        call.lse = there_lse.tensor();
        own.run(call);
        const Placed o = place(type, {all, 1, 1, d});
        copy(there_o.tensor(), o.tensor);
        copy(there_lse.tensor(), lse.tensor);
        std::size_t wrong = 0;
        std::string first;
        // lse is computed as a base-2 logarithm times ln 2.
        const auto same = [&](double got, double wanted, std::int64_t key) {
          const double most = as_values ? 0 : 1e-6 * (1 + std::fabs(wanted));
          if (std::fabs(got - wanted) <= most || (std::isnan(got) && std::isnan(wanted))) return;
          if (wrong++ == 0) first = fmt::format("key {}: {}, and it is {}", key, got, wanted);
        };
        for (std::int64_t key = 0; key < all; ++key) {
          e4m3 value;
          value.bits = static_cast<std::uint8_t>(key);
          if (!as_values) same(runtime::load(lse.tensor, key), static_cast<float>(value), key);
          for (std::int64_t j = 0; as_values && j < d; ++j)
            same(runtime::load(o.tensor, key * d + j), runtime::load(v.tensor, key * d + j), key);
        }
        INFO(name_of(type) << ", " << d << " columns, of " << (as_values ? "values" : "keys") << ": " << first);
        CHECK(wrong == 0);
      }
}

TEST_CASE("results of a call are merged with those before as the oracle does, by every kernel", "[gpu]") {
  if (skipped()) return;
  std::vector<Shape> shapes = apart();
  // Few queries; then those of the kernels for many, of one head a tile and of several, wide, packed, in any layout.
  for (const std::int64_t q_len : {1, 5, 24, 200})
    for (const std::int64_t d : {64, 128, 256})
      shapes.push_back({.batch = 2,
                        .q_heads = 8,
                        .kv_heads = 2,
                        .q_len = q_len,
                        .kv_len = 333,
                        .d = d,
                        .dv = d,
                        .dtype = q_len == 5 ? DType::f16 : DType::bf16,
                        .q_offset = 100});
  shapes.push_back({.kv_len = 100, .d = 40, .dv = 24, .dtype = DType::f32});
  shapes.push_back({.kv_len = 100, .d = 40, .dv = 24, .dtype = DType::bf16, .layout = Layout::columns});
  shapes.push_back({.q_heads = 4,
                    .kv_heads = 4,
                    .d = 64,
                    .dv = 64,
                    .dtype = DType::bf16,
                    .q_lens = {100, 0, 1, 77},
                    .kv_lens = {90, 12, 40, 0}});
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    shapes[i].before = true;
    shapes[i].seed = i + 1;
  }
  const Attention* const what[] = {&plain, &causal, &rich};
  const std::string wrong = side_by_side(shapes.size() * std::size(what), [&](std::size_t i) {
    return judge(*what[i % std::size(what)], shapes[i / std::size(what)]);
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("what was before may lie where results go: the bits stay the same", "[gpu]") {
  if (skipped()) return;
  for (const std::int64_t q_len : {1, 100})
    for (const bool removed : {false, true}) {
      const Inputs in = inputs({.batch = 3,
                                .q_heads = 8,
                                .kv_heads = 2,
                                .q_len = q_len,
                                .kv_len = 5000,
                                .d = 64,
                                .dv = 64,
                                .dtype = DType::bf16,
                                .q_offset = 10,
                                .before = true});
      // Values that are not finite send tiles to the exact path.
      if (removed) runtime::store(in.v.tensor, runtime::offset(in.v.tensor, 1, 1, 4000, 7), INFINITY);
      const Moved q(in.q.tensor), k(in.k.tensor), v(in.v.tensor), o_before(in.o_before.tensor),
          lse_before(in.lse_before.tensor), o(in.o_before.tensor), lse(in.lse_before.tensor);
      Forward call{.q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .o = o.tensor(), .lse = lse.tensor()};
      call.q_offset = 10;
      call.o_before = o_before.tensor();
      call.lse_before = lse_before.tensor();
      const auto bits = [&](const Moved& of_o, const Moved& of_lse) {
        const Placed o_here = place(DType::bf16, in.shape_of_o()), lse_here = place(DType::f32, in.shape_of_lse());
        copy(of_o.tensor(), o_here.tensor);
        copy(of_lse.tensor(), lse_here.tensor);
        std::vector<std::byte> out(o_here.memory.get(), o_here.memory.get() + o_here.size);
        out.insert(out.end(), lse_here.memory.get(), lse_here.memory.get() + lse_here.size);
        return out;
      };
      causal.run(call);
      const auto apart = bits(o, lse);
      call.o = call.o_before;
      call.lse = call.lse_before;
      causal.run(call);
      INFO(q_len << " queries" << (removed ? ", some values not finite" : ""));
      CHECK(bits(o_before, lse_before) == apart);
    }
}

TEST_CASE("keys that many blocks share add up to what one block gives, and to the same bits every time", "[gpu]") {
  if (skipped()) return;
  for (const auto& [kv_len, batch] : {std::pair{1, 1}, {131, 1}, {5000, 1}, {3000, 3}, {800, 40}, {20000, 2}}) {
    const Call call(kv_len, batch);
    for (const Attention* attention : {&plain, &causal}) {
      const Call::Results whole = call.run(*attention, 1);
      for (const int blocks : {2, 3, 7, 16, 33, 64, 131, 132}) {
        const Call::Results cut = call.run(*attention, blocks);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < whole.o.values().size(); ++i)
          wrong += !is_near(cut.o.values()[i], whole.o.values()[i]);
        for (std::size_t i = 0; i < whole.lse.values().size(); ++i)
          wrong += !(std::fabs(cut.lse.values()[i] - whole.lse.values()[i]) < 1e-4f);
        INFO(kv_len << " keys, " << batch << " entries, " << blocks << " blocks");
        CHECK(wrong == 0);
        for (int again = 0; again < 10; ++again) REQUIRE(call.run(*attention, blocks) == cut);
      }
    }
  }
}

TEST_CASE("what is removed reaches nothing, however many blocks share the keys", "[gpu]") {
  if (skipped()) return;
  const Attention most{.mask = [](At at) { return at.kv % 11 != 3; }};
  for (const auto& [kv_len, batch] : {std::pair{5000, 1}, {3000, 3}, {800, 40}}) {
    Call call(kv_len, batch);
    const Call::Results clean = call.run(most, 3);
    Array<bf16> v = call.v.on(Device::cpu());
    for (std::size_t i = 0; i < v.values().size(); ++i)
      if (const auto key = static_cast<std::int64_t>(i) / 64 % kv_len; key % 11 == 3)
        v.values()[i] = bf16(i % 2 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN());
    call.v = v.on(Device::cuda());
    for (const int blocks : {1, 2, 3, 7, 132}) {
      const Call::Results non_finite = call.run(most, blocks);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < clean.o.values().size(); ++i)
        wrong += !is_near(non_finite.o.values()[i], clean.o.values()[i]);
      INFO(kv_len << " keys, " << batch << " entries, " << blocks << " blocks");
      CHECK(wrong == 0);
      REQUIRE(call.run(most, blocks) == non_finite);
    }
  }
}

TEST_CASE("keys that are split at fixed places get what the oracle says", "[gpu]") {
  if (skipped()) return;
  const Attention* const what[] = {&plain, &causal, &windowed, &rich};
  std::vector<Shape> shapes = apart();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    shapes[i].fixed_split_size = i % 3 == 2 ? 384 : 128;
    shapes[i].before = i % 2 == 1;
  }
  // One split, although there may be more keys.
  shapes.push_back({.batch = 1,
                    .q_heads = 2,
                    .kv_heads = 1,
                    .q_len = 2,
                    .kv_len = 90,
                    .d = 64,
                    .dv = 64,
                    .dtype = DType::bf16,
                    .q_offset = 88,
                    .fixed_split_size = 1 << 20});
  const std::string wrong = side_by_side(shapes.size() * std::size(what), [&](std::size_t i) {
    return judge(*what[i % std::size(what)], shapes[i / std::size(what)]);
  });
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("with a fixed split size an entry has the same bits alone and among 64 others, in any number of blocks",
          "[gpu]") {
  if (skipped()) return;
  const Device host = Device::cpu(), gpu = Device::cuda();
  constexpr std::int64_t entries = 65, room = 3000, heads = 8, d = 64;
  const Call call(room, entries);
  std::mt19937 dice(3);
  std::vector<std::int32_t> lengths{3000, 0, 1, 128, 129, 2999};
  while (lengths.size() < entries) lengths.push_back(static_cast<std::int32_t>(dice() % (room + 1)));
  const auto numbers = [&](const std::vector<std::int32_t>& values, std::int32_t less) {
    const auto out = host.array<std::int32_t>({static_cast<std::int64_t>(values.size())});
    for (std::size_t i = 0; i < values.size(); ++i) out.data()[i] = std::max(values[i] - less, 0);
    return out.on(gpu);
  };
  const auto run = [](const Attention& attention, const Forward& forward, int blocks) {
    const compiler::LoweredMod lowered = compiler::lower(attention);
    runtime::cuda::engine.run(runtime::call_of(lowered, forward, compiler::check(lowered, forward, attention.scale)),
                              {.blocks = blocks});
  };
  for (const std::int64_t fixed_split_size : {128, 512, 8192})
    for (const Attention* attention : {&plain, &windowed, &bent}) {
      const auto kv_len = numbers(lengths, 0), first = numbers(lengths, 1);
      Forward together = call.forward();
      together.kv_len = kv_len;
      together.q_offsets = first;
      together.fixed_split_size = fixed_split_size;
      run(*attention, together, 0);
      const Call::Results wanted = call.results();
      for (const int blocks : {1, 2, 7, 63, 131}) {
        run(*attention, together, blocks);
        INFO("splits of " << fixed_split_size << ", " << blocks << " blocks");
        CHECK(call.results() == wanted);
      }
      for (const std::size_t e : {0u, 1u, 2u, 4u, 5u, 31u, 64u}) {
        const std::int64_t at = static_cast<std::int64_t>(e);
        const auto length = numbers({lengths[e]}, 0), offset = numbers({lengths[e]}, 1);
        const auto o = gpu.array<bf16>({1, heads, 1, d});
        const auto lse = gpu.array<float>({1, heads, 1});
        const Forward alone{.q = Tensor(call.q.data() + at * heads * d, DType::bf16, {1, heads, 1, d}, {}, gpu),
                            .k = Tensor(call.k.data() + at * 2 * room * d, DType::bf16, {1, 2, room, d}, {}, gpu),
                            .v = Tensor(call.v.data() + at * 2 * room * d, DType::bf16, {1, 2, room, d}, {}, gpu),
                            .o = o,
                            .lse = lse,
                            .kv_len = length,
                            .q_offsets = offset,
                            .fixed_split_size = fixed_split_size};
        run(*attention, alone, 0);
        const auto own_o = o.on(host);
        const auto own_lse = lse.on(host);
        INFO("splits of " << fixed_split_size << ", entry " << e << " of " << lengths[e] << " keys");
        CHECK(std::memcmp(own_o.data(), wanted.o.data() + at * heads * d, heads * d * sizeof(bf16)) == 0);
        CHECK(std::memcmp(own_lse.data(), wanted.lse.data() + at * heads, heads * sizeof(float)) == 0);
      }
    }
}

TEST_CASE("with a fixed split size an entry whose values are not finite changes no bit of others", "[gpu]") {
  if (skipped()) return;
  constexpr std::int64_t entries = 12, room = 2000, of_entry = 8 * 64;
  const Call call(room, entries);
  Forward forward = call.forward();
  forward.fixed_split_size = 256;
  plain.run(forward);
  const Call::Results before = call.results();
  const auto v = call.v.on(Device::cpu());
  v.data()[(5 * 2 * room + 1234) * 64 + 3] = bf16(INFINITY);
  copy(v, call.v);
  plain.run(forward);
  const Call::Results after = call.results();
  for (std::int64_t e = 0; e < entries; ++e) {
    INFO("entry " << e);
    const bool same = std::memcmp(before.o.data() + e * of_entry, after.o.data() + e * of_entry,
                                  of_entry * sizeof(bf16)) == 0;
    CHECK(same == (e != 5));
  }
  // Four heads of the entry read it.
  for (std::int64_t h = 0; h < 4; ++h) CHECK(std::isinf(static_cast<float>(after.o.data()[(5 * 8 + h) * 64 + 3])));
}

TEST_CASE("a paged KV cache gives bit for bit what dense keys give", "[gpu]") {
  if (skipped()) return;
  const Device host = Device::cpu(), gpu = Device::cuda();
  constexpr std::int64_t kv_len = 1024;
  const Call dense(kv_len, 3);
  const auto k = dense.k.on(host), v = dense.v.on(host);
  for (const Attention* attention : {&plain, &causal, &windowed}) {
    const Call::Results wanted = dense.run(*attention);
    for (const std::int64_t page : {1, 16, 64, 128, 1024}) {
      const std::int64_t each = kv_len / page, count = 3 * each;
      std::vector<int> order(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
      std::shuffle(order.begin(), order.end(), std::mt19937(5));
      const auto pages = host.array<std::int32_t>({3, each});
      const auto pool_k = host.array<bf16>({count, 2, page, 64}), pool_v = host.array<bf16>({count, 2, page, 64});
      for (std::int64_t b = 0; b < 3; ++b)
        for (std::int64_t nth = 0; nth < each; ++nth) {
          const std::int64_t at = order[static_cast<std::size_t>(b * each + nth)];
          pages.data()[b * each + nth] = static_cast<std::int32_t>(at);
          for (std::int64_t h = 0; h < 2; ++h)
            for (const auto& [from, into] : {std::pair{&k, &pool_k}, {&v, &pool_v}})
              std::memcpy(into->data() + (at * 2 + h) * page * 64,
                          from->data() + ((b * 2 + h) * kv_len + nth * page) * 64,
                          static_cast<std::size_t>(page) * 64 * sizeof(bf16));
        }
      const auto table = pages.on(gpu);
      const auto gk = pool_k.on(gpu), gv = pool_v.on(gpu);
      attention->run({.q = dense.q, .k = gk, .v = gv, .o = dense.o, .lse = dense.lse, .page_table = table});
      INFO("pages of " << page);
      CHECK(dense.results() == wanted);
    }
  }
}

TEST_CASE("a decode call is captured into a graph, and replayed with other lengths and page tables", "[gpu]") {
  if (skipped()) return;
  const runtime::cuda::Current current(0);
  const runtime::cuda::Driver& d = runtime::cuda::driver();
  const Device host = Device::cpu(), gpu = Device::cuda();
  const Call call(4000, 4);
  const auto lengths = gpu.array<std::int32_t>({4}), offsets = gpu.array<std::int32_t>({4});
  const auto set = [&](const Array<std::int32_t>& to, std::initializer_list<int> values) {
    const auto here = host.array<std::int32_t>({4});
    std::copy(values.begin(), values.end(), here.data());
    copy(here, to);
  };
  Forward forward = call.forward();
  forward.kv_len = lengths;
  forward.q_offsets = offsets;
  set(lengths, {4000, 1, 0, 77});
  set(offsets, {3999, 0, 0, 76});
  causal.prepare(forward);
  const auto space = gpu.array<std::uint8_t>({static_cast<std::int64_t>(causal.workspace(forward))});
  runtime::cuda::cu::Stream stream = nullptr;
  runtime::cuda::cu::Graph graph = nullptr;
  runtime::cuda::cu::GraphExec exec = nullptr;
  d.cuStreamCreate(&stream, runtime::cuda::cu::stream_non_blocking);
  const Resources with{
      .workspace = {static_cast<std::byte*>(space.tensor().data), static_cast<std::size_t>(space.tensor().size())},
      .stream = stream};
  d.cuStreamBeginCapture(stream, runtime::cuda::cu::CaptureMode::thread_local_);
  causal.run(forward, with);
  d.cuStreamEndCapture(stream, &graph);
  d.cuGraphInstantiateWithFlags(&exec, graph, 0);
  for (const auto& some : {std::initializer_list<int>{4000, 1, 0, 77}, {3, 3000, 3000, 3000}, {0, 0, 0, 4000}}) {
    set(lengths, some);
    causal.run(forward);
    const Call::Results wanted = call.results();
    d.cuGraphLaunch(exec, stream);
    d.cuStreamSynchronize(stream);
    CHECK(call.results() == wanted);
  }
  d.cuGraphExecDestroy(exec);
  d.cuGraphDestroy(graph);
  d.cuStreamDestroy(stream);
}

TEST_CASE("decode calls in a row read what the one before wrote, although they start before it has ended", "[gpu]") {
  if (skipped()) return;
  namespace cu = runtime::cuda::cu;
  const runtime::cuda::Current current(0);
  const runtime::cuda::Driver& d = runtime::cuda::driver();
  const Device gpu = Device::cuda();
  const std::int64_t sms = runtime::cuda::facts(0).sms;
  cu::Stream stream = nullptr, other = nullptr;
  d.cuStreamCreate(&stream, cu::stream_non_blocking);
  d.cuStreamCreate(&other, cu::stream_non_blocking);
  cu::Event forked = nullptr, joined = nullptr;
  d.cuEventCreate(&forked, cu::event_without_time);
  d.cuEventCreate(&joined, cu::event_without_time);
  constexpr std::int64_t heads = 4, keys = 3000, width = 64;
  constexpr int calls = 8;
  for (const char* kernel : {"decode_sm80", "decode_sm80:clusters=0"}) {
    const codegen::Preference preference{codegen::variant(kernel), true, ""};
    // Whole tiles, two parts a tile, more parts, ranges; then from lengths on the device.
    for (const std::int64_t batch : {sms, sms / 2, std::int64_t{3}, sms + 7, std::int64_t{-5}}) {
      const bool own = batch < 0;
      const std::int64_t entries = std::abs(batch);
      INFO(kernel << ", " << batch << " entries");
      const auto k = normal<bf16>(1, {entries, 1, keys, width}).on(gpu),
                 v = normal<bf16>(2, {entries, 1, keys, width}).on(gpu);
      const auto first = normal<bf16>(3, {entries, heads, 1, width});
      std::array x{first.on(gpu), first.on(gpu), first.on(gpu)};
      auto lengths = Device::cpu().array<std::int32_t>({entries});
      for (std::int64_t i = 0; i < entries; ++i) lengths.data()[i] = static_cast<std::int32_t>(keys - 500 * i);
      const auto there = lengths.on(gpu);
      const auto call = [&](int from, int to) {
        return Forward{.q = x[static_cast<std::size_t>(from)],
                       .k = k,
                       .v = v,
                       .o = x[static_cast<std::size_t>(to)],
                       .kv_len = own ? there.tensor() : Tensor()};
      };
      const std::size_t bytes = runtime::workspace(plain, call(0, 1), &preference);
      const auto room = gpu.array<std::uint8_t>({static_cast<std::int64_t>(2 * round_up(bytes, 64) + 64)});
      auto* const at = reinterpret_cast<std::byte*>(room.data());
      const auto run = [&](int from, int to, cu::Stream on, bool second = false) {
        runtime::run(plain, call(from, to), &preference,
                     {.workspace = {at + (second ? round_up(bytes, 64) : 0), bytes}, .stream = on});
      };
      // Alone, then in a row, then on two streams that meet again.
      const auto all = [&](bool waits, bool forks) {
        for (int i = 0; i < calls; ++i) {
          run(i % 2, 1 - i % 2, stream);
          if (waits) d.cuStreamSynchronize(stream);
        }
        if (forks) {
          d.cuEventRecord(forked, stream);
          d.cuStreamWaitEvent(other, forked, 0);
          run(0, 2, other, true);
          d.cuEventRecord(joined, other);
        } else {
          run(0, 2, stream, true);
          if (waits) d.cuStreamSynchronize(stream);
        }
        run(0, 1, stream);
        if (forks) d.cuStreamWaitEvent(stream, joined, 0);
        if (waits) d.cuStreamSynchronize(stream);
        run(2, 0, stream);
      };
      const auto results = [&](const std::function<void()>& launch) {
        copy(first, x[0]);
        launch();
        d.cuStreamSynchronize(stream);
        std::vector<std::uint16_t> bits;
        for (const auto& one : x) {
          const auto here = Device::cpu().array<bf16>({entries, heads, 1, width});
          copy(one, here);
          for (const bf16 value : here.values()) bits.push_back(std::bit_cast<std::uint16_t>(value));
        }
        return bits;
      };
      const auto wanted = results([&] { all(true, false); });
      for (int turn = 0; turn < 5; ++turn)
        for (const bool forks : {false, true}) CHECK((results([&] { all(false, forks); }) == wanted));
      for (const bool forks : {false, true}) {
        cu::Graph graph = nullptr;
        cu::GraphExec replay = nullptr;
        d.cuStreamBeginCapture(stream, cu::CaptureMode::thread_local_);
        all(false, forks);
        d.cuStreamEndCapture(stream, &graph);
        d.cuGraphInstantiateWithFlags(&replay, graph, 0);
        for (int turn = 0; turn < 5; ++turn) CHECK((results([&] { d.cuGraphLaunch(replay, stream); }) == wanted));
        d.cuGraphExecDestroy(replay);
        d.cuGraphDestroy(graph);
      }
    }
  }
  d.cuEventDestroy(forked);
  d.cuEventDestroy(joined);
  d.cuStreamDestroy(stream);
  d.cuStreamDestroy(other);
}

}  // namespace attune::tests
