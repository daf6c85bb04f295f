// tests/compiler/problem.test.cpp — the sizes of a call, and every way in which its tensors can disagree
#include "compiler/problem.h"

#include <attune/attune.h>

#include <array>
#include <functional>
#include <limits>

#include "tests/catch.h"
#include "tests/golden.h"

using namespace attune;
using compiler::Problem;
using tests::golden_error;

namespace {

// Only addresses matter: nothing is read except cu_seqlens.
Tensor at(std::uintptr_t nth, DType type, std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<void*>((nth + 1) << 40), type, shape};
}

const DType single = DType::f32;

Forward good() {
  return {.q = at(0, single, {2, 4, 8, 16}),
          .k = at(1, single, {2, 2, 9, 16}),
          .v = at(2, single, {2, 2, 9, 32}),
          .o = at(3, single, {2, 4, 8, 32}),
          .lse = at(4, single, {2, 4, 8}),
          .max = at(5, single, {2, 4, 8})};
}

Backward good_backward() {
  return {.q = at(0, single, {2, 4, 8, 16}),
          .k = at(1, single, {2, 2, 9, 16}),
          .v = at(2, single, {2, 2, 9, 32}),
          .grad_o = at(3, single, {2, 4, 8, 32}),
          .grad_lse = at(4, single, {2, 4, 8}),
          .dq = at(5, single, {2, 4, 8, 16}),
          .dk = at(6, single, {2, 2, 9, 16}),
          .dv = at(7, single, {2, 2, 9, 32})};
}

std::int32_t starts_q[]{0, 3, 8}, starts_kv[]{0, 9, 9};

Forward packed() {
  return {.q = at(0, single, {8, 4, 16}),
          .k = at(1, single, {9, 2, 16}),
          .v = at(2, single, {9, 2, 32}),
          .o = at(3, single, {8, 4, 32}),
          .lse = at(4, single, {4, 8}),
          .cu_seqlens_q = Tensor(starts_q, DType::i32, {3}),
          .cu_seqlens_kv = Tensor(starts_kv, DType::i32, {3})};
}

/// The same on a device, including the starts.
Forward packed_there() {
  Forward c = packed();
  for (Tensor* t : {&c.q, &c.k, &c.v, &c.o, &c.lse, &c.cu_seqlens_q, &c.cu_seqlens_kv}) t->device = Device::cuda();
  c.max_q_len = 6;
  c.max_kv_len = 100;
  return c;
}

const compiler::BoundMod plain;

template <class Call>
std::string refused(Call call, const std::function<void(Call&)>& spoil, std::optional<double> scale = {},
                    const compiler::BoundMod& bound = plain) {
  spoil(call);
  try {
    check(bound, call, scale);
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was refused";
}

/// Breaks a valid forward call and compares the refusal with its golden.
void refuses(const char* name, const std::function<void(Forward&)>& spoil, std::optional<double> scale = {}) {
  golden_error(name, refused<Forward>(good(), spoil, scale));
}
void refuses_packed(const char* name, const std::function<void(Forward&)>& spoil) {
  golden_error(name, refused<Forward>(packed(), spoil));
}
void refuses_there(const char* name, const std::function<void(Forward&)>& spoil) {
  golden_error(name, refused<Forward>(packed_there(), spoil));
}
void refuses_backward(const char* name, const std::function<void(Backward&)>& spoil,
                      const compiler::BoundMod& bound = plain) {
  golden_error(name, refused<Backward>(good_backward(), spoil, {}, bound));
}

compiler::BoundMod with_captures() {
  compiler::BoundMod bound;
  bound.slots.captures = {at(10, single, {4}), at(11, DType::i32, {8})};
  bound.mod.captures = {{"slope", single, 1}, {"doc", DType::i32, 1}};
  return bound;
}

}  // namespace

TEST_CASE("the sizes of a dense call", "[problem]") {
  const Problem p = check(plain, good(), {});
  CHECK(p.batch == 2);
  CHECK(p.q_heads == 4);
  CHECK(p.kv_heads == 2);
  CHECK(p.group == 2);
  CHECK(p.q.length == 8);
  CHECK(p.kv.length == 9);
  CHECK(p.d == 16);
  CHECK(p.dv == 32);
  CHECK(p.scale == 0.25);
  CHECK_FALSE(p.kv_shared);
  CHECK(check(plain, good(), -3.5).scale == -3.5);
  CHECK(check(plain, good_backward(), 0.0).scale == 0);
}

