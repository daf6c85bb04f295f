// tests/emulated/dense_gradients.test.cpp — gradients of dense biases on an emulated Hopper GPU, whose backward stores
// dS
#include <functional>
#include <limits>
#include <map>

#include "tests/emulated/captured.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

Shape usual() {
  return {
      .batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 150, .kv_len = 200, .d = 64, .dv = 64, .dtype = DType::bf16};
}

constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

/// How to compute gradients.
struct By {
  DType type = DType::bf16;  ///< of the bias's gradient
  std::string kernel = "backward_sm90:copies=0";
  std::int64_t ds_bytes = std::int64_t{1} << 30;
  std::string prob = "p";
  int sms = 3;
  std::function<void(const Observed&)> observe = {};
};

/// What is wrong with the gradients, that of the bias among them. `more`: a second tensor.
std::string wrong(const std::string& score, const std::string& mask, const Captured& bias, const Shape& shape,
                  const By& by = {}, const Captured* more = nullptr) {
  Text text;
  text.capture("bias", bias.tensor);
  if (more) text.capture("more", more->tensor);
  const Attention attention{.score = text.score(score), .mask = text.mask(mask), .prob = text.prob(by.prob)};
  Engine engine = emulated_engine({.arch = 90, .sms = by.sms, .seed = 7});
  engine.backward = [&, preference = codegen::Preference{codegen::variant(by.kernel), true, ""}](
                        const Subject& subject, const Backward& call, const compiler::Problem& problem) {
    // Each element has to be stored, as those of tiles that no one visits.
    for (const Backward::Captured& one : call.captured)
      each_element(one.into, [&](std::int64_t offset) { runtime::store(one.into, offset, nan); });
    on_device(subject, call, problem, {.preference = &preference, .ds_bytes = by.ds_bytes});
  };
  return compare(Subject(attention), inputs(shape), std::span(&engine, 1),
                 {.forward = false, .captured_type = by.type, .observe = by.observe})
      .wrong;
}

/// A bias of these extents, contiguous.
Captured dense(std::vector<std::int64_t> shape, DType type = DType::bf16) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); --d > 0;) strides[d - 1] = strides[d] * shape[d];
  return {type, std::move(shape), std::move(strides), waves};
}

Captured table_of(std::int64_t length) { return dense({length}, DType::f32); }

}  // namespace

TEST_CASE("dS is stored as the gradient of a bias with an element for each pair", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape wide = usual();
  wide.d = wide.dv = 128;
  const Captured bias = dense({2, 2, 150, 200});
  std::size_t nth = 0;
  for (const char* kernel : {"backward_sm90:copies=0,order=2", "backward_sm90:copies=1,order=2",
                             "backward_sm90:copies=1,order=3", "backward_sm90:copies=0,order=0"})
    for (const Shape& shape : {usual(), wide})
      for (const char* mask : {"true", "kv <= q + 20"}) {
        // Each turn takes a width with one mask and the other width with the other.
        if (const std::size_t n = nth++; !in_turn(n + n / 8, 8)) continue;
        INFO(kernel << ' ' << shape.d << ' ' << mask);
        CHECK(wrong("s + bias[b, h, q, kv]", mask, bias, shape, {.kernel = kernel}) == "");
      }
}

TEST_CASE("dS is summed over what shares an element, in any type and layout", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape odd = usual();
  odd.kv_len = 203;
  for (const DType type : {DType::f32, DType::bf16}) {
    if (!in_turn(type == DType::f32, 4)) continue;
    CHECK(wrong("s + bias[h, q, kv]", "kv <= q + 20", dense({2, 150, 200}), usual(), {.type = type}) == "");
    CHECK(wrong("s + bias[b, 0, q, kv]", "true", dense({2, 1, 150, 203}, type), odd, {.type = type}) == "");
  }
  if (in_turn(0, 8)) CHECK(wrong("s + bias[q, kv]", "true", dense({150, 203}), odd) == "");
  if (in_turn(1, 8)) CHECK(wrong("s + bias[kv, h, q]", "true", dense({203, 2, 150}), odd) == "");
  // Rows of a pair representation share a bias, and heads in pairs; the last group may be smaller, and some have no
  // pair.
  Shape rows = usual();
  rows.batch = 5, rows.q_heads = 4, rows.d = rows.dv = 32;
  if (in_turn(0, 3)) CHECK(wrong("s + bias[b / 2, h, q, kv]", "true", dense({3, 4, 150, 200}), rows) == "");
  if (in_turn(1, 3))
    CHECK(wrong("s + bias[b / 7, h, q, kv]", "kv <= q + 20", dense({1, 4, 150, 200}), rows, {.type = DType::f32}) ==
          "");
  if (in_turn(2, 3))
    CHECK(wrong("s + bias[b / 3, h / 2, q, kv]", "bias[0, 0, 0, kv] > -0.5f", dense({4, 2, 150, 200}), rows) == "");
  Shape apart = usual();
  apart.layout = Layout::bshd;
  for (const DType type : {DType::bf16, DType::f16})
    if (in_turn(type == DType::f16, 4))
      CHECK(wrong("s + bias[b, h, q, kv]", "kv <= q + 20", dense({2, 2, 150, 200}), apart, {.type = type}) == "");
}

