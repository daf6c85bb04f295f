// tests/gpu/append.test.cpp — new keys and values on a device: the bits that the host stores, lengths and slots that
// graphs replay
#include <attune/attune.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <random>

#include <fmt/format.h>

#include "runtime/machine/tensor.h"
#include "tests/gpu/device.h"
#include "tests/gpu/replayed.h"
#include "tests/numerics/inputs.h"
#include "tests/numerics/moved.h"

namespace attune::tests {
namespace {

/// Numbers of every size, and non-finite ones, in any type.
Placed numbers(unsigned seed, DType dtype, std::initializer_list<std::int64_t> shape, Layout layout) {
  Placed out = place(dtype, shape, layout);
  std::mt19937 dice(seed);
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> exponent(-50, 20), rare(0, 40);
  each_element(out.tensor, [&](std::int64_t at) {
    const int what = rare(dice);
    const double infinity = std::numeric_limits<double>::infinity();
    const double x = what == 0   ? infinity
                     : what == 1 ? std::nan("")
                     : what == 2 ? -0.0
                     : what == 3 ? std::ldexp(normal(dice), -140)
                                 : std::ldexp(normal(dice), exponent(dice));
    runtime::store(out.tensor, at, x);
  });
  return out;
}

/// A cache and its new rows: the host appends to the host's copy, the device to the device's.
struct Both {
  std::deque<Placed> placed;
  std::deque<Moved> moved;
  Append here, there;

  void add(Tensor Append::*member, Placed&& t) {
    placed.push_back(std::move(t));
    here.*member = placed.back().tensor;
    moved.emplace_back(placed.back().tensor);
    there.*member = moved.back().tensor();
  }
  void add(Tensor Append::*member, const std::vector<std::int32_t>& values, std::initializer_list<std::int64_t> shape,
           DType dtype = DType::i32) {
    Placed t = place(dtype, shape);
    for (std::size_t i = 0; i < values.size(); ++i) runtime::store(t.tensor, static_cast<std::int64_t>(i), values[i]);
    add(member, std::move(t));
  }
  static std::vector<std::byte> bytes(const Placed& t) { return {t.memory.get(), t.memory.get() + t.size}; }
  static const Placed& of(const std::deque<Placed>& all, const Tensor& t) {
    return *std::ranges::find_if(all, [&](const Placed& one) { return one.tensor.data == t.data; });
  }
  /// True if both store the same bits and leave the memory between rows unchanged.
  bool agree() {
    append(here);
    const std::vector<std::byte> k = bytes(of(placed, here.k)), v = bytes(of(placed, here.v));
    append(there);
    for (const Moved& one : moved)
      if (one.tensor().data == there.k.data || one.tensor().data == there.v.data) one.back();
    return bytes(of(placed, here.k)) == k && bytes(of(placed, here.v)) == v;
  }
};

/// Three entries of lengths 9, 2 and 5 in a dense cache, or in pages of `page` rows; or packed rows at slots.
struct Case {
  DType from = DType::bf16, into = DType::bf16;
  Layout layout = Layout::bhsd;
  std::int64_t page = 0, d = 64, dv = 64;
  bool packed = false;
  double scale = 1;
  std::optional<DType> slots{};
};
bool agrees(const Case& c) {
  Both both;
  const std::int64_t heads = 3, room = 12;
  if (c.packed) {
    both.add(&Append::k_new, numbers(1, c.from, {6, heads, c.d}, c.layout));
    both.add(&Append::v_new, numbers(2, c.from, {6, heads, c.dv}, c.layout));
    if (!c.slots) both.add(&Append::cu_seqlens, {0, 4, 4, 6}, {4});
  } else {
    both.add(&Append::k_new, numbers(1, c.from, {3, heads, 2, c.d}, c.layout));
    both.add(&Append::v_new, numbers(2, c.from, {3, heads, 2, c.dv}, c.layout));
  }
  const std::int64_t each = c.page ? (room + c.page - 1) / c.page : 0, count = c.page ? 3 * each : 3,
                     rows = c.page ? c.page : room;
  both.add(&Append::k, numbers(3, c.into, {count, heads, rows, c.d}, c.layout));
  both.add(&Append::v, numbers(4, c.into, {count, heads, rows, c.dv}, c.layout));
  if (c.slots) {
    const auto end = static_cast<std::int32_t>(count * rows);
    both.add(&Append::slots, {7, -1, end - 1, 0, 8, -1}, {6}, *c.slots);
  } else if (c.page) {
    std::vector<std::int32_t> table(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
    std::ranges::shuffle(table, std::mt19937(7));
    both.add(&Append::page_table, table, {3, each});
  }
  if (!c.slots) both.add(&Append::kv_len, {9, 2, 5}, {3});
  both.here.k_scale = both.there.k_scale = c.scale;
  both.here.v_scale = both.there.v_scale = c.scale == 1 ? 1 : -3 * c.scale;
  return both.agree();
}

}  // namespace

TEST_CASE("a device stores the bits that the host stores, of any types, strides and pages", "[gpu][small]") {
  if (skipped()) return;
  std::vector<Case> cases;
  for (const DType from : {DType::f32, DType::f16, DType::bf16, DType::f64})
    for (const DType into : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::e4m3})
      for (const double scale : {1.0, 0.37}) cases.push_back({.from = from, .into = into, .scale = scale});
  for (const Layout layout : {Layout::bshd, Layout::columns, Layout::reversed, Layout::padded, Layout::spread})
    for (const std::int64_t page : {0, 1, 5, 16})
      for (const bool packed : {false, true})
        for (const DType into : {DType::bf16, DType::e4m3})
          cases.push_back({.into = into, .layout = layout, .page = page, .d = 40, .dv = 3, .packed = packed});
  for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::reversed, Layout::spread})
    for (const std::int64_t page : {0, 1, 5, 16})
      for (const DType slots : {DType::i32, DType::i64})
        for (const DType into : {DType::bf16, DType::e4m3, DType::f32})
          cases.push_back(
              {.into = into, .layout = layout, .page = page, .d = 40, .dv = 3, .packed = true, .slots = slots});
  CHECK(side_by_side(cases.size(), [&](std::size_t i) {
          const Case& c = cases[i];
          return agrees(c) ? ""
                           : fmt::format("{} into {}, scale {}, layout {}, pages of {}{}{}\n", name_of(c.from),
                                         name_of(c.into), c.scale, static_cast<int>(c.layout), c.page,
                                         c.packed ? ", packed" : "", c.slots ? ", slots" : "");
        }) == "");
}