TEST_CASE("values are a view of keys whatever the strides say that nobody steps along", "[problem]") {
  // MLA's cache: one key head, whose stride is whatever the view made it.
  const auto place = [](std::size_t nth) { return at(nth, single, {1}).data; };
  const Tensor k(place(1), DType::bf16, {3, 1, 700, 576}, {700 * 576, 576, 576, 1}, Device::cpu());
  const auto is_view = [&](std::initializer_list<std::int64_t> shape, std::initializer_list<std::int64_t> strides,
                           DType type = DType::bf16, std::size_t address = 1) {
    return compiler::values_within_keys(k, Tensor(place(address), type, shape, strides, Device::cpu()));
  };
  CHECK(is_view({3, 1, 700, 512}, {700 * 576, 576, 576, 1}));
  CHECK(is_view({3, 1, 700, 512}, {700 * 576, 700 * 576, 576, 1}));
  CHECK_FALSE(is_view({3, 1, 700, 512}, {700 * 512, 576, 512, 1}));
  CHECK_FALSE(is_view({3, 1, 700, 512}, {0, 576, 576, 1}));
  CHECK_FALSE(is_view({3, 1, 700, 512}, {700 * 576, 576, 576, 1}, DType::f16));
  CHECK_FALSE(is_view({3, 1, 700, 512}, {700 * 576, 576, 576, 1}, DType::bf16, 2));
}

TEST_CASE("the sizes of packed sequences", "[problem]") {
  const Problem p = check(plain, packed(), {});
  CHECK(p.q.packed());
  CHECK(p.batch == 2);
  CHECK(p.q.length == 5);
  CHECK(p.kv.length == 9);
  CHECK(p.q.starts == std::vector<std::int64_t>{0, 3, 8});
  CHECK(p.kv.starts == std::vector<std::int64_t>{0, 9, 9});
  CHECK(p.q.total == 8);
  CHECK(p.kv.total == 9);
  CHECK_FALSE(p.q.starts_on_device());

  Forward with_lengths = packed();
  with_lengths.max_q_len = 7;
  CHECK(check(plain, with_lengths, {}) == p);
}

TEST_CASE("starts on a device are not looked at, and lengths are what the caller says", "[problem]") {
  Forward call = packed_there();
  call.cu_seqlens_q.data = call.cu_seqlens_kv.data = reinterpret_cast<void*>(64);
  const Problem p = check(plain, call, {});
  CHECK(p.q.packed());
  CHECK(p.q.starts_on_device());
  CHECK(p.batch == 2);
  CHECK(p.q.length == 6);
  CHECK(p.kv.length == 9);  // no sequence is longer than all of them
  CHECK(p.q.total == 8);
  CHECK(p.kv.total == 9);
  // A call on a device also takes starts on the host.
  Forward mixed = packed_there();
  mixed.cu_seqlens_q.device = mixed.cu_seqlens_kv.device = Device::cpu();
  mixed.max_q_len = mixed.max_kv_len = 0;
  CHECK(check(plain, mixed, {}).q.length == 5);
}

TEST_CASE("what is unusual but right is let through", "[problem]") {
  const auto accepts = [](const std::function<void(Forward&)>& change) {
    Forward call = good();
    change(call);
    CHECK_NOTHROW(check(plain, call, {}));
  };
  accepts([](Forward& c) { c.k = at(1, single, {1, 2, 9, 16}), c.v = at(2, single, {1, 2, 9, 32}); });
  accepts([](Forward& c) { c.k.strides = {0, 0, 0, 0}; });
  accepts([](Forward& c) { c.lse = c.max = {}; });
  accepts([](Forward& c) { c.o.dtype = DType::bf16; });
  accepts([](Forward& c) { c.o = at(3, single, {2, 8, 4, 32}).permuted({0, 2, 1, 3}); });
  accepts([](Forward& c) {
    c.k = at(1, single, {2, 2, 0, 16}), c.v = at(2, single, {2, 2, 0, 32}), c.k.data = nullptr;
  });
  accepts([](Forward& c) {
    c.q = at(0, single, {2, 4, 1, 16}), c.o = at(3, single, {2, 4, 1, 32}), c.o.strides[2] = 0, c.lse = c.max = {};
  });
  Forward shared = good();
  shared.k = at(1, single, {1, 2, 9, 16}), shared.v = at(2, single, {1, 2, 9, 32});
  CHECK(check(plain, shared, {}).kv_shared);
}

