// tests/gpu/shapes.test.cpp — every length in one kernel, and every width, ratio of heads and packing, on a device
#include <attune/attune.h>

#include <cmath>

#include "runtime/engines/cuda/kernels/consider.h"
#include "tests/gpu/device.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

/// Documents of 40 positions.
Attention documents(const Device& where) {
  auto ids = Device::cpu().array<int>({300}, "doc");
  for (int i = 0; i < 300; ++i) ids.values()[static_cast<std::size_t>(i)] = i / 40;
  return {.mask = [doc = ids.on(where)](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; }};
}

/// Memory for 300 positions; calls use the first of them.
struct Room {
  static constexpr std::int64_t heads = 2, most = 300, d = 64;
  Device where;
  Array<bf16> q = filled(1), k = filled(2), v = filled(3), o = filled(4);
  Array<float> lse = where.array<float>({1, heads, most});

  explicit Room(const Device& device) : where(device) {}
  Array<bf16> filled(unsigned seed) const { return normal<bf16>(seed, {1, heads, most, d}).on(where); }
  Forward call(std::int64_t q_len, std::int64_t kv_len) const {
    const auto part = [&](const Array<bf16>& of, std::int64_t length) {
      return Tensor(of.data(), DType::bf16, {1, heads, length, d}, {}, where);
    };
    return {.q = part(q, q_len),
            .k = part(k, kv_len),
            .v = part(v, kv_len),
            .o = part(o, q_len),
            .lse = Tensor(lse.data(), DType::f32, {1, heads, q_len}, {}, where)};
  }
};

}  // namespace

TEST_CASE("every length of queries and keys from 1 to 300 runs in a kernel of its class, decode in one", "[gpu]") {
  if (skipped()) return;
  const Room here(Device::cpu()), there(Device::cuda());
  const auto untouched = here.o.on(Device::cpu());
  for (const bool listed : {false, true}) {
    const Attention causal{.mask = mods::causal()};
    const Attention on_host = listed ? documents(here.where) : causal;
    const Attention on_device = listed ? documents(there.where) : causal;
    // The classes of codegen::Length end at 80, 128 and 224 keys.
    for (const std::int64_t keys : {std::int64_t{80}, std::int64_t{128}, std::int64_t{224}, Room::most})
      for (const std::int64_t queries : {std::int64_t{1}, keys, Room::most}) on_device.run(there.call(queries, keys));
    const std::size_t compiled = runtime::cuda::compiled_kernels();
    for (std::int64_t length = 1; length <= Room::most; ++length)
      for (const auto& [q_len, kv_len] : {std::pair{length, Room::most}, {Room::most, length}, {length, length}}) {
        copy(untouched, there.o);
        on_host.run(here.call(q_len, kv_len));
        on_device.run(there.call(q_len, kv_len));
        const auto o = there.o.on(here.where);
        const auto lse = there.lse.on(here.where);
        const auto rows = static_cast<std::size_t>(Room::heads * q_len);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < o.values().size(); ++i)
          wrong += i < rows * Room::d ? !is_near(o.values()[i], here.o.values()[i])
                                      : o.values()[i].bits != untouched.values()[i].bits;
        for (std::size_t i = 0; i < rows; ++i) {
          const float x = lse.values()[i], y = here.lse.values()[i];
          wrong += std::isinf(y) ? x != y : !(std::fabs(x - y) < 1e-3f);
        }
        INFO(q_len << " queries, " << kv_len << " keys");
        REQUIRE(wrong == 0);
      }
    CHECK(runtime::cuda::compiled_kernels() == compiled);
  }
}

TEST_CASE("every width of heads, shared among 1, 3 and 8 queries' or packed, is what the oracle says", "[gpu]") {
  if (skipped()) return;
  std::vector<Shape> shapes;
  constexpr std::pair<int, int> widths[] = {{64, 64},   {80, 80},   {96, 96},  {128, 128},
                                            {192, 192}, {256, 256}, {192, 128}};
  for (const auto& [d, dv] : widths)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Shape shape{.kv_heads = 2, .q_len = 150, .kv_len = 230, .d = d, .dv = dv, .dtype = dtype};
      for (const std::int64_t group : {1, 3, 8}) {
        shape.q_heads = group * shape.kv_heads;
        shape.seed = shapes.size();
        shapes.push_back(shape);
      }
      shape.q_lens = {70, 0, 1, 129};
      shape.kv_lens = {70, 5, 140, 0};
      shapes.push_back(shape);
    }
  const Attention alibi{.score = [](Float s, At at) { return s + 0.03f * (at.kv - at.q); },
                        .mask = [](At at) { return at.kv <= at.q + 60; }};
  const std::string wrong = side_by_side(shapes.size(), [&](std::size_t i) {
    return compare(Subject(alibi), inputs(shapes[i]), std::span(&device_engine(), 1), {.backward = false, .max = false})
        .wrong;
  });
  CHECK(wrong == "");
}

}  // namespace attune::tests
