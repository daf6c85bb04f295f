// tests/emulated/biases.test.cpp — biases of Hopper's kernels that are copied, computed once a distance, or larger in
// later tiles of keys, where kernels are emulated
#include <limits>

#include "tests/emulated/captured.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

Shape usual() {
  return {
      .batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 150, .kv_len = 200, .d = 64, .dv = 64, .dtype = DType::bf16};
}

std::string wrong(const std::string& score, const std::string& mask, const Captured& bias, const Shape& shape,
                  const std::string& kernel = "") {
  Text text;
  text.capture("bias", bias.tensor);
  const Attention attention{.score = text.score(score), .mask = text.mask(mask)};
  const runtime::emulated::Gpu card{.arch = 90, .sms = 3, .seed = 7};
  const Engine engine = kernel.empty() ? emulated_engine(card) : emulated_engine(card, kernel);
  return compare(Subject(attention), inputs(shape), std::span(&engine, 1), {.backward = false, .max = false}).wrong;
}

/// The same of gradients, by each of these kernels.
std::string wrong_gradient(const std::string& score, const std::string& mask, const Captured& bias, const Shape& shape,
                           const std::vector<std::string>& kernels) {
  Text text;
  text.capture("bias", bias.tensor);
  const Attention attention{.score = text.score(score), .mask = text.mask(mask)};
  std::vector<Engine> engines;
  for (const std::string& kernel : kernels)
    engines.push_back(emulated_engine({.arch = 90, .sms = 3, .seed = 7}, kernel));
  return compare(Subject(attention), inputs(shape), engines, {.forward = false, .captured = false}).wrong;
}
std::string wrong_gradient(const std::string& score, const std::string& mask, const Captured& bias, const Shape& shape,
                           const std::string& kernel) {
  return wrong_gradient(score, mask, bias, shape, std::vector{kernel});
}

constexpr double inf = std::numeric_limits<double>::infinity();

/// Several tiles of queries and keys; one query; packed sequences, some of one position or without queries.
std::vector<Shape> uneven_lengths() {
  Shape long_one = usual(), one = usual(), packed = usual();
  long_one.q_len = long_one.kv_len = 700;
  long_one.batch = 1;
  one.q_len = 1;
  one.kv_len = 129;
  packed.q_lens = {1, 0, 257};
  packed.kv_lens = {129, 65, 1};
  return {long_one, one, packed};
}

}  // namespace

TEST_CASE("a dense bias of 16 bits is copied, whatever its layout", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Shape shape = usual();
  const std::string score = "s + bias[h, q, kv]";
  for (const std::string mask : {"true", "kv <= q + 50"}) {
    CHECK(wrong(score, mask, {DType::bf16, {2, 150, 200}, {30000, 200, 1}, waves}, shape) == "");
    // Lines that do not begin at 16 bytes, elements apart, one line for all rows, fewer rows and columns than the call.
    CHECK(wrong(score, mask, {DType::f16, {2, 150, 203}, {30450, 203, 1}, waves}, shape) == "");
    CHECK(wrong(score, mask, {DType::bf16, {2, 150, 200}, {60000, 400, 2}, waves}, shape) == "");
    CHECK(wrong(score, mask, {DType::bf16, {2, 150, 200}, {200, 0, 1}, waves}, shape) == "");
    CHECK(wrong(score, mask, {DType::bf16, {2, 100, 160}, {16000, 160, 1}, waves}, shape) == "");
  }
}

TEST_CASE("a dense bias of 16 bits is copied for calls of other shapes", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured bias{DType::bf16, {2, 300, 304}, {91200, 304, 1}, waves};
  const std::string score = "s + bias[b, q, kv]", causal = "kv <= q";
  Shape packed = usual(), offset = usual(), wide = usual();
  packed.q_lens = packed.kv_lens = {150, 33, 129, 1};
  offset.q_offset = 50;
  wide.d = wide.dv = 128;
  wide.dtype = DType::f16;
  for (const Shape& shape : {packed, offset, wide}) CHECK(wrong(score, causal, bias, shape) == "");
  // Rows whose lines are not evenly apart.
  CHECK(wrong("20.0f * tanh((s + bias[b, 299 - q * q % 300, kv]) / 20.0f)", causal, bias, wide) == "");
}

TEST_CASE("a copied bias may be infinite or NaN where pairs are masked out, and -inf anywhere", "[emulated]") {
  if (skipped_without_compiler()) return;
  const auto odd = [](std::int64_t i) {
    const std::int64_t q = i / 200, kv = i % 200;
    return kv > q ? (kv % 2 ? inf : std::numeric_limits<double>::quiet_NaN()) : q % 9 == 0 || kv % 5 == 0 ? -inf : 0.5;
  };
  CHECK(wrong("s + bias[q, kv]", "kv <= q", {DType::bf16, {150, 200}, {200, 1}, odd}, usual()) == "");
}

