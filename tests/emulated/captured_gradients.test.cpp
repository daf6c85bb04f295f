// tests/emulated/captured_gradients.test.cpp — gradients of captured tensors on an emulated Hopper GPU: each way to sum
// them, and several at once
#include <limits>
#include <map>

#include "tests/emulated/captured.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

Shape dense(std::int64_t q_len, std::int64_t kv_len, std::int64_t d) {
  return {
      .batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = q_len, .kv_len = kv_len, .d = d, .dv = d, .dtype = DType::bf16};
}
Shape packed(std::vector<std::int64_t> lens, std::int64_t d) {
  Shape out{.q_heads = 2, .kv_heads = 1, .d = d, .dv = d, .dtype = DType::bf16};
  out.q_lens = out.kv_lens = std::move(lens);
  return out;
}

/// Parts of a mod; empty: none. They may read g[h], w[kv], u[h, kv], r[h, q], t[h, distance], c[class], bias[h, q, kv].
struct Parts {
  std::string score = "s", mask = "true", prob{}, sink{};
};

/// Tensors that mods read.
struct Tensors {
  Captured g{DType::f32, {2}, {1}, [](std::int64_t i) { return 0.7 - 0.4 * static_cast<double>(i); }},
      w{DType::f32, {400}, {1}, waves}, u{DType::bf16, {2, 400}, {400, 1}, waves},
      r{DType::f32, {2, 400}, {400, 1}, [](std::int64_t i) { return i % 11 == 0 ? 0 : waves(i); }},
      t{DType::f32, {2, 101}, {101, 1}, waves}, c{DType::f32, {7}, {1}, waves},
      bias{DType::bf16, {2, 208, 240}, {49920, 240, 1}, waves};

  Attention attention(const Parts& of) const {
    Text text;
    const std::string all = of.score + of.mask + of.prob + of.sink;
    for (const auto& [name, tensor] : {std::pair{"g", &g}, {"w", &w}, {"u", &u}, {"r", &r}, {"t", &t}, {"c", &c}})
      if (all.find(std::string(name) + "[") != std::string::npos) text.capture(name, tensor->tensor);
    if (all.find("bias[") != std::string::npos) text.capture("bias", bias.tensor);
    Attention out{.score = text.score(of.score), .mask = text.mask(of.mask)};
    if (!of.prob.empty()) out.prob = text.prob(of.prob);
    if (!of.sink.empty()) out.sink = text.sink(of.sink);
    return out;
  }
};

/// What is wrong with the gradients, if the kernel of a whole backward computes them.
std::string wrong(const Parts& of, const Inputs& in, const std::string& members = "", bool grad_lse = true) {
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7},
                                        "backward_sm90" + (members.empty() ? "" : ":" + members));
  const Tensors tensors;
  return compare(Subject(tensors.attention(of)), in, std::span(&engine, 1), {.forward = false, .grad_lse = grad_lse})
      .wrong;
}
std::string wrong(const Parts& of, const Shape& shape, const std::string& members = "", bool grad_lse = true) {
  return wrong(of, inputs(shape), members, grad_lse);
}

const std::vector<Parts>& sums_of_items() {
  static const std::vector<Parts> all{
      {.mask = "kv <= q", .prob = "p * g[h]"},
      {.mask = "kv <= q + 20", .prob = "p * sigmoid(w[kv])"},
      {.score = "s + u[h, kv]"},
      {.score = "s + g[h] * f32(kv - q)", .mask = "kv <= q"},
      {.score = "s + g[h] * f32(kv - q) + u[h, kv]", .prob = "p * sigmoid(w[kv]) * g[h]"},
  };
  return all;
}

}  // namespace

TEST_CASE("terms by head and by key are summed in each order of the steps", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const std::int64_t d : {64, 128})
    for (const Parts& parts : sums_of_items())
      for (const int order : {0, 1, 2, 3}) {
        // In order 3 only what is a multiple of the score.
        if (order == 3 && parts.score != "s") continue;
        if (const std::size_t n = nth++; !in_turn(n + n / 48, 48)) continue;
        const std::string members = fmt::format("m={},order={}", d == 64 ? 128 : 64, order);
        INFO(parts.score << ' ' << parts.prob << ' ' << members);
        CHECK(wrong(parts, dense(200, 230, d), members) == "");
        CHECK(wrong(parts, packed({150, 0, 1, 177}, d), members) == "");
      }
}