TEST_CASE("elements of a dense gradient may have many terms", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape many = usual(), packed = usual();
  many.batch = 5, many.q_heads = 4, many.d = many.dv = 32, many.kv_len = 203;
  packed.q_lens = packed.kv_lens = {150, 33, 129, 0, 1};
  packed.batch = 5;
  const Captured shared = dense({150, 203}), heads = dense({4, 150, 203});
  const auto odd = [](std::int64_t i) { return i % 203 > i / 203 ? inf : 0.5; };
  std::size_t nth = 0;
  for (const DType type : {DType::f32, DType::bf16})
    if (in_turn(nth++, 4)) CHECK(wrong("s + bias[q, kv]", "kv <= q + 20", shared, many, {.type = type}) == "");
  if (in_turn(nth++, 4)) CHECK(wrong("s + bias[h, q, kv] + more[q, kv]", "true", heads, many, {}, &shared) == "");
  if (in_turn(nth++, 4)) CHECK(wrong("s + bias[q, kv]", "true", dense({150, 150}), packed) == "");
  // From operands.
  if (in_turn(nth++, 4))
    CHECK(wrong("s + bias[q, kv]", "kv <= q", {DType::bf16, {150, 203}, {203, 1}, odd}, many) == "");
}

TEST_CASE("launches for some of the keys each keep their dS in the same workspace", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape longer = usual();
  longer.q_len = 130;
  longer.kv_len = 700;
  const std::int64_t of_tile = 2 * 2 * 130 * 128 * 2;
  std::size_t nth = 0;
  for (const char* mask : {"true", "kv <= q + 300", "kv >= q + 200 && kv < 650"})
    for (const std::int64_t tiles : {1, 2, 5}) {
      if (const std::size_t n = nth++; !in_turn(n + n / 12, 12)) continue;
      INFO(mask << ' ' << tiles);
      CHECK(wrong("s + bias[h, q, kv]", mask, dense({2, 130, 700}), longer, {.ds_bytes = tiles * of_tile}) == "");
    }
  if (in_turn(nth++, 3))
    CHECK(wrong("s + bias[b, q, kv]", "bias[b, q, kv] > 0.1f", dense({2, 130, 700}), longer, {.ds_bytes = 1}) == "");
  // Delta is summed once, before the first launch.
  for (const std::string copies : {"0", "1"})
    if (in_turn(nth++, 3))
      CHECK(wrong("s + bias[h, q, kv]", "kv <= q + 300", dense({2, 130, 704}), longer,
                  {.kernel = "backward_sm90:copies=" + copies, .ds_bytes = 2 * of_tile, .prob = "p * p"}) == "");
}

