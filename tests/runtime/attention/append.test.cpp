// tests/runtime/attention/append.test.cpp — new keys and values at the ends of their entries, dense and paged, or at
// slots
#include <attune/attune.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/golden.h"
#include "tests/numerics/inputs.h"
#include "tests/refusal.h"

using namespace attune;
using tests::elements, tests::Layout, tests::place, tests::Placed;

namespace {

/// Every element another number, which every type holds.
Placed counted(DType dtype, std::initializer_list<std::int64_t> shape, Layout layout = Layout::bhsd) {
  Placed out = tests::place(dtype, shape, layout);
  double next = 1;
  tests::each_element(out.tensor, [&](std::int64_t at) { runtime::store(out.tensor, at, next++); });
  return out;
}
Placed blank(DType dtype, std::initializer_list<std::int64_t> shape, Layout layout = Layout::bhsd) {
  Placed out = tests::place(dtype, shape, layout);
  tests::each_element(out.tensor, [&](std::int64_t at) { runtime::store(out.tensor, at, 0); });
  return out;
}
double at(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return runtime::load(t, runtime::offset(t, a, b, c, d));
}

std::int32_t lengths[]{5, 2}, starts[]{0, 3, 4}, table[]{2, 0, 3, -1};

/// Two entries of three and one new keys, two heads, in pages of three rows.
struct Paged {
  Placed k_new = counted(DType::f32, {4, 2, 2}), v_new = counted(DType::f32, {4, 2, 1}),
         k = blank(DType::bf16, {4, 2, 3, 2}), v = blank(DType::bf16, {4, 2, 3, 1}, Layout::bshd);
  Append call{.k_new = k_new.tensor,
              .v_new = v_new.tensor,
              .k = k.tensor,
              .v = v.tensor,
              .page_table = Tensor(table, DType::i32, {2, 2}),
              .kv_len = Tensor(lengths, DType::i32, {2}),
              .cu_seqlens = Tensor(starts, DType::i32, {3})};
};

/// Slots in memory of their own, every second integer.
Placed slots_of(DType dtype, const std::vector<std::int64_t>& values) {
  Placed out = tests::place(dtype, {static_cast<std::int64_t>(values.size()), 2});
  out.tensor = Tensor(out.tensor.data, dtype, {static_cast<std::int64_t>(values.size())}, {2});
  for (std::size_t i = 0; i < values.size(); ++i) {
    char* const at = static_cast<char*>(out.tensor.data) + i * 2 * size_of(dtype);
    const auto narrow = static_cast<std::int32_t>(values[i]);
    dtype == DType::i64 ? std::memcpy(at, &values[i], sizeof values[i]) : std::memcpy(at, &narrow, sizeof narrow);
  }
  return out;
}

/// Five new rows of two heads, and a pool of four pages of three rows.
struct BySlot {
  Placed k_new = counted(DType::f32, {5, 2, 2}), v_new = counted(DType::f32, {5, 2, 1}),
         k = blank(DType::bf16, {4, 2, 3, 2}), v = blank(DType::bf16, {4, 2, 3, 1}, Layout::bshd),
         slots = slots_of(DType::i64, {7, -1, 0, 11, 3});
  Append call{.k_new = k_new.tensor, .v_new = v_new.tensor, .k = k.tensor, .v = v.tensor, .slots = slots.tensor};
};

/// The pool after rows went to slots one after the other: a row of the pool holds the last row that was given its slot.
void check_slots(const Tensor& from, const Tensor& pool, const std::vector<std::int64_t>& slots, double scale) {
  for (std::int64_t page = 0; page < pool.shape[0]; ++page)
    for (std::int64_t row = 0; row < pool.shape[2]; ++row) {
      std::int64_t token = -1;
      for (std::size_t i = 0; i < slots.size(); ++i)
        if (slots[i] == page * pool.shape[2] + row) token = static_cast<std::int64_t>(i);
      for (std::int64_t h = 0; h < pool.shape[1]; ++h)
        for (std::int64_t j = 0; j < pool.shape[3]; ++j) {
          const double wanted = token < 0 ? 0 : runtime::load(from, runtime::offset(from, token, h, j)) / scale;
          CHECK(at(pool, page, h, row, j) == wanted);
        }
    }
}

}  // namespace