TEST_CASE("Hopper's backward copies a dense bias of 16 bits to the memory of dS", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::string score = "s + bias[h, q, kv]";
  Shape wide = usual(), short_ = usual();
  wide.d = wide.dv = 128;
  short_.kv_len = 100;
  const std::vector<std::string> kernels{"backward_sm90:copies=1,order=2", "backward_sm90:copies=1,order=3"};
  for (const Shape& shape : {usual(), wide})
    for (const std::string mask : {"true", "kv <= q + 50"}) {
      if (!in_turn((shape.d == 64) != (mask == "true"), 4)) continue;
      INFO(shape.d << ' ' << mask);
      CHECK(wrong_gradient(score, mask, {DType::bf16, {2, 150, 200}, {30000, 200, 1}, waves}, shape, kernels) == "");
    }
  // One line for all rows, fewer rows than the call, one tile of keys.
  CHECK(wrong_gradient(score, "true", {DType::f16, {2, 150, 200}, {200, 0, 1}, waves}, wide, kernels) == "");
  CHECK(wrong_gradient(score, "kv <= q", {DType::f16, {2, 100, 200}, {20000, 200, 1}, waves}, usual(), kernels) == "");
  CHECK(wrong_gradient(score, "true", {DType::f16, {2, 150, 104}, {15600, 104, 1}, waves}, short_, kernels) == "");
}

TEST_CASE("Hopper's backward copies a dense bias for calls of other shapes, and for slopes", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured bias{DType::bf16, {2, 300, 304}, {91200, 304, 1}, waves};
  const std::string score = "s + bias[b, q, kv]", causal = "kv <= q", copies = "backward_sm90:copies=1";
  Shape packed = usual(), offset = usual(), wide = usual();
  packed.q_lens = packed.kv_lens = {150, 33, 129, 1};
  offset.q_offset = 50;
  wide.d = wide.dv = 128;
  wide.dtype = DType::f16;
  for (std::size_t nth = 0; const Shape& shape : {packed, offset, wide})
    if (in_turn(nth++, 3)) CHECK(wrong_gradient(score, causal, bias, shape, copies) == "");
  // Rows whose lines are not evenly apart.
  CHECK(wrong_gradient("20.0f * tanh((s + bias[b, 299 - q * q % 300, kv]) / 20.0f)", causal, bias, wide, copies) == "");
  CHECK(wrong_gradient("s * bias[b, q, kv]", "true", bias, usual(), copies) == "");
  const auto odd = [](std::int64_t i) {
    const std::int64_t q = i / 200, kv = i % 200;
    return kv > q ? (kv % 2 ? inf : std::numeric_limits<double>::quiet_NaN()) : q % 9 == 0 || kv % 5 == 0 ? -inf : 0.5;
  };
  CHECK(wrong_gradient("s + bias[q, kv]", causal, {DType::bf16, {150, 200}, {200, 1}, odd}, usual(), copies) == "");
}

TEST_CASE("Hopper's backward copies a dense bias of f32, half of it to the memory of dS", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured bias{DType::f32, {2, 300, 304}, {91200, 304, 1}, waves},
      rows_alike{DType::f32, {2, 150, 204}, {204, 0, 1}, waves};
  const std::string score = "s + bias[b, q, kv]";
  Shape packed = usual(), wide = usual(), short_ = usual();
  packed.q_lens = packed.kv_lens = {150, 33, 129, 1};
  wide.d = wide.dv = 128;
  short_.kv_len = 100;
  const std::vector<std::string> kernels{"backward_sm90:copies=2,completes=0,order=2",
                                         "backward_sm90:copies=2,completes=0,order=3"};
  std::size_t nth = 0;
  for (const Shape& shape : {usual(), wide}) {
    if (!in_turn(nth++, 2)) continue;
    INFO(shape.d);
    CHECK(wrong_gradient(score, "kv <= q + 50", bias, shape, kernels) == "");
  }
  const std::string copies = "backward_sm90:copies=2,completes=0";
  if (in_turn(nth++, 2)) CHECK(wrong_gradient(score, "kv <= q", bias, packed, copies) == "");
  if (in_turn(nth++, 2)) CHECK(wrong_gradient(score, "true", bias, short_, copies) == "");
  CHECK(wrong_gradient("20.0f * tanh((s + bias[h, q, kv]) / 20.0f)", "true", rows_alike, wide, copies) == "");
}