TEST_CASE("dq of launches for some of the keys has the same bits on any number of multiprocessors", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Two sections, so that keys fall in some sets and rise in others; and heads that share keys, there and back.
  Shape sections = usual(), heads = usual();
  sections.batch = 17, sections.q_heads = sections.kv_heads = 4, sections.kv_len = 500, sections.d = sections.dv = 72;
  heads.q_heads = 6, heads.kv_heads = 2, heads.q_len = 210, heads.kv_len = 403, heads.q_offset = 60;
  struct Case {
    Shape shape;
    const char *kernel, *mask;
    std::int64_t tiles;  ///< of a launch
  };
  for (std::size_t nth = 0; const auto& [shape, kernel, mask, tiles] :
                            {Case{sections, "backward_sm90:order=2", "kv <= q + 320", 2},
                             Case{heads, "backward_sm90:path=1", "kv <= q + 100", 1},
                             Case{heads, "backward_sm90:path=1", "kv <= q + 100 && kv > q - 120", 3}}) {
    if (!in_turn(nth++, 3)) continue;
    INFO(shape.describe() << ' ' << mask);
    const Captured bias = dense({shape.q_heads, shape.q_offset + shape.q_len, shape.kv_len});
    std::vector<std::map<std::string, std::vector<double>>> found;
    for (const int sms : {1, 5}) {
      auto& of = found.emplace_back();
      CHECK(wrong("s + bias[h, q, kv]", mask, bias, shape,
                  {.kernel = kernel,
                   .ds_bytes = tiles * shape.batch * shape.q_heads * shape.q_len * 128 * 2,
                   .sms = sms,
                   .observe = [&](const Observed& one) { of[one.name] = one.elements; }}) == "");
    }
    CHECK(found[0].size() == 4);
    CHECK(found[0] == found[1]);
  }
}

TEST_CASE("dS of tiles that the mask leaves empty is not read: it was never written", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape shape = usual();
  shape.q_heads = 4, shape.kv_heads = 2, shape.q_len = 270, shape.kv_len = 403;
  const Captured heads = dense({4, 270, 403}), pairs = dense({2, 4, 270, 408}), entries = dense({2, 270, 403}),
                 of_even = dense({4, 270, 408}), table = table_of(672),
                 documents(DType::f32, {403}, {1}, [](std::int64_t i) { return static_cast<double>(i * i / 30000); });
  const std::int64_t of_tile = 2 * 4 * 270 * 128 * 2;
  std::size_t nth = 0;
  for (const std::int64_t d : {64, 128}) {
    shape.d = shape.dv = d;
    // The last two leave rows without keys.
    for (const char* mask : {"kv <= q", "kv <= q && q - kv < 70", "kv > q + 170", "kv <= q - 140"})
      for (const std::int64_t ds_bytes : {std::int64_t{1} << 30, of_tile}) {
        if (const std::size_t n = nth++; !in_turn(n, 16)) continue;
        INFO(d << ' ' << mask << ' ' << ds_bytes);
        CHECK(wrong("s + bias[h, q, kv]", mask, heads, shape, {.ds_bytes = ds_bytes}) == "");
        CHECK(wrong("s + bias[h, q, kv] + more[b, q, kv]", mask, heads, shape, {.ds_bytes = ds_bytes}, &entries) == "");
        CHECK(wrong("s + bias[h, q, kv] + more[q - kv + 402]", mask, heads, shape, {.ds_bytes = ds_bytes}, &table) ==
              "");
      }
    // Lists of tiles.
    for (const std::int64_t ds_bytes : {std::int64_t{1} << 30, of_tile}) {
      if (const std::size_t n = nth++; !in_turn(n, 16)) continue;
      INFO(d << " documents " << ds_bytes);
      CHECK(wrong("s + bias[h, q, kv]", "kv <= q && more[q] == more[kv]", heads, shape, {.ds_bytes = ds_bytes},
                  &documents) == "");
      CHECK(wrong("s + bias[h, q, kv] + 0.01f * more[abs(q - kv)]", "kv <= q && more[q] == more[kv]", heads, shape,
                  {.ds_bytes = ds_bytes}, &documents) == "");
    }
    // The gradient has rows before the first query and after the last one. Masked-out keys are NaN: dS is computed
    // again.
    if (const std::size_t n = nth++; in_turn(n, 4)) {
      Shape offset = shape;
      offset.q_offset = 100;
      CHECK(wrong("s + bias[h, q, kv]", "kv <= q", dense({4, 390, 403}), offset) == "");
      const auto odd = [](std::int64_t i) { return i % 403 > i / 403 % 270 ? nan : 0.5; };
      CHECK(wrong("s + bias[h, q, kv]", "kv <= q", {DType::bf16, {4, 270, 403}, {270 * 403, 403, 1}, odd}, shape) ==
            "");
    }
    // dS is the gradient, which has zeros there.
    if (const std::size_t n = nth++; in_turn(n, 4)) {
      Shape even = shape;
      even.kv_len = 408;
      CHECK(wrong("s + bias[b, h, q, kv]", "kv <= q && q - kv < 70", pairs, even) == "");
      CHECK(wrong("s + bias[b, h, q, kv] + more[h, q, kv]", "kv <= q", pairs, even, {}, &of_even) == "");
      CHECK(wrong("s + bias[b, h, q, kv]", "kv <= q && more[q] == more[min(kv, 402)]", pairs, even, {}, &documents) ==
            "");
    }
  }
}