TEST_CASE("terms that ask for the score are summed where products are complete", "[emulated]") {
  if (skipped_without_compiler()) return;
  for (const Parts& parts : {Parts{.score = "s * g[h] + u[h, kv]", .mask = "kv <= q"},
                             Parts{.score = "20.0f * tanh((s + w[kv]) / 20.0f)", .prob = "p * g[h]"}})
    for (const std::int64_t d : {64, 128}) {
      INFO(parts.score << ' ' << d);
      CHECK(wrong(parts, dense(130, 200, d)) == "");
    }
}

TEST_CASE("terms that a row's scores share follow from lse and delta", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Parts parts{.score = "s + r[h, q] + g[h] + u[h, kv]", .mask = "kv + 9 <= q", .sink = "c[h]"};
  for (const bool grad_lse : {false, true}) {
    CHECK(wrong(parts, dense(150, 200, 64), "", grad_lse) == "");
    CHECK(wrong({.score = "s + r[h, q]", .mask = "kv <= q - 3"}, packed({129, 0, 1, 33}, 64), "", grad_lse) == "");
  }
}

TEST_CASE("other terms are summed by query and pair by pair after the kernel", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Shape narrow = dense(150, 200, 64), wide = packed({130, 0, 1, 97}, 128);
  CHECK(wrong({.mask = "kv <= q + 9", .prob = "p * r[h, q]"}, narrow) == "");
  CHECK(wrong({.score = "s + c[(q * 3 + kv) % 7] + g[h] * f32(kv - q)", .mask = "kv <= q"}, narrow) == "");
  CHECK(wrong({.score = "s + r[h, q] * f32(kv) * 0.01f + c[kv % 5]", .prob = "p * sigmoid(w[q])"}, wide) == "");
}

TEST_CASE("the gradients of a gate of rows follow from delta, and where it is 0 from pairs", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Shape narrow = dense(150, 200, 64), wide = packed({130, 0, 1, 97}, 128);
  Shape half = narrow;
  half.dtype = DType::f16;
  for (std::size_t nth = 0;
       const Parts& parts : {Parts{.mask = "kv <= q + 9", .prob = "p * g[h]"},
                             {.mask = "kv + 9 <= q", .prob = "p * r[h, q]"},
                             {.prob = "p * g[h] * r[h, q]", .sink = "c[h]"},
                             {.mask = "kv <= q", .prob = "where(kept(7, 200), p * (1.25f * tanh(r[h, q])), 0.0f)"},
                             {.prob = "p * (g[h] - 0.3f)"},  // 0 for all rows of a head
                             {.mask = "kv <= q", .prob = "p * (1e-3f * r[h, q])"}}) {
    if (!in_turn(nth++, 6)) continue;
    INFO(parts.prob);
    for (const Shape& shape : {narrow, wide, half}) CHECK(wrong(parts, shape) == "");
    CHECK(wrong(parts, narrow, "", false) == "");
  }
}

TEST_CASE("a call has captured gradients of several kinds", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Shape narrow = dense(150, 200, 64), wide = dense(170, 210, 128);
  const std::string table = "t[h, clamp(q - kv, -50, 50) + 50]";
  CHECK(wrong({.score = "s + " + table, .mask = "kv <= q", .sink = "g[h]"}, narrow) == "");
  CHECK(wrong({.score = "s + " + table + " + u[h, kv]", .prob = "p * g[h]", .sink = "c[h]"}, wide) == "");
  CHECK(wrong({.score = "s + " + table + " + g[h] * f32(kv - q)"}, packed({150, 0, 1, 77}, 64)) == "");
  CHECK(wrong({.score = "s + bias[h, q, kv]", .mask = "kv <= q", .sink = "g[h]"}, narrow) == "");
  CHECK(wrong({.score = "s + bias[h, q, kv] + u[h, kv] + r[h, q]", .prob = "p * g[h]"}, wide) == "");
  CHECK(wrong({.score = "s + bias[h, q, kv] + " + table, .mask = "kv <= q"}, narrow) == "");
}