TEST_CASE("two dense biases of 16 bits are copied", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured of_head{DType::bf16, {2, 300, 304}, {91200, 304, 1}, waves},
      of_entry{DType::f16, {2, 300, 312}, {93600, 312, 1}, [](std::int64_t i) { return waves(3 * i + 1); }},
      odd{DType::f16, {2, 150, 203}, {30450, 203, 1}, waves};
  const std::string sum = "s + bias[h, q, kv] + more[b, q, kv]", capped = "20.0f * tanh((" + sum + ") / 20.0f)";
  Shape packed = usual(), offset = usual(), wide = usual();
  packed.q_lens = packed.kv_lens = {150, 33, 129, 1};
  offset.q_offset = 50;
  wide.d = wide.dv = 128;
  const auto check = [&](const std::string& score, const std::string& mask, const Captured& more, const Shape& shape,
                         const char* kernel) {
    Text text;
    text.capture("bias", of_head.tensor);
    text.capture("more", more.tensor);
    const Attention attention{.score = text.score(score), .mask = text.mask(mask)};
    const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7}, kernel);
    const bool forward = std::string_view(kernel).starts_with("forward");
    return compare(Subject(attention), inputs(shape), std::span(&engine, 1),
                   {.forward = forward, .backward = !forward, .max = false, .captured = false})
        .wrong;
  };
  std::size_t nth = 0;
  for (const char* kernel :
       {"forward_sm90:m=128,n=128,q_stages=1,own_o=0,copies=2", "forward_sm90:m=128,n=64,q_stages=1,own_o=0,copies=2",
        "backward_sm90:copies=2,order=3", "backward_sm90:copies=2,order=2", "backward_sm90:copies=2,order=1",
        "backward_sm90:copies=1"})
    for (const Shape& shape : {usual(), packed, offset, wide}) {
      if (!in_turn(nth++, 4)) continue;
      INFO(kernel << ' ' << shape.d);
      CHECK(check(capped, "kv <= q", of_entry, shape, kernel) == "");
      CHECK(check(sum, "kv <= q && q - kv < 100", of_entry, shape, kernel) == "");
    }
  // Lines that do not begin at 16 bytes: a forward reads them one by one, a backward copies the other tensor alone.
  CHECK(check(sum, "true", odd, usual(), "forward_sm90:m=128,n=64,q_stages=1,own_o=0,copies=2") == "");
  CHECK_THAT(check(sum, "true", odd, usual(), "backward_sm90:copies=2"), Catch::Contains("copies is 0 or 1"));
  CHECK(check(sum, "true", odd, usual(), "backward_sm90:copies=1") == "");
}

TEST_CASE("Hopper's backward reads a dense bias pair by pair if its rows are not aligned or too short", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::string score = "s + bias[h, q, kv]", why = "copies must be 0";
  for (const Captured& bias : {Captured{DType::f16, {2, 150, 203}, {30450, 203, 1}, waves},
                               Captured{DType::bf16, {2, 150, 200}, {60000, 400, 2}, waves},
                               Captured{DType::bf16, {2, 150, 160}, {24000, 160, 1}, waves}}) {
    CHECK(wrong_gradient(score, "true", bias, usual(), "backward_sm90:copies=1").find(why) != std::string::npos);
    CHECK(wrong_gradient(score, "true", bias, usual(), "backward_sm90:copies=0") == "");
  }
}

TEST_CASE("what depends on a distance is right for every warp and length", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured table{DType::f32, {2, 120}, {120, 1}, waves};
  Shape packed = usual(), wide = usual(), offset = usual();
  packed.q_lens = packed.kv_lens = {150, 33, 129, 1};
  wide.d = wide.dv = 128;
  offset.q_offset = 50;
  for (const Shape& shape : {usual(), packed, wide, offset}) {
    CHECK(wrong("s + bias[h, q - kv + 60] * bias[0, kv - q + 9]", "true", table, shape) == "");
    CHECK(wrong("s + bias[h, min(abs(q - kv), 100)] + bias[1, 3 + q - kv]", "kv <= q && q - kv < 130", table, shape) ==
          "");
  }
}

TEST_CASE("what depends on a distance is right for tiles of queries without keys, lists, and ends of 1", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured table{DType::bf16, {2, 900}, {900, 1}, waves};
  for (const Shape& shape : uneven_lengths())
    for (const std::string mask : {"kv <= q", "q / 128 % 2 == 1 && kv <= q % 128", "q / 90 == kv / 90"})
      CHECK(wrong("s + bias[h, q - kv + 450]", mask, table, shape) == "");
}