TEST_CASE("missing and unusable tensors are refused", "[problem]") {
  refuses("tensor-missing.q", [](Forward& c) { c.q = {}; });
  refuses("tensor-missing.o", [](Forward& c) { c.o = {}; });
  refuses("tensor-null", [](Forward& c) { c.v.data = nullptr; });
  refuses("bad-rank.call", [](Forward& c) { c.k.rank = 5; });
  refuses("bad-extent.call", [](Forward& c) { c.k.shape[2] = -9; });
  refuses("tensor-rank.dense", [](Forward& c) { c.q = at(0, single, {8, 4, 16}); });
  refuses("tensor-device", [](Forward& c) { c.k.device = {.kind = Device::Kind::cuda, .index = 1}; });
}

TEST_CASE("types that do not fit are refused", "[problem]") {
  refuses("tensor-type.q", [](Forward& c) { c.q.dtype = DType::i32; });
  refuses("tensor-types", [](Forward& c) { c.v.dtype = DType::f16; });
  refuses("tensor-type.k", [](Forward& c) { c.k.dtype = DType::u8; });
  refuses("tensor-types.q-e4m3", [](Forward& c) { c.q.dtype = DType::e4m3; });
  refuses("tensor-type.o-e4m3", [](Forward& c) { c.q.dtype = c.k.dtype = c.v.dtype = c.o.dtype = DType::e4m3; });
  refuses("tensor-types.e4m3", [](Forward& c) { c.k.dtype = DType::e4m3; });
  refuses("tensor-type.o", [](Forward& c) { c.o.dtype = DType::u8; });
  refuses("tensor-type.lse", [](Forward& c) { c.lse.dtype = DType::f16; });
}

TEST_CASE("shapes that do not fit are refused", "[problem]") {
  refuses("head-size", [](Forward& c) { c.k.shape[3] = 8; });
  refuses("head-size-zero.d", [](Forward& c) { c.q.shape[3] = c.k.shape[3] = 0; });
  refuses("head-size-zero.dv", [](Forward& c) { c.v.shape[3] = c.o.shape[3] = 0; });
  refuses("kv-heads", [](Forward& c) { c.v.shape[1] = 1; });
  refuses("head-groups", [](Forward& c) { c.k.shape[1] = c.v.shape[1] = 3; });
  refuses("head-groups.none", [](Forward& c) { c.k.shape[1] = c.v.shape[1] = 0; });
  refuses("kv-lengths", [](Forward& c) { c.v.shape[2] = 8; });
  refuses("kv-batch", [](Forward& c) { c.v.shape[0] = 1; });
  refuses("batch", [](Forward& c) { c.k.shape[0] = c.v.shape[0] = 3; });
  refuses("tensor-shape.o", [](Forward& c) { c.o.shape[3] = 16; });
  refuses("tensor-shape.lse", [](Forward& c) { c.lse = at(4, single, {2, 4}); });
  refuses("tensor-shape.max", [](Forward& c) { c.max.shape[2] = 9; });
}

TEST_CASE("numbers beyond their range are refused", "[problem]") {
  refuses(
      "bad-scale.nan", [](Forward&) {}, std::numeric_limits<double>::quiet_NaN());
  refuses(
      "bad-scale.large", [](Forward&) {}, 1e300);
  refuses("q-offset", [](Forward& c) { c.q_offset = -1; });
  refuses("too-long.offset", [](Forward& c) { c.q_offset = std::numeric_limits<std::int32_t>::max(); });
  refuses("too-long.kv", [](Forward& c) {
    c.k.shape[2] = c.v.shape[2] = std::int64_t{1} << 31;
    c.k.strides = c.v.strides = {};
  });
}