TEST_CASE("new keys go to the ends of their entries", "[append]") {
  for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::columns, Layout::reversed, Layout::padded})
    for (const DType dtype : {DType::f32, DType::f16, DType::f64}) {
      const Placed k_new = counted(DType::f32, {2, 3, 2, 4}, layout), v_new = counted(dtype, {2, 3, 2, 5});
      const Placed k = blank(dtype, {2, 3, 8, 4}, layout), v = blank(dtype, {2, 3, 8, 5});
      std::int32_t after[]{8, 2};
      append({.k_new = k_new.tensor,
              .v_new = v_new.tensor,
              .k = k.tensor,
              .v = v.tensor,
              .kv_len = Tensor(after, DType::i32, {2})});
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t h = 0; h < 3; ++h)
          for (std::int64_t i = 0; i < 8; ++i) {
            const std::int64_t from = i - (after[b] - 2);
            const bool is_new = from >= 0 && from < 2;
            for (std::int64_t j = 0; j < 4; ++j)
              CHECK(at(k.tensor, b, h, i, j) == (is_new ? at(k_new.tensor, b, h, from, j) : 0));
            for (std::int64_t j = 0; j < 5; ++j)
              CHECK(at(v.tensor, b, h, i, j) == (is_new ? at(v_new.tensor, b, h, from, j) : 0));
          }
      CHECK(k.gaps_untouched());
    }
}

TEST_CASE("packed keys go to their pages, rounded to the cache's type and divided by a scale", "[append]") {
  Paged p;
  p.call.v_scale = 4;
  append(p.call);
  for (std::int64_t h = 0; h < 2; ++h) {
    const auto k_of = [&](std::int64_t row) {
      return runtime::load(p.k_new.tensor, runtime::offset(p.k_new.tensor, row, h, 1));
    };
    const auto v_of = [&](std::int64_t row) {
      return runtime::load(p.v_new.tensor, runtime::offset(p.v_new.tensor, row, h));
    };
    // Entry 0 had two keys, of page 2: its new ones are row 2 of page 2, then rows 0 and 1 of page 0.
    CHECK(at(p.k.tensor, 2, h, 2, 1) == k_of(0));
    CHECK(at(p.k.tensor, 0, h, 0, 1) == k_of(1));
    CHECK(at(p.k.tensor, 0, h, 1, 1) == k_of(2));
    CHECK(at(p.k.tensor, 3, h, 1, 1) == k_of(3));
    CHECK(at(p.v.tensor, 0, h, 1, 0) == v_of(2) / 4);
  }
  double sum = 0;
  for (const double x : elements(p.k.tensor)) sum += x;
  CHECK(sum == 16 * 17 / 2);  // each new element once, and nothing else
}

TEST_CASE("a cache of e4m3 gets new keys divided by their scale, and no infinity", "[append]") {
  const Placed k_new = counted(DType::bf16, {1, 2, 3, 16}), v_new = counted(DType::f32, {1, 2, 3, 16});
  const Placed k = blank(DType::e4m3, {2, 2, 4, 16}), v = blank(DType::e4m3, {2, 2, 4, 16}, Layout::bshd);
  runtime::store(v_new.tensor, 0, 1e30);
  std::int32_t after[]{5}, of_pages[]{1, 0};
  append({.k_new = k_new.tensor,
          .v_new = v_new.tensor,
          .k = k.tensor,
          .v = v.tensor,
          .page_table = Tensor(of_pages, DType::i32, {1, 2}),
          .kv_len = Tensor(after, DType::i32, {1}),
          .k_scale = 0.25,
          .v_scale = -2});
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 16; ++j) {
        const std::int64_t page = i < 2 ? 1 : 0, row = i < 2 ? 2 + i : 0;
        CHECK(at(k.tensor, page, h, row, j) == float(e4m3(static_cast<float>(at(k_new.tensor, 0, h, i, j) * 4))));
        CHECK(at(v.tensor, page, h, row, j) == float(e4m3(static_cast<float>(at(v_new.tensor, 0, h, i, j) / -2))));
      }
  CHECK(at(v.tensor, 1, 0, 2, 0) == -448);
  CHECK(at(k.tensor, 0, 1, 0, 15) == 384);  // 96 / 0.25
  CHECK(k.gaps_untouched());
}