TEST_CASE("columns that a block keeps in shared memory are right for every length, width and use", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured table{DType::f32, {2, 900}, {900, 1}, waves};
  Shape wide = usual(), widest = usual(), short_ = usual();
  wide.d = wide.dv = 128;
  wide.dtype = DType::f16;
  widest.d = widest.dv = 192;
  widest.q_offset = 50;
  short_.kv_len = 60;
  std::vector<Shape> shapes = uneven_lengths();
  shapes.insert(shapes.end(), {wide, widest, short_});
  std::size_t nth = 0;
  for (const Shape& shape : shapes) {
    INFO(shape.d);
    if (in_turn(nth++, 3)) CHECK(wrong("s + bias[h, kv]", "kv <= q", table, shape) == "");
    if (in_turn(nth++, 3))
      CHECK(wrong("s * bias[h, kv + 9] + bias[0, kv]", "q - kv < 90 && kv - q < 70", table, shape) == "");
  }
  for (const std::string mask :
       {"true", "q / 128 % 2 == 1 && kv <= q % 128", "bias[0, kv] > 0.0f", "q / 90 == kv / 90"})
    if (in_turn(nth++, 3)) CHECK(wrong("20.0f * tanh((s + bias[h, kv]) / 20.0f)", mask, table, wide) == "");
}

TEST_CASE("a tile that asks for numbers that the score does not have is refused", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured table{DType::f32, {2, 360}, {360, 1}, waves};
  const auto refused = [&](const std::string& score, const std::string& numbers, const std::string& why) {
    const std::string tile = "forward_sm90:m=128,n=128,q_stages=1,own_o=1,issue_order=1,";
    INFO(score << ", " << numbers);
    CHECK_THAT(wrong(score, "kv <= q", table, usual(), tile + numbers), Catch::Contains(why));
  };
  const std::string by_key = "s + bias[h, kv]";
  refused(by_key, "distances=1,column_words=0", "distances must be 0");
  refused(by_key, "column_words=2", "column_words is 0 or 1");
  refused(by_key, "distances=1,column_words=1", "scores read one kind of numbers from shared memory");
  refused("s * bias[h, kv] + bias[0, kv + 1]", "column_words=1", "column_words is 0 or 2");
  refused("s + bias[h, q]", "column_words=1", "column_words must be 0");
  CHECK(wrong(by_key, "kv <= q", table, usual(), "forward_sm90:m=128,n=128,column_words=0") == "");
}

TEST_CASE("next to a part that is held for each pair, other reads stay with their pairs", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape shape = usual();
  shape.d = shape.dv = 128;
  const Captured table{DType::f32, {2, 360}, {360, 1}, waves}, dense{DType::bf16, {360, 360}, {360, 1}, waves};
  for (const std::string mask : {"true", "kv <= q"}) {
    CHECK(wrong("s + bias[h, q - kv + 200] + f32(kv) * bias[0, q - kv + 201]", mask, table, shape) == "");
    CHECK(wrong("s + bias[q, kv] + f32(kv) * bias[3, q - kv + 200]", mask, dense, shape) == "");
  }
}

TEST_CASE("a bias that is larger in later tiles of keys, by little or by far, is right", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape shape = usual();
  shape.kv_len = 400;
  const Captured slopes{DType::f32, {2}, {1}, [](std::int64_t i) { return i ? -0.9 : 0.7; }};
  for (const DType type : {DType::bf16, DType::f16}) {
    shape.dtype = type;
    for (const std::string mask : {"true", "kv <= q", "q - kv < 60 && kv - q < 90"}) {
      CHECK(wrong("s + bias[h] * f32(kv - q)", mask, slopes, shape) == "");
      CHECK(wrong("s + 4.0f * bias[h] * f32(abs(kv - q))", mask, slopes, shape) == "");
    }
  }
}

TEST_CASE("a bias by key may hide keys, by any means", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape shape = usual();
  shape.kv_len = 400;
  std::size_t nth = 0;
  for (const double hidden : {-inf, -1e4, -1e9, -1e38})
    for (const int from : {0, 130, 260}) {  // the other keys come before or after, or on both sides
      if (!in_turn(nth++, 8)) continue;
      const auto number = [&](std::int64_t i) { return (i >= from && i < from + 140) ? waves(i) : hidden; };
      const Captured bias{DType::f32, {400}, {1}, number};
      for (const DType type : {DType::bf16, DType::f16}) {
        shape.dtype = type;
        CHECK(wrong("s + bias[kv]", "true", bias, shape) == "");
        CHECK(wrong("s + bias[kv]", "kv <= q", bias, shape) == "");
      }
    }
  // One key outweighs all others, but is masked out for most rows.
  const Captured one{DType::f32, {400}, {1}, [](std::int64_t i) { return i == 120 ? 3000.0 : i == 30 ? inf : 0; }};
  CHECK(wrong("s + bias[kv]", "kv <= q && kv != 30", one, shape) == "");
}

}  // namespace attune::tests