TEST_CASE("outputs whose elements overlap in memory are refused", "[problem]") {
  refuses("tensor-overlap.stride", [](Forward& c) { c.o.strides[2] = 0; });
  refuses("tensor-overlap.equal", [](Forward& c) { c.o.strides[1] = c.o.strides[2]; });
  refuses("tensor-overlap.reach", [](Forward& c) { c.lse.strides = {3, 2, 1, 0}; });
  refuses("tensor-alias.input", [](Forward& c) { c.o.data = c.q.data; });
  refuses("tensor-alias.part", [](Forward& c) { c.o.data = static_cast<float*>(c.q.data) + 32; });
  refuses("tensor-alias.output", [](Forward& c) { c.max.data = c.lse.data; });
}

TEST_CASE("starts of sequences that make no sense are refused", "[problem]") {
  static std::int32_t late[]{1, 3, 8}, falling[]{0, 5, 3}, early[]{0, 3, 7}, more[]{0, 3, 5, 8};
  refuses_packed("cu-seqlens-half", [](Forward& c) { c.cu_seqlens_kv = {}; });
  refuses_packed("tensor-rank.packed", [](Forward& c) { c.v = at(2, single, {1, 9, 2, 32}); });
  refuses_packed("tensor-rank.cu-seqlens", [](Forward& c) { c.cu_seqlens_q = Tensor(starts_q, DType::i32, {3, 1}); });
  refuses_packed("cu-seqlens-type", [](Forward& c) { c.cu_seqlens_q.dtype = DType::f32; });
  refuses_packed("cu-seqlens-device", [](Forward& c) { c.cu_seqlens_q.device.kind = Device::Kind::cuda; });
  refuses_there("cu-seqlens-device.other", [](Forward& c) { c.cu_seqlens_kv.device.index = 1; });
  refuses_there("cu-seqlens-device.half", [](Forward& c) { c.cu_seqlens_kv.device = Device::cpu(); });
  refuses_there("cu-seqlens-type.device", [](Forward& c) { c.cu_seqlens_q.dtype = DType::i64; });
  refuses_there("cu-seqlens-stride", [](Forward& c) { c.cu_seqlens_q.strides[0] = 2; });
  refuses_there("cu-seqlens.empty-there", [](Forward& c) { c.cu_seqlens_q.shape[0] = 0; });
  refuses_there("max-len.missing", [](Forward& c) { c.max_kv_len = 0; });
  refuses_there("max-len.negative", [](Forward& c) { c.max_q_len = -1; });
  refuses_packed("max-len.short", [](Forward& c) { c.max_q_len = 4; });
  refuses_packed("cu-seqlens.empty", [](Forward& c) { c.cu_seqlens_q.shape[0] = 0; });
  refuses_packed("cu-seqlens.first", [](Forward& c) { c.cu_seqlens_q.data = late; });
  refuses_packed("cu-seqlens.falling", [](Forward& c) { c.cu_seqlens_q.data = falling; });
  refuses_packed("cu-seqlens.last", [](Forward& c) { c.cu_seqlens_q.data = early; });
  refuses_packed("cu-seqlens-batch", [](Forward& c) { c.cu_seqlens_q = Tensor(more, DType::i32, {4}); });
  refuses_packed("kv-lengths.packed", [](Forward& c) { c.v = at(2, single, {8, 2, 32}); });
  refuses_packed("tensor-shape.packed-lse", [](Forward& c) { c.lse = at(4, single, {8, 4}); });
}