TEST_CASE("packed keys go to their slots, in pools of any layout, type and page size", "[append]") {
  const std::vector<std::int64_t> slots{7, -1, 0, 14, 3, 8, -1};
  for (const Layout layout : {Layout::bhsd, Layout::bshd, Layout::columns, Layout::reversed, Layout::padded})
    for (const auto& [from, into] : {std::pair{DType::f32, DType::f32},
                                     {DType::bf16, DType::bf16},
                                     {DType::f64, DType::f16},
                                     {DType::f32, DType::e4m3}})
      for (const std::int64_t page : {1, 3, 5, 16})
        for (const DType of_slots : {DType::i32, DType::i64})
          for (const double scale : {1., 4.}) {
            // Numbers up to 7 are the same in every type.
            Placed k_new = blank(from, {7, 2, 3}, layout), v_new = blank(from, {7, 2, 5}, layout);
            for (const Placed* t : {&k_new, &v_new}) {
              int next = 0;
              tests::each_element(t->tensor,
                                  [&](std::int64_t i) { runtime::store(t->tensor, i, (1 + next++ % 7) * scale); });
            }
            const std::int64_t pages = (15 + page - 1) / page;
            const Placed k = blank(into, {pages, 2, page, 3}, layout), v = blank(into, {pages, 2, page, 5}, layout),
                         places = slots_of(of_slots, slots);
            append({.k_new = k_new.tensor,
                    .v_new = v_new.tensor,
                    .k = k.tensor,
                    .v = v.tensor,
                    .slots = places.tensor,
                    .k_scale = scale,
                    .v_scale = -scale});
            check_slots(k_new.tensor, k.tensor, slots, scale);
            check_slots(v_new.tensor, v.tensor, slots, -scale);
            CHECK(k.gaps_untouched());
            CHECK(v.gaps_untouched());
          }
}

TEST_CASE("the last of several rows with the same slot stays, and rows without one are left out", "[append]") {
  for (const std::vector<std::int64_t>& slots :
       {std::vector<std::int64_t>{4, 4, 9, 4, 9}, {-1, -1, -1, -1, -1}, {2, 2, 2, 2, -1}}) {
    BySlot s;
    const Placed places = slots_of(DType::i32, slots);
    s.call.slots = places.tensor;
    append(s.call);
    check_slots(s.k_new.tensor, s.k.tensor, slots, 1);
    check_slots(s.v_new.tensor, s.v.tensor, slots, 1);
  }
}

TEST_CASE("no rows and no slots, and a pool without pages, are fine", "[append]") {
  const Placed none = place(DType::f32, {0, 2, 4}), two = counted(DType::f32, {2, 2, 4}),
               k = blank(DType::f32, {3, 2, 5, 4}), v = blank(DType::f32, {3, 2, 5, 4}),
               no_pages = place(DType::f32, {0, 2, 5, 4});
  const Tensor no_slots(nullptr, DType::i64, {0});
  append({.k_new = none.tensor, .v_new = none.tensor, .k = k.tensor, .v = v.tensor, .slots = no_slots});
  for (const double x : elements(k.tensor)) CHECK(x == 0);
  const Placed gone = slots_of(DType::i64, {-1, -1}), first = slots_of(DType::i64, {-1, 0});
  Append call{.k_new = two.tensor, .v_new = two.tensor, .k = no_pages.tensor, .v = no_pages.tensor};
  call.slots = gone.tensor;
  append(call);
  call.slots = first.tensor;
  CHECK(tests::refusal([&] { append(call); }).code == "slots");
}

TEST_CASE("denormal numbers of a cache stay what they are", "[append]") {
  const Placed k_new = place(DType::f32, {1, 1, 1, 4}), v_new = place(DType::f64, {1, 1, 1, 4}),
               k = place(DType::f64, {1, 1, 1, 4}), v = place(DType::f32, {1, 1, 1, 4});
  for (std::int64_t i = 0; i < 4; ++i) {
    runtime::store(k_new.tensor, i, std::ldexp(1, -140 - static_cast<int>(i)));
    runtime::store(v_new.tensor, i, std::ldexp(3, -140 - static_cast<int>(i)));
  }
  std::int32_t after = 1;
  append({.k_new = k_new.tensor,
          .v_new = v_new.tensor,
          .k = k.tensor,
          .v = v.tensor,
          .kv_len = Tensor(&after, DType::i32, {1})});
  for (std::int64_t i = 0; i < 4; ++i) {
    CHECK(runtime::load(k.tensor, i) == std::ldexp(1, -140 - static_cast<int>(i)));
    CHECK(runtime::load(v.tensor, i) == std::ldexp(3, -140 - static_cast<int>(i)));
  }
}