TEST_CASE("a table under a softcap is summed along diagonals, as dS has the cap's slope", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::string table = "t[h, clamp(q - kv, -50, 50) + 50]", capped = "20.0f * tanh((s + " + table,
                    end = ") / 20.0f)";
  for (std::size_t nth = 0;
       const Shape& shape : {dense(150, 200, 64), dense(170, 210, 128), packed({150, 0, 1, 77}, 64)})
    if (in_turn(nth++, 3)) {
      CHECK(wrong({.score = capped + end, .mask = "kv <= q"}, shape) == "");
      CHECK(wrong({.score = capped + " + bias[h, q, kv]" + end, .sink = "c[h]"}, shape) == "");
    }
}

TEST_CASE("sums along diagonals are right for every length, and where tiles are missing", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Every distance within 101 has its own element, so none may go to a neighbour's place.
  const std::string table = "s + t[h, (q - kv + 606) % 101]";
  Shape half = dense(270, 400, 128);
  half.dtype = DType::f16;
  std::size_t nth = 0;
  for (const Shape& shape : {dense(331, 157, 64), half, dense(1, 300, 128), dense(330, 1, 128), dense(400, 390, 64),
                             packed({1, 0, 270, 77}, 128), packed({290, 1}, 64)})
    for (const char* mask : {"true", "kv <= q", "(q / 64 + kv / 64) % 3 != 1", "kv > q + 70"}) {
      if (!in_turn(nth++, 14)) continue;
      INFO(mask << ' ' << shape.d << ' ' << shape.q_len << ' ' << shape.kv_len);
      CHECK(wrong({.score = table, .mask = mask}, shape) == "");
    }
}

TEST_CASE("what masked-out keys hold reaches no captured gradient", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Few, because what is not finite is computed again pair by pair.
  const Shape shape = dense(66, 140, 64);
  const Inputs in = inputs(shape);
  for (const Placed* rows : {&in.k, &in.v})
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (const std::int64_t key : {120, 130, 139})
        for (std::int64_t i = 0; i < shape.d; ++i)
          runtime::store(rows->tensor, runtime::offset(rows->tensor, b, 0, key, i), i % 2 ? nan : 1e30);
  const std::string kept = "kv < 120 && q % 5 != 4";
  std::size_t nth = 0;
  for (const Parts& parts : {Parts{.mask = kept, .prob = "p * g[h] * sigmoid(w[kv])", .sink = "c[h]"},
                             Parts{.score = "s + u[h, kv] + r[h, q] + t[h, clamp(q - kv, -50, 50) + 50]", .mask = kept},
                             Parts{.score = "s + c[(q + kv) % 7] + bias[h, q, kv]", .mask = "kv < 120"}}) {
    if (!in_turn(nth++, 8)) continue;
    INFO(parts.score << ' ' << parts.prob);
    CHECK(wrong(parts, in) == "");
  }
}

TEST_CASE("captured gradients have the same bits on any number of multiprocessors", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Tensors tensors;
  const Parts parts{.score = "s + t[h, clamp(q - kv, -50, 50) + 50] + u[h, kv] + r[h, q] + c[(q * kv) % 7]",
                    .mask = "kv <= q",
                    .prob = "p * g[h] * sigmoid(w[kv])"};
  const Subject subject(tensors.attention(parts));
  std::vector<std::map<std::string, std::vector<double>>> found;
  for (const runtime::emulated::Gpu& gpu : {runtime::emulated::Gpu{.arch = 90, .sms = 1, .seed = 1},
                                            runtime::emulated::Gpu{.arch = 90, .sms = 5, .seed = 2}}) {
    const Engine engine = emulated_engine(gpu, "backward_sm90");
    auto& of = found.emplace_back();
    CHECK(compare(subject, inputs(dense(260, 300, 64)), std::span(&engine, 1),
                  {.forward = false, .observe = [&](const Observed& one) { of[one.name] = one.elements; }})
              .wrong == "");
  }
  CHECK(found[0].size() > 6);
  CHECK(found[0] == found[1]);
}

}  // namespace attune::tests