TEST_CASE("gradients that do not fit are refused", "[problem]") {
  const compiler::BoundMod bound = with_captures();
  const Tensor slope = bound.slots.captures[0], doc = bound.slots.captures[1];
  refuses_backward("tensor-missing.grad_o", [](Backward& c) { c.grad_o = {}; });
  refuses_backward("tensor-shape.grad_o", [](Backward& c) { c.grad_o.shape[3] = 16; });
  refuses_backward("tensor-shape.grad_lse", [](Backward& c) { c.grad_lse.shape[2] = 1; });
  refuses_backward("forward-half.lse", [](Backward& c) { c.o = at(8, single, {2, 4, 8, 32}); });
  refuses_backward("forward-half.o", [](Backward& c) { c.lse = at(8, single, {2, 4, 8}); });
  refuses_backward("tensor-shape.backward-o", [](Backward& c) {
    c.o = at(8, single, {2, 4, 8, 16});
    c.lse = at(9, single, {2, 4, 8});
  });
  refuses_backward("tensor-type.backward-lse", [](Backward& c) {
    c.o = at(8, single, {2, 4, 8, 32});
    c.lse = at(9, DType::f16, {2, 4, 8});
  });
  refuses_backward("tensor-alias.backward-o", [](Backward& c) {
    c.o = at(5, single, {2, 4, 8, 32});
    c.lse = at(9, single, {2, 4, 8});
  });
  refuses_backward("tensor-shape.dk", [](Backward& c) { c.dk = at(6, single, {2, 4, 9, 16}); });
  refuses_backward("tensor-type.backward-k", [](Backward& c) { c.k.dtype = c.v.dtype = DType::e4m3; });
  refuses_backward("tensor-type.backward-q", [](Backward& c) { c.q.dtype = c.k.dtype = c.v.dtype = DType::e4m3; });
  refuses_backward("tensor-type.dq", [](Backward& c) { c.dq.dtype = DType::i32; });
  refuses_backward("tensor-alias.gradients", [](Backward& c) { c.dv.data = c.dk.data; });
  refuses_backward("grad-not-captured.none", [&](Backward& c) { c.captured = {{slope, at(12, single, {4})}}; });
  refuses_backward(
      "grad-not-captured",
      [&](Backward& c) {
        c.captured = {{at(13, single, {4}), at(12, single, {4})}};
      },
      bound);
  refuses_backward(
      "grad-not-float",
      [&](Backward& c) {
        c.captured = {{doc, at(12, single, {8})}};
      },
      bound);
  refuses_backward(
      "tensor-shape.captured",
      [&](Backward& c) {
        c.captured = {{slope, at(12, single, {5})}};
      },
      bound);
  refuses_backward(
      "tensor-missing.captured",
      [&](Backward& c) {
        c.captured = {{slope, {}}};
      },
      bound);
  refuses_backward(
      "grad-twice",
      [&](Backward& c) {
        c.captured = {{slope, at(12, single, {4})}, {slope, at(14, single, {4})}};
      },
      bound);
  refuses_backward(
      "tensor-alias.capture",
      [&](Backward& c) {
        c.captured = {{slope, slope}};
      },
      bound);
}

TEST_CASE("captures are held to the same rules as other tensors", "[problem]") {
  compiler::BoundMod bound = with_captures();
  bound.slots.captures[1].device.kind = Device::Kind::cuda;
  golden_error("tensor-device.capture", refused<Forward>(
                                            good(), [](Forward&) {}, {}, bound));
  bound = with_captures();
  bound.slots.captures[0].data = nullptr;
  golden_error("tensor-null.capture", refused<Forward>(
                                          good(), [](Forward&) {}, {}, bound));
}

namespace {

std::int32_t lengths[]{9, 0}, offsets[]{8, 100}, table[]{3, 0, 1, -1};

/// Entries of their own lengths and positions.
Forward apart() {
  Forward c = good();
  c.kv_len = Tensor(lengths, DType::i32, {2});
  c.q_offsets = Tensor(offsets, DType::i32, {2});
  c.kv_offset = 5;
  return c;
}

/// Keys in pages of 5 rows.
Forward paged() {
  Forward c = apart();
  c.k = at(1, single, {4, 2, 5, 16});
  c.v = at(2, single, {4, 2, 5, 32});
  c.page_table = Tensor(table, DType::i32, {2, 2});
  return c;
}

/// Packed queries, and keys that are not packed.
Forward mixed() {
  Forward c = packed();
  c.cu_seqlens_kv = {};
  c.k = good().k;
  c.v = good().v;
  return c;
}

}  // namespace