TEST_CASE("a device leaves out new rows that have no place, and writes nothing else", "[gpu][small]") {
  if (skipped()) return;
  const Device gpu = Device::cuda(), host = Device::cpu();
  const auto on_gpu = [&](std::initializer_list<std::int32_t> values, std::initializer_list<std::int64_t> shape) {
    const auto out = host.array<std::int32_t>(shape);
    std::ranges::copy(values, out.data());
    return out.on(gpu);
  };
  // Entry 0's new keys begin in page 1 and would end in a page that does not exist; entry 1's
  // length exceeds its capacity, entry 2 has fewer keys than new rows, and entry 3's pages are beyond the pool.
  const auto k_new = normal<bf16>(1, {4, 2, 3, 16}).on(gpu), v_new = normal<bf16>(2, {4, 2, 3, 16}).on(gpu);
  const auto k = gpu.array<bf16>({2, 2, 4, 16}), v = gpu.array<bf16>({2, 2, 4, 16});
  const auto page_table = on_gpu({1, -1, 0, 0, 0, 0, 2, 5}, {4, 2}), lengths = on_gpu({5, 12, 2, 6}, {4});
  append({.k_new = k_new, .v_new = v_new, .k = k, .v = v, .page_table = page_table, .kv_len = lengths});
  for (const auto& [cache, from] : {std::pair{&k, &k_new}, {&v, &v_new}}) {
    const auto stored = cache->on(host), fresh = from->on(host);
    for (std::int64_t page = 0; page < 2; ++page)
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t row = 0; row < 4; ++row)
          for (std::int64_t j = 0; j < 16; ++j) {
            // Of entry 0, keys 2 and 3 are new rows 0 and 1. Of entry 2, key 0 is new row 1, and key 1 new row 2.
            const std::int64_t entry = page == 1 ? 0 : 2, nth = page == 1 ? row - 2 : row + 1;
            const bool is_new = nth >= 0 && nth < (page == 1 ? 2 : 3);
            const bf16 wanted = is_new ? fresh.data()[((entry * 2 + h) * 3 + nth) * 16 + j] : bf16(0);
            REQUIRE(stored.data()[((page * 2 + h) * 4 + row) * 16 + j].bits == wanted.bits);
          }
  }
}