TEST_CASE("dS is multiplied by the derivative of the score by its bias", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured bias = dense({2, 2, 150, 200});
  std::size_t nth = 0;
  for (const char* score : {"20.0f * tanh((s + bias[b, h, q, kv]) / 20.0f)", "s + 2.0f * bias[b, h, q, kv]",
                            "s + f32(q - kv + h) * 0.01f * bias[b, h, q, kv]", "s + exp(0.1f * bias[b, h, q, kv])",
                            "s + where(kv % 3 == 0, log(0.0f), bias[b, h, q, kv])"}) {
    if (!in_turn(nth++, 2)) continue;
    INFO(score);
    CHECK(wrong(score, "kv != q", bias, usual()) == "");
  }
}

TEST_CASE("several dense biases have their gradients from the same dS", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured pairs = dense({2, 2, 150, 200}), heads = dense({2, 150, 200}, DType::f32),
                 entries = dense({2, 150, 200});
  const std::int64_t of_tile = 2 * 2 * 150 * 128 * 2;
  std::size_t nth = 0;
  for (const char* mask : {"true", "kv <= q + 20"}) {
    INFO(mask);
    // dS is the gradient of one of them, or of neither.
    if (in_turn(nth++, 4))
      CHECK(wrong("s + bias[b, h, q, kv] + more[h, q, kv]", mask, pairs, usual(), {}, &heads) == "");
    if (in_turn(nth++, 4))
      CHECK(wrong("s + bias[h, q, kv] + 0.5f * more[b, h, q, kv]", mask, heads, usual(), {.type = DType::f32},
                  &pairs) == "");
    if (in_turn(nth++, 4))
      CHECK(wrong("20.0f * tanh((s + bias[h, q, kv] + more[b, q, kv]) / 20.0f)", mask, heads, usual(),
                  {.ds_bytes = of_tile}, &entries) == "");
  }
}

TEST_CASE("a table by distance beside a dense bias has its gradient from the same dS", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured table = table_of(349), pairs = dense({2, 2, 150, 200}), heads = dense({2, 150, 200});
  const std::string of_distance = "more[q - kv + 199]";
  const std::int64_t of_tile = 2 * 2 * 150 * 128 * 2;
  std::size_t nth = 0;
  for (const char* mask : {"true", "kv <= q + 20"}) {
    INFO(mask);
    if (in_turn(nth++, 4))
      CHECK(wrong("s + bias[b, h, q, kv] + " + of_distance, mask, pairs, usual(), {}, &table) == "");
    if (in_turn(nth++, 4))
      CHECK(wrong("s + bias[h, q, kv] + more[clamp(q - kv, -20, 20) + 20] * f32(kv - q)", mask, heads, usual(),
                  {.ds_bytes = of_tile}, &table) == "");
  }
  Shape offset = usual(), few = usual();
  offset.q_offset = 50;
  few.q_len = 1;
  if (in_turn(nth++, 4))
    CHECK(wrong("s + bias[h, q, kv] + " + of_distance, "kv <= q", dense({2, 200, 200}), offset, {}, &table) == "");
  if (in_turn(nth++, 4)) CHECK(wrong("s + bias[h, q, kv] + " + of_distance, "true", heads, few, {}, &table) == "");
  // What pairs that are masked out hold reaches neither of them.
  const auto odd = [](std::int64_t i) { return i % 200 > i / 200 % 150 ? inf : 0.5; };
  if (in_turn(nth++, 4))
    CHECK(wrong("s + bias[h, q, kv] + " + of_distance, "kv <= q", {DType::bf16, {2, 150, 200}, {30000, 200, 1}, odd},
                usual(), {}, &table) == "");
}