TEST_CASE("lengths and positions of entries", "[problem]") {
  const Problem p = check(plain, apart(), {});
  CHECK(p.kv.length == 9);
  CHECK(p.per_entry->kv_lens == std::vector<std::int64_t>{9, 0});
  CHECK(p.per_entry->q_offsets == std::vector<std::int32_t>{8, 100});
  CHECK(p.kv_offset == 5);
  Forward wide = apart();
  std::int64_t of_64[]{3, 4};
  wide.kv_len = Tensor(of_64, DType::i64, {2});
  CHECK(check(plain, wide, {}).kv.length == 4);

  const Problem in_pages = check(plain, paged(), {});
  CHECK(in_pages.kv.paged());
  CHECK(in_pages.per_entry->page_size == 5);
  CHECK(in_pages.batch == 2);
  CHECK(in_pages.kv.length == 9);
  Forward whole = paged();
  whole.kv_len = {};
  CHECK(check(plain, whole, {}).kv.length == 10);
  whole.k.shape[0] = whole.v.shape[0] = 1 << 20;  // a pool is as large as it likes
  CHECK(check(plain, whole, {}).kv.length == 10);

  const Problem of_both = check(plain, mixed(), {});
  CHECK(of_both.q.packed());
  CHECK_FALSE(of_both.kv.packed());
  CHECK(of_both.kv.length == 9);
  Forward shared = mixed();
  shared.k.shape[0] = shared.v.shape[0] = 1;
  CHECK(check(plain, shared, {}).kv_shared);
  Forward own = packed();
  std::int32_t shorter[]{4, 0};
  own.kv_len = Tensor(shorter, DType::i32, {2});
  CHECK(check(plain, own, {}).per_entry->kv_lens == std::vector<std::int64_t>{4, 0});
}

TEST_CASE("lengths and positions that make no sense are refused", "[problem]") {
  const auto refuses_apart = [](const char* name, const std::function<void(Forward&)>& spoil) {
    golden_error(name, refused<Forward>(apart(), spoil));
  };
  static std::int32_t many[]{10, 0}, negative[]{3, -1}, far[]{0, 1 << 30};
  refuses_apart("kv-len.many", [](Forward& c) { c.kv_len.data = many; });
  refuses_apart("kv-len.negative", [](Forward& c) { c.kv_len.data = negative; });
  refuses_apart("kv-len.type", [](Forward& c) { c.kv_len.dtype = DType::f32; });
  refuses_apart("tensor-shape.kv_len", [](Forward& c) { c.kv_len.shape[0] = 3; });
  refuses_apart("tensor-device.kv_len", [](Forward& c) { c.kv_len.device = Device::cuda(); });
  refuses_apart("q-offsets.both", [](Forward& c) { c.q_offset = 4; });
  refuses_apart("q-offsets.negative", [](Forward& c) { c.q_offsets.data = negative; });
  refuses_apart("q-offsets.type", [](Forward& c) { c.q_offsets.dtype = DType::i16; });
  refuses_apart("too-long.q_offsets", [](Forward& c) { c.q_offsets.data = far; });
  refuses_apart("kv-offset", [](Forward& c) { c.kv_offset = -1; });
  refuses_apart("too-long.kv_offset", [](Forward& c) { c.kv_offset = std::numeric_limits<std::int32_t>::max(); });
  refuses_apart("tensor-alias.kv_len", [](Forward& c) { c.o.data = c.kv_len.data; });
  refuses_apart("fixed-split-size", [](Forward& c) { c.fixed_split_size = 100; });
  refuses_apart("fixed-split-size.negative", [](Forward& c) { c.fixed_split_size = -128; });
  golden_error("kv-len.packed", refused<Forward>(packed(), [](Forward& c) {
                 static std::int32_t more[]{9, 1};
                 c.kv_len = Tensor(more, DType::i32, {2});
               }));
}

TEST_CASE("pages that make no sense are refused", "[problem]") {
  const auto refuses_paged = [](const char* name, const std::function<void(Forward&)>& spoil) {
    golden_error(name, refused<Forward>(paged(), spoil));
  };
  static std::int32_t many[]{11, 0};
  refuses_paged("page-table.type", [](Forward& c) { c.page_table.dtype = DType::i64; });
  refuses_paged("page-table.rank", [](Forward& c) { c.page_table = Tensor(table, DType::i32, {4}); });
  refuses_paged("page-table.batch", [](Forward& c) { c.page_table.shape[0] = 1; });
  refuses_paged("tensor-device.page-table", [](Forward& c) { c.page_table.device = Device::cuda(); });
  refuses_paged("page-table.cu-seqlens", [](Forward& c) { c.cu_seqlens_kv = Tensor(starts_kv, DType::i32, {3}); });
  refuses_paged("kv-batch.page-table", [](Forward& c) { c.v.shape[0] = 5; });
  refuses_paged("page-size", [](Forward& c) { c.v.shape[2] = 4; });
  refuses_paged("page-size.none", [](Forward& c) { c.k.shape[2] = c.v.shape[2] = 0; });
  refuses_paged("kv-len.page-table", [](Forward& c) { c.kv_len.data = many; });
  refuses_paged("tensor-rank.page-table", [](Forward& c) { c.k = at(1, single, {20, 2, 16}); });
  refuses_paged("too-long.page-table", [](Forward& c) {
    c.kv_len = {};
    c.k.shape[2] = c.v.shape[2] = std::int64_t{1} << 35;
    c.k.strides = c.v.strides = {};
  });
}