TEST_CASE("a device leaves out slots that the pool does not have, and stores whole elements of one of several rows",
          "[gpu][small]") {
  if (skipped()) return;
  const Device gpu = Device::cuda(), host = Device::cpu();
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int64_t> slots{-2, 6, 7, -most - 1, most, 3, (std::int64_t{1} << 32) + 1, -1, 3, 0, 1 << 30};
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const auto k_new = normal<bf16>(1, {tokens, 2, 16}).on(gpu), v_new = normal<bf16>(2, {tokens, 2, 16}).on(gpu);
  const auto k = gpu.array<bf16>({2, 2, 3, 16}), v = gpu.array<bf16>({2, 2, 3, 16});
  const auto there = host.array<std::int64_t>({tokens});
  std::ranges::copy(slots, there.data());
  const auto places = there.on(gpu);
  append({.k_new = k_new, .v_new = v_new, .k = k, .v = v, .slots = places});
  for (const auto& [cache, from] : {std::pair{&k, &k_new}, {&v, &v_new}}) {
    const auto stored = cache->on(host), fresh = from->on(host);
    const auto bits = [&](std::int64_t token, std::int64_t h, std::int64_t j) {
      return fresh.data()[(token * 2 + h) * 16 + j].bits;
    };
    for (std::int64_t page = 0; page < 2; ++page)
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t row = 0; row < 3; ++row)
          for (std::int64_t j = 0; j < 16; ++j) {
            const auto got = stored.data()[((page * 2 + h) * 3 + row) * 16 + j].bits;
            const std::int64_t slot = page * 3 + row;
            if (slot == 3)
              REQUIRE((got == bits(5, h, j) || got == bits(8, h, j)));
            else
              REQUIRE(got == (slot == 0 ? bits(9, h, j) : 0));
          }
  }
}

TEST_CASE("appending is captured into a graph once its kernel is loaded, and replayed with other lengths",
          "[gpu][small]") {
  if (skipped()) return;
  const Device host = Device::cpu(), gpu = Device::cuda();
  const auto k_new = normal<bf16>(1, {1, 2, 1, 64}).on(gpu), v_new = normal<bf16>(2, {1, 2, 1, 64}).on(gpu);
  const auto k = gpu.array<bf16>({1, 2, 8, 64}), v = gpu.array<bf16>({1, 2, 8, 64});
  const auto length = gpu.array<std::int32_t>({1});  // 0 keys: nothing has a place
  const Append call{.k_new = k_new, .v_new = v_new, .k = k, .v = v, .kv_len = length};
  const Replayed replay([&](const Resources& with) { append(call, with); });
  for (std::int32_t n = 1; n <= 8; ++n) {
    set<std::int32_t>(length, {n});
    replay();
    const auto stored = v.on(host), fresh = v_new.on(host);
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int32_t row = 0; row < 8; ++row)
        REQUIRE(stored.data()[(h * 8 + row) * 64 + 5].bits == (row < n ? fresh.data()[h * 64 + 5].bits : 0));
  }
}

TEST_CASE("appending by slot is captured into a graph, and replayed with other slots", "[gpu][small]") {
  if (skipped()) return;
  const Device host = Device::cpu(), gpu = Device::cuda();
  const auto k_new = normal<bf16>(1, {2, 2, 64}).on(gpu), v_new = normal<bf16>(2, {2, 2, 64}).on(gpu);
  const auto k = gpu.array<bf16>({4, 2, 2, 64}), v = gpu.array<bf16>({4, 2, 2, 64});
  const auto slots = gpu.array<std::int64_t>({2});
  set<std::int64_t>(slots, {-1, -1});
  const Append call{.k_new = k_new, .v_new = v_new, .k = k, .v = v, .slots = slots};
  const Replayed replay([&](const Resources& with) { append(call, with); });
  for (std::int64_t n = 0; n < 8; ++n) {
    set<std::int64_t>(slots, {n % 3 == 2 ? 8 : -1, n});  // 8: beyond the pool
    replay();
    const auto stored = v.on(host), fresh = v_new.on(host);
    for (std::int64_t slot = 0; slot < 8; ++slot)
      for (std::int64_t h = 0; h < 2; ++h)
        REQUIRE(stored.data()[((slot / 2 * 2 + h) * 2 + slot % 2) * 64 + 5].bits ==
                (slot <= n ? fresh.data()[(2 + h) * 64 + 5].bits : 0));
  }
}

}  // namespace attune::tests
