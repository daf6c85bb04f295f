// tests/runtime/engines/oracle/per_entry.test.cpp — the oracle with lengths, positions and page tables, against dense
// calls by entry
#include <attune/attune.h>

#include <limits>

#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/numerics/inputs.h"

using namespace attune;
using tests::elements, tests::Inputs, tests::Layout, tests::Placed, tests::Shape;

namespace {

/// Reads positions and lengths, with keys from `by` on.
Attention reading(int by, Sink sink = {}) {
  return {.score =
              [by](Float s, At at) {
                return s + 0.1f * f32(at.kv + by - at.q) + 0.3f * f32((at.kv_len + by) % 5) + f32(at.q_len % 3);
              },
          .mask = [by](At at) { return (at.kv + by) % 4 != 1 && at.kv + by <= at.q + 9; },
          .sink = std::move(sink),
          .target = Target::oracle};
}

/// A dense call of one entry that equals an entry of another call: its keys are gathered one by one from the places
/// that the documentation of Forward gives.
struct Entry {
  const Inputs& in;
  std::int64_t b, keys;
  Placed k, v;

  Entry(const Inputs& of, std::int64_t which)
      : in(of), b(which),
        keys(of.shape.used.empty() ? of.shape.kv_len : of.shape.used[static_cast<std::size_t>(which)]),
        k(gathered(of.k.tensor)), v(gathered(of.v.tensor)) {}

  Placed gathered(const Tensor& from) const {
    Placed out = tests::place(DType::f32, {1, from.shape[1], keys, from.shape[3]});
    const std::int64_t page = in.shape.page;
    for (std::int64_t h = 0; h < from.shape[1]; ++h)
      for (std::int64_t i = 0; i < keys; ++i)
        for (std::int64_t j = 0; j < from.shape[3]; ++j) {
          double value = 0;
          if (page) {
            const auto at = static_cast<std::int64_t>(
                runtime::load(in.page_table.tensor, runtime::offset(in.page_table.tensor, b, i / page)));
            if (at >= 0 && at < from.shape[0]) value = runtime::load(from, runtime::offset(from, at, h, i % page, j));
          } else {
            value = runtime::load(from, runtime::offset(from, in.shape.kv_shared ? 0 : b, h, i, j));
          }
          runtime::store(out.tensor, runtime::offset(out.tensor, 0, h, i, j), value);
        }
    return out;
  }
};

/// o and lse of a call of the oracle.
struct Made {
  Placed o, lse;
};
Made made(const Attention& attention, Forward call, std::span<const std::int64_t> o,
          std::span<const std::int64_t> lse) {
  Made out{tests::place(DType::f64, o, Layout::bhsd), tests::place(DType::f64, lse, Layout::bhsd)};
  call.o = out.o.tensor;
  call.lse = out.lse.tensor;
  attention.run(call);
  return out;
}

void check_entries(const Shape& shape) {
  INFO(shape.describe());
  const Inputs in = tests::inputs(shape);
  const Made all = made(reading(0), in.forward(), in.shape_of_o(), in.shape_of_lse());
  std::int64_t start = 0;
  for (std::int64_t b = 0; b < shape.entries(); ++b) {
    const auto i = static_cast<std::size_t>(b);
    const Entry entry(in, b);
    const std::int64_t q_len = shape.packed() ? shape.q_lens[i] : shape.q_len;
    Tensor q = in.q.tensor, o = all.o.tensor, lse = all.lse.tensor;
    const auto cut = [&](Tensor& t, std::size_t entries, std::size_t positions) {
      const std::int64_t from = shape.packed() ? start * t.strides[positions] : b * t.strides[entries];
      t.data = static_cast<char*>(t.data) + from * static_cast<std::int64_t>(size_of(t.dtype));
      t.shape[shape.packed() ? positions : entries] = shape.packed() ? q_len : 1;
    };
    cut(q, 0, 0);
    cut(o, 0, 0);
    cut(lse, 0, 1);
    if (shape.packed()) q = Tensor(q.data, q.dtype, {1, q_len, q.shape[1], q.shape[2]}).permuted({0, 2, 1, 3});
    const std::int64_t of_o[]{1, shape.q_heads, q_len, shape.dv};
    const std::int32_t offset = shape.q_offsets.empty() ? shape.q_offset : shape.q_offsets[i];
    const Made one = made(reading(shape.kv_offset),
                          {.q = q, .k = entry.k.tensor, .v = entry.v.tensor, .q_offset = offset}, of_o,
                          std::span(of_o).first(3));
    if (shape.packed()) o = o.permuted({1, 0, 2});
    CHECK(elements(o) == elements(one.o.tensor));
    CHECK(elements(lse) == elements(one.lse.tensor));
    start += q_len;
  }
}

}  // namespace

TEST_CASE("the oracle takes each entry as a dense call of its own", "[oracle]") {
  Shape shape{.batch = 3, .q_heads = 4, .kv_heads = 2, .q_len = 5, .kv_len = 23, .d = 4, .dv = 3};
  check_entries(shape);
  shape.used = {23, 0, 11};
  check_entries(shape);
  shape.q_offsets = {18, 0, 40};
  check_entries(shape);
  shape.kv_offset = 7;
  check_entries(shape);
  shape.kv_shared = true;
  check_entries(shape);
  shape.kv_shared = false;
  for (const std::int64_t page : {1, 2, 3, 4, 7, 11, 23, 64}) {
    shape.page = page;
    shape.seed = static_cast<std::uint64_t>(page);
    shape.layout = page % 3 == 0 ? Layout::bshd : Layout::columns;
    check_entries(shape);
  }
}

TEST_CASE("the oracle reads keys that are not packed for packed queries", "[oracle]") {
  Shape shape{.q_heads = 4, .kv_heads = 2, .kv_len = 23, .d = 4, .dv = 3, .q_lens = {2, 0, 7}, .q_offset = 3};
  check_entries(shape);
  shape.used = {23, 5, 11};
  check_entries(shape);
  shape.page = 4;
  check_entries(shape);
}

TEST_CASE("the oracle merges with what was before, where the sink has joined already", "[oracle]") {
  const Sink sink = [](SinkAt at) { return 0.5f * f32(at.head); };
  const Inputs in = tests::inputs(
      {.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 6, .kv_len = 30, .d = 4, .dv = 3, .q_offset = 10});
  // Without kv_len, which is where a call's keys end.
  Attention attention{.score = [](Float s, At at) { return s + 0.1f * f32(at.kv - at.q); },
                      .mask = mods::causal(),
                      .sink = sink,
                      .target = Target::oracle};
  const Made whole = made(attention, in.forward(), in.shape_of_o(), in.shape_of_lse());
  const auto part = [&](std::int64_t first, std::int64_t last, const Made* before) {
    Forward call = in.forward();
    for (Tensor* t : {&call.k, &call.v}) {
      t->data = static_cast<char*>(t->data) + first * t->strides[2] * static_cast<std::int64_t>(size_of(t->dtype));
      t->shape[2] = last - first;
    }
    call.kv_offset = static_cast<std::int32_t>(first);
    if (before) {
      call.o_before = before->o.tensor;
      call.lse_before = before->lse.tensor;
    }
    return made(attention, call, in.shape_of_o(), in.shape_of_lse());
  };
  const Made first = part(0, 12, nullptr), second = part(12, 13, &first), all = part(13, 30, &second);
  const auto near = [](const Placed& a, const Placed& b) {
    const auto x = elements(a.tensor), y = elements(b.tensor);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == Approx(y[i]).margin(1e-12));
  };
  near(all.o, whole.o);
  near(all.lse, whole.lse);
}