TEST_CASE("packed queries beside other keys are refused where they make no sense", "[problem]") {
  golden_error("batch.mixed", refused<Forward>(mixed(), [](Forward& c) { c.k.shape[0] = c.v.shape[0] = 3; }));
  golden_error("cu-seqlens-half.dense", refused<Forward>(mixed(), [](Forward& c) {
                 c.q = good().q;
                 c.cu_seqlens_q = {};
                 c.cu_seqlens_kv = Tensor(starts_kv, DType::i32, {3});
               }));
}

TEST_CASE("results to merge with are held to the rules of those to come", "[problem]") {
  const auto before = [] {
    Forward c = good();
    c.o_before = at(6, single, {2, 4, 8, 32});
    c.lse_before = at(7, single, {2, 4, 8});
    return c;
  };
  const auto refuses_before = [&](const char* name, const std::function<void(Forward&)>& spoil) {
    golden_error(name, refused<Forward>(before(), spoil));
  };
  refuses_before("before-half.lse", [](Forward& c) { c.lse_before = {}; });
  refuses_before("before-half.o", [](Forward& c) { c.o_before = {}; });
  refuses_before("tensor-shape.o_before", [](Forward& c) { c.o_before.shape[3] = 16; });
  refuses_before("tensor-type.lse_before", [](Forward& c) { c.lse_before.dtype = DType::f16; });
  refuses_before("tensor-device.o_before", [](Forward& c) { c.o_before.device = Device::cuda(); });
  // o_before may share memory exactly with the results: it is read before they are written. No other overlap.
  refuses_before("tensor-alias.max", [](Forward& c) { c.lse_before.data = c.max.data; });
  refuses_before("tensor-alias.o_before", [](Forward& c) {
    c.o_before = c.o;
    c.o_before.strides[0] = -c.o.strides[0];
  });
  // Shifted by a row, from the last row to the first, and by an element's half.
  std::vector<float> both(2 * 4 * 9 * 32);
  const auto within = [&](Forward& c, std::size_t first) {
    c.o = Tensor(both.data(), single, {2, 4, 8, 32});
    c.o_before = Tensor(both.data() + first, single, {2, 4, 8, 32});
  };
  refuses_before("tensor-alias.o_before-part", [&](Forward& c) { within(c, 32); });
  refuses_before("tensor-alias.o_before-part", [&](Forward& c) {
    within(c, 7 * 32);
    c.o_before.strides[2] = -32;
  });
  refuses_before("tensor-alias.lse_before-part", [&](Forward& c) {
    c.o_before = c.o;
    c.lse = Tensor(both.data(), single, {2, 4, 8});
    c.lse_before = Tensor(both.data() + 1, single, {2, 4, 8});
  });
  // Interleaved rows: no element overlaps another.
  Forward between = before();
  within(between, 32);
  for (Tensor* t : {&between.o, &between.o_before}) t->shape = {1, 2, 8, 32}, t->strides = {2 * 8 * 64, 8 * 64, 64, 1};
  between.q.shape[0] = between.k.shape[0] = between.v.shape[0] = 1;
  between.q.shape[1] = between.k.shape[1] = between.v.shape[1] = 2;
  between.lse = between.lse_before = at(7, single, {1, 2, 8});
  between.max = {};
  CHECK(check(plain, between, {}).batch == 1);
  Forward in_place = before();
  in_place.o_before = in_place.o;
  in_place.lse_before = in_place.lse;
  CHECK(check(plain, in_place, {}).batch == 2);
}