TEST_CASE("the gradient of a dense bias in calls of other shapes", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape shared = usual(), offset = usual(), alone = usual(), few = usual(), one = usual();
  shared.kv_shared = true;
  offset.q_offset = 50;
  alone.kv_len = 100;
  few.q_len = 1;
  one.q_len = one.kv_len = 1;
  const std::string score = "s + bias[b, h, q, kv]";
  for (std::size_t nth = 0; const Shape& shape : {shared, offset, alone, few, one}) {
    INFO(shape.describe());
    // Of the same size, or larger.
    if (in_turn(nth, 8))
      CHECK(wrong(score, "true", dense({2, 2, shape.q_offset + shape.q_len, shape.kv_len}), shape) == "");
    if (in_turn(++nth, 8)) CHECK(wrong(score, "kv <= q", dense({3, 2, 210, 216}), shape) == "");
  }
}

TEST_CASE("what masked-out pairs hold does not reach the gradient of a dense bias", "[emulated]") {
  if (skipped_without_compiler()) return;
  const auto odd = [](std::int64_t i) {
    const std::int64_t q = i / 200 % 150, kv = i % 200;
    return kv > q ? (kv % 2 ? inf : nan) : q % 9 == 0 || kv % 5 == 0 ? -inf : 0.5;
  };
  CHECK(wrong("s + bias[b, h, q, kv]", "kv <= q", {DType::bf16, {2, 2, 150, 200}, {60000, 30000, 200, 1}, odd},
              usual()) == "");
  CHECK(wrong("s + bias[q, kv]", "kv <= q", {DType::bf16, {150, 200}, {200, 1}, odd}, usual()) == "");
}

TEST_CASE("a dense bias of packed sequences has its gradient from dS", "[emulated]") {
  if (skipped_without_compiler()) return;
  Shape packed = usual();
  packed.q_lens = {150, 33, 129, 0, 1};
  packed.kv_lens = {290, 33, 0, 70, 1};
  packed.batch = 5;
  const Captured heads = dense({2, 150, 290}), table = dense({439}, DType::f32), entries = dense({5, 2, 150, 296});
  std::size_t nth = 0;
  for (const std::int64_t d : {64, 128})
    for (const char* mask : {"true", "kv <= q + 20"})
      // Launches for some of the keys, and one for all of them.
      for (const std::int64_t ds_bytes : {std::int64_t{1}, std::int64_t{1} << 30}) {
        if (!in_turn(nth++, 4)) continue;
        INFO(d << ' ' << mask << ' ' << ds_bytes);
        packed.d = packed.dv = d;
        CHECK(wrong("s + bias[h, q, kv]", mask, heads, packed, {.type = DType::f32, .ds_bytes = ds_bytes}) == "");
        CHECK(wrong("s + bias[h, q, kv] + more[q - kv + 289]", mask, heads, packed, {.ds_bytes = ds_bytes}, &table) ==
              "");
      }
  packed.d = packed.dv = 64;
  if (in_turn(nth++, 4))
    CHECK(wrong("s + bias[b, h, q, kv]", "kv <= q", entries, packed, {.kernel = "backward_sm90:copies=1"}) == "");
  const auto odd = [](std::int64_t i) { return i % 290 > i / 290 % 150 ? inf : 0.5; };
  if (in_turn(nth++, 4))
    CHECK(wrong("s + bias[h, q, kv] + more[q - kv + 289]", "kv <= q",
                {DType::bf16, {2, 150, 290}, {43500, 290, 1}, odd}, packed, {}, &table) == "");
  Shape small = packed;
  small.q_lens = small.kv_lens = {100, 33, 128, 5, 1};
  if (in_turn(nth++, 4)) CHECK(wrong("s + bias[h, q, kv]", "kv <= q", dense({2, 128, 128}), small) == "");
}

TEST_CASE("the gradient of a dense bias that is not made of dS is added pair by pair", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Captured table = table_of(349);
  // dS times a number that depends on s is added pair by pair.
  CHECK(wrong("s * bias[h, q, kv]", "true", dense({2, 150, 200}), usual(), {.type = DType::f32}) == "");
  // Rows and columns that the bias lacks are its last one.
  CHECK(wrong("s + bias[h, q, kv]", "kv <= q", dense({2, 100, 200}), usual(), {.type = DType::f32}) == "");
  CHECK(wrong("s + bias[h, q, kv] + more[q - kv + 199]", "true", dense({2, 150, 199}), usual(), {.type = DType::f32},
              &table) == "");
}

}  // namespace attune::tests
