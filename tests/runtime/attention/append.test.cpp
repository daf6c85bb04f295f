// tests/runtime/attention/append.test.cpp — new keys and values at the ends of their entries, dense and paged
#include <attune/attune.h>

#include <cmath>
#include <functional>

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
  refuses("cu-seqlens-device.append", [](Append& c) {
    for (Tensor* t : {&c.k_new, &c.v_new, &c.k, &c.v, &c.page_table, &c.kv_len}) t->device = Device::cuda();
  });
}