TEST_CASE("appending that makes no sense is refused, and nothing is written", "[append]") {
  const auto refuses = [](const char* name, const std::function<void(Append&)>& spoil) {
    Paged p;
    spoil(p.call);
    tests::golden_error(name, tests::refusal([&] { append(p.call, {}, Line{}); }).what());
    for (const double x : elements(p.k.tensor)) CHECK(x == 0);
  };
  static std::int32_t few[]{5, 0}, beyond[]{5, 7}, holes[]{2, -1, 3, -1};
  refuses("kv-len.append", [](Append& c) { c.kv_len.data = few; });
  refuses("kv-len.append-room", [](Append& c) { c.kv_len.data = beyond; });
  refuses("tensor-missing.kv_len", [](Append& c) { c.kv_len = {}; });
  refuses("page-table.append", [](Append& c) { c.page_table.data = holes; });
  refuses("bad-scale.append", [](Append& c) { c.k_scale = 0; });
  refuses("tensor-shape.v_new", [](Append& c) { c.v_new.shape[0] = 3; });
  refuses("head-size.append", [](Append& c) { c.k_new.shape[2] = 1; });
  refuses("kv-heads.append", [](Append& c) { c.k_new.shape[1] = c.v_new.shape[1] = 4; });
  refuses("kv-heads.append-odd", [](Append& c) { c.k_new.shape[1] = c.v_new.shape[1] = 3; });
  refuses("tensor-alias.append", [](Append& c) { c.v.data = c.k.data; });
  const auto refuses_slots = [](const char* name, const std::function<void(BySlot&)>& spoil) {
    BySlot s;
    spoil(s);
    tests::golden_error(name, tests::refusal([&] { append(s.call, {}, Line{}); }).what());
    for (const Placed* t : {&s.k, &s.v})
      for (const double x : elements(t->tensor)) CHECK(x == 0);
  };
  const auto named = [](DType dtype, std::vector<std::int64_t> values) {
    return [=](BySlot& s) {
      s.slots = slots_of(dtype, values);
      s.call.slots = s.slots.tensor;
    };
  };
  refuses_slots("slots.beyond", named(DType::i32, {7, -1, 0, 12, 3}));
  refuses_slots("slots.below", named(DType::i64, {7, -1, 0, 11, -2}));
  // Its low word is a slot.
  refuses_slots("slots.wide", named(DType::i64, {7, -1, 0, (std::int64_t{1} << 32) + 3, 3}));
  refuses_slots("slots.least", named(DType::i64, {std::numeric_limits<std::int64_t>::min(), -1, 0, 1, 3}));
  refuses_slots("slots.type", [](BySlot& s) { s.call.slots.dtype = DType::f32; });
  refuses_slots("slots.kv_len", [](BySlot& s) { s.call.kv_len = Tensor(lengths, DType::i32, {2}); });
  refuses_slots("slots.page_table", [](BySlot& s) { s.call.page_table = Tensor(table, DType::i32, {2, 2}); });
  refuses_slots("slots.cu_seqlens", [](BySlot& s) { s.call.cu_seqlens = Tensor(starts, DType::i32, {3}); });
  refuses_slots("tensor-shape.slots", [](BySlot& s) { s.call.slots.shape[0] = 4; });
  refuses_slots("tensor-shape.slots-rank", [](BySlot& s) {
    s.call.slots = Tensor(s.slots.tensor.data, DType::i64, {5, 1});
  });
  refuses_slots("tensor-rank.slots", [](BySlot& s) {
    const Placed& k = s.k_new;
    s.call.k_new = Tensor(k.tensor.data, DType::f32, {1, 2, 5, 2});
  });
  refuses_slots("tensor-rank.slots-cache", [](BySlot& s) { s.call.k.rank = 3; });
  refuses_slots("tensor-null.slots", [](BySlot& s) { s.call.slots.data = nullptr; });
  refuses_slots("tensor-device.slots", [](BySlot& s) { s.call.slots.device = Device::cuda(); });
  refuses_slots("page-size.slots", [](BySlot& s) { s.call.k.shape[2] = s.call.v.shape[2] = 0; });
  refuses_slots("kv-heads.slots", [](BySlot& s) { s.call.k_new.shape[1] = s.call.v_new.shape[1] = 4; });
  refuses_slots("tensor-type.slots", [](BySlot& s) { s.call.k.dtype = DType::i32; });
  refuses("cu-seqlens-device.append", [](Append& c) {
    for (Tensor* t : {&c.k_new, &c.v_new, &c.k, &c.v, &c.page_table, &c.kv_len}) t->device = Device::cuda();
  });
}
