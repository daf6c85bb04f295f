// tests/emulated/prob_mods.test.cpp — prob mods that are no multiple of p on an emulated Hopper GPU: powers of p, whose
// degree kernels know, and others, under which kernels walk over a row's pairs once more
#include <limits>
#include <map>

#include "tests/emulated/captured.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/odd_rows.h"

namespace attune::tests {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Several tiles of queries and keys, the last ones of few rows.
Shape dense(std::int64_t d, DType type = DType::bf16) {
  return {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 141, .kv_len = 270, .d = d, .dv = d, .dtype = type};
}
Shape packed(std::int64_t d) {
  Shape out = dense(d);
  out.q_lens = {128, 0, 70, 1, 90};
  out.kv_lens = {0, 3, 130, 200, 64};
  return out;
}

/// Parts of a mod; empty: none. They may read g[h], c[kv], t[h, distance], bias[q, kv], r[h, q], doc[i].
struct Parts {
  std::string prob, score = "s", mask = "true", sink{};
};
struct Tensors {
  Captured g{DType::f32, {4}, {1}, [](std::int64_t i) { return 0.7 - 0.4 * static_cast<double>(i); }},
      c{DType::f32, {700}, {1}, [](std::int64_t i) { return 0.002 * static_cast<double>(i % 7); }},
      t{DType::f32, {4, 801}, {801, 1}, waves}, bias{DType::bf16, {400, 400}, {400, 1}, waves},
      r{DType::f32, {4, 400}, {400, 1}, waves},
      doc{DType::i32, {400}, {1}, [](std::int64_t i) { return static_cast<double>(i / 45); }};

  Attention attention(const Parts& of) const {
    Text text;
    const std::string all = of.score + of.mask + of.prob + of.sink;
    for (const auto& [name, tensor] :
         {std::pair{"g", &g}, {"c", &c}, {"t", &t}, {"bias", &bias}, {"r", &r}, {"doc", &doc}})
      if (all.find(std::string(name) + "[") != std::string::npos) text.capture(name, tensor->tensor);
    Attention out{.score = text.score(of.score), .mask = text.mask(of.mask), .prob = text.prob(of.prob)};
    if (!of.sink.empty()) out.sink = text.sink(of.sink);
    return out;
  }
};

/// What is wrong with results, lse and, if asked for, maxima.
std::string wrong(const Parts& of, const Inputs& in, const std::string& kernel = "forward_sm90", bool max = false) {
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7}, kernel);
  const Tensors tensors;
  return compare(Subject(tensors.attention(of)), in, std::span(&engine, 1), {.backward = false, .max = max}).wrong;
}
std::string wrong(const Parts& of, const Shape& shape, const std::string& kernel = "forward_sm90", bool max = false) {
  return wrong(of, inputs(shape), kernel, max);
}

/// Keys 3, 130 and 269 of one head are NaN, and so are their values.
Inputs with_nan_keys() {
  Shape shape = dense(64);
  shape.q_heads = 2;
  shape.q_len = 70;
  Inputs in = inputs(shape);
  for (const std::int64_t kv : {3, 130, 269})
    for (const Tensor& t : {in.k.tensor, in.v.tensor})
      for (std::int64_t i = 0; i < shape.d; ++i) runtime::store(t, runtime::offset(t, 1, 1, kv, i), nan);
  return in;
}

/// Powers of p. Then what is none: a sum of two, a threshold, a clip, an odd one with prob(0) above 0.
const std::string square = "p * p", gated_square = "p * p * g[h]", root = "sqrt(p)", fourth_root = "sqrt(sqrt(p))",
                  cube = "p * p * p / 3.0f", power_of_3_halves = "p * sqrt(p) * 0.5f";
const std::string sum = "p * p + 0.25f * p", threshold = "where(p > 0.01f, p, 0.0f)",
                  clip = "max(p - c[kv], 0.0f) * g[h]", odd = "sqrt(p) + 0.1f";

/// What is wrong with gradients, those of captured tensors included.
std::string wrong_gradient(const Parts& of, const Inputs& in, const std::string& members = "") {
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7},
                                        "backward_sm90" + (members.empty() ? "" : ":" + members));
  const Tensors tensors;
  return compare(Subject(tensors.attention(of)), in, std::span(&engine, 1), {.forward = false}).wrong;
}

/// Checks one of `share` in a turn, dense and packed, of both widths.
void gradients_are_right(const std::vector<Parts>& mods, std::size_t share) {
  std::size_t nth = 0;
  for (const Parts& of : mods)
    for (const std::int64_t d : {64, 128})
      for (const bool is_packed : {false, true}) {
        if (const std::size_t n = nth++; !in_turn(n + n / share, share)) continue;
        Shape shape = is_packed ? packed(d) : dense(d);
        if (nth % 3 == 0) shape.dtype = DType::f16;
        INFO(of.prob << ", " << of.score << ", " << of.mask << ", " << shape.describe());
        CHECK(wrong_gradient(of, inputs(shape)) == "");
      }
}
/// The same of every order of the steps, and of odd lengths.
void orders_are_right(const Parts& of, std::size_t share) {
  std::size_t nth = 0;
  for (const std::int64_t d : {64, 128})
    for (const int order : {0, 1, 2, 3})
      for (const std::int64_t q_len : {1, 65, 203}) {
        if (const std::size_t n = nth++; !in_turn(n + n / share, share)) continue;
        Shape shape = dense(d);
        shape.q_len = q_len;
        shape.kv_len = q_len == 65 ? 1 : 203;
        const std::string members = fmt::format("m={},order={}", d == 64 ? 128 : 64, order);
        INFO(members << ' ' << shape.describe());
        CHECK(wrong_gradient(of, inputs(shape), members) == "");
      }
}

}  // namespace

// ---- powers of p ----------------------------------------------------------------------------------------------------

TEST_CASE("powers of p are right for every width, type and mask", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const auto& [d, dv] : {std::pair{64, 64}, {72, 40}, {128, 128}, {192, 128}, {256, 256}})
    for (const std::string& prob : {square, gated_square, root, cube, power_of_3_halves})
      for (const std::string mask : {"true", "kv <= q", "kv <= q && q - kv < 50", "q / 128 % 2 == 1 && kv <= q % 128",
                                     "(q * q) % 7 != kv % 5", "doc[q] == doc[kv]"}) {
        if (const std::size_t n = nth++; !in_turn(n + n / 10, 20)) continue;
        Shape shape = nth % 3 ? dense(d, nth % 2 ? DType::bf16 : DType::f16) : packed(d);
        shape.dv = dv;
        INFO(prob << ", " << mask << ", " << shape.describe());
        CHECK(wrong({.prob = prob, .mask = mask}, shape, "forward_sm90", nth % 4 == 0) == "");
      }
}

TEST_CASE("powers of p are right with scores of every kind, and where maxima rise late", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const std::string score :
       {"20.0f * tanh(s / 20.0f)", "s + g[h] * f32(kv - q)", "s + t[h, q - kv + 400]", "s + bias[q, kv]",
        "s + 90.0f * c[kv]", "50.0f * s", "s + 0.7f * f32(kv)", "s - 1.5f * f32(kv)", "s + where(kv < 3, 90.0f, 0.0f)",
        "where(kv % 3 == 0, -1.0f / 0.0f, s)", "where(kv == 200, 1.0f / 0.0f, s)", "s - 1e9f"})
    for (const std::string& prob : {square, root, cube})
      for (const DType type : {DType::bf16, DType::f16})
        for (const std::string mask : {"true", "kv <= q + 20"}) {
          if (const std::size_t n = nth++; !in_turn(n + n / 12, 12)) continue;
          const Parts of{prob, score, mask, nth % 5 ? "" : "g[h]"};
          INFO(prob << ", " << score << ", " << mask << ", " << of.sink);
          CHECK(wrong(of, dense(nth % 2 ? 64 : 128, type), "forward_sm90", nth % 7 == 0) == "");
        }
}

TEST_CASE("powers of p are right in tiles of every kind", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const std::string tile : {"m=64,n=64,stages=3,q_stages=2,own_o=1,issue_order=0,items=2",
                                 "m=192,n=80,stages=3,q_stages=1,own_o=2,issue_order=1,items=1",
                                 "m=128,n=64,stages=2,q_stages=1,own_o=0,issue_order=2,items=1"})
    for (const std::string mask : {"kv <= q + 20", "kv > q + 100"})
      for (const Shape& shape : {dense(64, DType::f16), packed(64)}) {
        if (!in_turn(nth++, 4)) continue;
        INFO(tile << ", " << mask << ", " << shape.describe());
        CHECK(wrong({.prob = nth % 2 ? square : root, .mask = mask}, shape, "forward_sm90:" + tile) == "");
      }
}

TEST_CASE("powers of p of entries and pages, of f32, and in the portable kernel are right", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::uint64_t seed = 0;
  for (const std::int64_t page : {0, 1, 16, 64})
    for (const std::int64_t q_len : {1, 5, 130}) {
      Shape shape{.batch = 3,
                  .q_heads = 8,
                  .kv_heads = 2,
                  .q_len = q_len,
                  .kv_len = 600,
                  .d = ++seed % 2 ? 64 : 128,
                  .dv = seed % 2 ? 64 : 128,
                  .dtype = seed % 3 ? DType::bf16 : DType::f16,
                  .used = {600, 130, 257},
                  .q_offsets = {470, 0, 127},
                  .page = page,
                  .holes = page > 1,
                  .seed = seed};
      if (!in_turn(seed, 4)) continue;
      INFO(shape.describe());
      const Parts of{.prob = seed % 2 ? square : gated_square, .mask = "kv <= q"};
      const auto kernel = q_len == 1 ? "decode_sm80" : seed % 3 ? "forward_sm90" : "forward_sm80";
      CHECK(wrong(of, shape, kernel) == "");
      if (q_len > 1) continue;
      shape.fp8_kv = true;
      CHECK(wrong(of, shape, kernel) == "");
    }
  for (const std::string& prob : {square, root, cube, gated_square, fourth_root})
    for (const std::string score : {"s", "50.0f * s", "s + 0.7f * f32(kv)", "20.0f * tanh(s / 20.0f)"}) {
      if (!in_turn(++seed, 4)) continue;
      INFO(prob << ", " << score);
      const Parts of{.prob = prob, .score = score, .mask = "kv <= q + 20"};
      CHECK(wrong(of, dense(64, DType::f32), "forward_f32_sm90") == "");
      for (const DType type : {DType::f32, DType::bf16, DType::f16})
        CHECK(wrong(of, dense(72, type), "forward_sm80") == "");
    }
}

TEST_CASE("what masked-out keys hold reaches no result of a power of p, nor do odd rows", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Inputs in = with_nan_keys();
  CHECK(wrong({.prob = square, .mask = "kv > 5 && kv < 129"}, in) == "");
  CHECK(wrong({.prob = gated_square, .mask = "kv != 3 && kv != 130 && kv != 269"}, in) == "");
  // Rows that keep such a value are NaN, and others are not.
  CHECK(wrong({.prob = root, .mask = "kv <= q"}, in) == "");
  CHECK(wrong_gradient({.prob = square, .mask = "kv > 5 && kv < 129"}, in) == "");
  CHECK(wrong_gradient({.prob = root, .mask = "kv <= q"}, in) == "");
  std::size_t nth = 0;
  for (Attention attention : odd_rows()) {
    if (!in_turn(nth++, 8)) continue;
    if (!attention.prob) attention.prob = [](Float p, At) { return p * p; };
    for (const std::string kernel : {"forward_sm90", "backward_sm90"}) {
      const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7}, kernel);
      const bool forward = kernel.starts_with("f");
      CHECK(compare(Subject(attention), inputs(dense(64)), std::span(&engine, 1),
                    {.forward = forward, .backward = !forward})
                .wrong == "");
    }
  }
}

TEST_CASE("gradients of powers of p, whose delta is a multiple of dO . O, are right", "[emulated]") {
  if (skipped_without_compiler()) return;
  gradients_are_right({{.prob = square, .mask = "kv <= q"},
                       {.prob = root},
                       {.prob = power_of_3_halves, .mask = "kv <= q && q - kv < 50"},
                       {.prob = cube, .mask = "kv <= q"},
                       {.prob = "where(p > 0.02f, p * p, 0.25f * p * p) * g[h]"},
                       {.prob = gated_square, .score = "20.0f * tanh(s / 20.0f)"},
                       {.prob = gated_square, .score = "s + g[h] * f32(kv - q)", .mask = "kv <= q"},
                       {.prob = square, .score = "s + g[h]", .mask = "kv <= q", .sink = "g[h]"},
                       {.prob = "p * p * r[h, q]", .score = "s + r[h, q] + bias[q, kv]", .mask = "kv <= q + 9"},
                       {.prob = "p * p * c[kv]", .mask = "doc[q] == doc[kv]"},
                       {.prob = gated_square, .score = "s + t[h, q - kv + 400]"}},
                      8);
}

TEST_CASE("gradients of squares are right in every order of the steps, and of odd lengths", "[emulated]") {
  if (skipped_without_compiler()) return;
  orders_are_right({.prob = square, .mask = "kv <= q"}, 8);
}

// ---- two walks ------------------------------------------------------------------------------------------------------

TEST_CASE("two walks over the keys are right for every width, type and mask", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const auto& [d, dv] : {std::pair{64, 64}, {72, 40}, {128, 128}, {192, 128}, {256, 256}})
    for (const std::string& prob : {sum, threshold, clip, odd})
      for (const std::string mask : {"true", "kv <= q", "q / 128 % 2 == 1 && kv <= q % 128", "(q * q) % 7 != kv % 5"}) {
        if (const std::size_t n = nth++; !in_turn(n + n / 8, 32)) continue;
        if (prob == threshold && d <= 64) continue;  // the portable kernel is faster
        Shape shape = nth % 3 ? dense(d, nth % 2 ? DType::bf16 : DType::f16) : packed(d);
        shape.dv = dv;
        INFO(prob << ", " << mask << ", " << shape.describe());
        CHECK(wrong({.prob = prob, .mask = mask}, shape, "forward_sm90", nth % 4 == 0) == "");
      }
}

TEST_CASE("two walks over the keys are right in tiles of every kind", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const std::string tile : {"m=64,n=64,stages=3,q_stages=2,own_o=1,issue_order=0,items=2",
                                 "m=64,n=64,stages=3,q_stages=1,own_o=2,issue_order=0,items=1",
                                 "m=192,n=80,stages=3,q_stages=1,own_o=2,issue_order=1,items=1",
                                 "m=128,n=64,stages=2,q_stages=1,own_o=0,issue_order=2,items=1",
                                 "m=128,n=48,stages=2,q_stages=2,own_o=1,issue_order=1,items=2"})
    for (const std::string mask : {"kv <= q + 20", "kv > q + 100", "q / 128 % 2 == 1 && kv <= q % 128"})
      for (const Shape& shape : {dense(64), packed(64)}) {
        if (const std::size_t n = nth++; !in_turn(n + n / 12, 12)) continue;
        INFO(tile << ", " << mask << ", " << shape.describe());
        CHECK(wrong({.prob = odd, .mask = mask}, shape, "forward_sm90:" + tile) == "");
      }
}

TEST_CASE("two walks over the keys read what scores hold in shared memory twice", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::string softcap = "20.0f * tanh(s / 20.0f)";
  std::size_t nth = 0;
  for (const Parts& of : std::vector<Parts>{{.prob = sum, .score = "s + t[h, q - kv + 400]"},
                                            {.prob = sum, .score = "s + bias[q, kv]"},
                                            {.prob = odd, .score = "s + 90.0f * c[kv]"},
                                            {.prob = clip, .score = softcap},
                                            {.prob = sum, .score = "s + g[h] * f32(kv - q)"},
                                            {.prob = odd, .score = "s + g[h]", .sink = "g[h]"}})
    for (const std::string mask : {"true", "kv <= q", "q / 90 == kv / 90"}) {
      const Parts with{of.prob, of.score, mask, of.sink};
      INFO(of.prob << ", " << of.score << ", " << mask);
      if (const std::size_t n = nth++; in_turn(n + n / 16, 16))
        for (const std::int64_t d : {64, 128}) CHECK(wrong(with, dense(d)) == "");
    }
}

TEST_CASE("two walks over the keys of entries and pages, and of few queries, are right", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::uint64_t seed = 0;
  for (const std::int64_t page : {0, 1, 8, 16, 64})
    for (const std::int64_t q_len : {5, 130}) {
      Shape shape{.batch = 3,
                  .q_heads = 8,
                  .kv_heads = 2,
                  .q_len = q_len,
                  .kv_len = 600,
                  .d = ++seed % 2 ? 64 : 128,
                  .dv = seed % 2 ? 64 : 128,
                  .dtype = seed % 3 ? DType::bf16 : DType::f16,
                  .used = {600, 130, 257},
                  .q_offsets = {470, 0, 127},
                  .page = page,
                  .holes = page > 1,
                  .seed = seed};
      if (!in_turn(seed, 12)) continue;
      INFO(shape.describe());
      CHECK(wrong({.prob = seed % 2 ? odd : clip, .mask = "kv <= q"}, shape) == "");
    }
}

TEST_CASE("blocks do not share the keys of few queries under a prob mod that needs their sum", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine({.arch = 90, .sms = 20, .seed = 1}, "forward_sm90");
  const Tensors tensors;
  const Shape shape{.batch = 1,
                    .q_heads = 4,
                    .kv_heads = 2,
                    .q_len = 20,
                    .kv_len = 3300,
                    .d = 64,
                    .dv = 64,
                    .dtype = DType::bf16,
                    .used = {3300},
                    .q_offsets = {3280}};
  CHECK(compare(Subject(tensors.attention({.prob = sum})), inputs(shape), std::span(&engine, 1), {.backward = false})
            .wrong == "");
}

TEST_CASE("what masked-out keys hold reaches no result of two walks, though prob(0) is not 0", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Inputs in = with_nan_keys();
  CHECK(wrong({.prob = odd, .mask = "kv > 5 && kv < 129"}, in) == "");
  CHECK(wrong({.prob = clip, .mask = "kv != 3 && kv != 130 && kv != 269"}, in) == "");
  // Rows that keep such a value are NaN, and others are not.
  CHECK(wrong({.prob = odd, .mask = "kv <= q"}, in) == "");
}

TEST_CASE("rows of two walks are as in the oracle where p underflow or are NaN, and where scores are far below",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7}, "forward_sm90");
  std::size_t nth = 0;
  for (Attention attention : odd_rows()) {
    if (!in_turn(nth++, 8)) continue;
    if (!attention.prob) attention.prob = [](Float p, At) { return p * p + 0.25f; };
    CHECK(compare(Subject(attention), inputs(dense(64)), std::span(&engine, 1), {.backward = false}).wrong == "");
  }
  for (const std::string score : {"s - 1e9f", "where(kv % 3 == 0, -1.0f / 0.0f, s)"})
    CHECK(wrong({.prob = "p * p + 0.25f", .score = score}, dense(64)) == "");
}

TEST_CASE("gradients of thresholds, whose delta is that of a multiple of p, are right in every order of the steps",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const Parts& of :
       std::vector<Parts>{{.prob = threshold, .mask = "kv <= q"},
                          {.prob = "where(p > 0.02f, p, 0.25f * p) * g[h]"},
                          {.prob = "max(p, 2.0f * p) - min(0.0f, p)", .score = "20.0f * tanh(s / 20.0f)"},
                          {.prob = threshold, .score = "s + g[h] * f32(kv - q)", .mask = "kv <= q"}})
    for (const std::int64_t d : {64, 128})
      for (const int order : {0, 1, 2, 3}) {
        // Order 3 is for multiples of s, and what has a slope has order 0.
        const bool only_0 = of.score.find("tanh") != std::string::npos, scaled = of.score == "s";
        if (const std::size_t n = nth++; order > (only_0 ? 0 : scaled ? 3 : 2) || !in_turn(n + n / 24, 24)) continue;
        INFO(of.prob << ", " << order);
        const std::string members = (d == 64 ? "m=128" : "m=64") + std::string(",order=") + std::to_string(order);
        CHECK(wrong_gradient(of, inputs(nth % 3 ? dense(d) : packed(d)), members) == "");
      }
}

TEST_CASE("gradients of mods whose delta needs a walk of its own are right, those of captured tensors too",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  gradients_are_right({{.prob = sum, .mask = "kv <= q"},
                       {.prob = odd, .mask = "kv <= q"},
                       {.prob = "(p * p + 0.25f * p) * g[h]", .score = "20.0f * tanh(s / 20.0f)"},
                       {.prob = clip, .mask = "kv > q + 100"},
                       {.prob = "p / (p + 0.1f) + 0.01f * c[kv]", .score = "s + g[h]", .sink = "g[h]"},
                       {.prob = "(p * p - p) * r[h, q]", .score = "s + r[h, q] + bias[q, kv]", .mask = "kv <= q + 9"},
                       {.prob = "(p * p + 0.25f * p) * g[h]", .score = "s + t[h, q - kv + 400]"}},
                      16);
}

TEST_CASE("gradients of sums of powers are right in every order of the steps, and of odd lengths", "[emulated]") {
  if (skipped_without_compiler()) return;
  orders_are_right({.prob = sum, .mask = "kv <= q"}, 16);
}

TEST_CASE("kernels beside Hopper's backward visit the tiles of its table", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const Parts& of : std::vector<Parts>{
           {.prob = sum, .mask = "doc[q] == doc[kv]"},
           {.prob = odd, .mask = "doc[q] == doc[kv] && kv <= q"},
           {.prob = "p * r[h, q]", .mask = "doc[q] == doc[kv]"},
           {.prob = "(p * p - p) * r[h, q]", .score = "s + r[h, kv]", .mask = "doc[q + 40] == doc[kv + h]"}})
    for (const std::string members : {"m=128,order=0", "m=64,order=0", "m=80,order=3"})
      for (const bool is_packed : {false, true}) {
        // A tile of 64 queries lies in two of the table if that has tiles of 80.
        const bool any_order = of.score == "s" && of.prob != odd;
        if (const std::size_t n = nth++; (members.starts_with("m=80") && !any_order) || !in_turn(n + n / 4, 12))
          continue;
        const Shape shape = is_packed ? packed(members.starts_with("m=128") ? 64 : 128)
                                      : dense(members.starts_with("m=128") ? 64 : 128);
        INFO(of.prob << ", " << of.mask << ", " << members << ' ' << shape.describe());
        CHECK(wrong_gradient(of, inputs(shape), members) == "");
      }
}

TEST_CASE("gradients have the same bits on any number of multiprocessors if a kernel sums delta", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Tensors tensors;
  const Subject subject(
      tensors.attention({.prob = "(p * p - p) * r[h, q] * g[h]", .score = "s + c[kv]", .mask = "doc[q] == doc[kv]"}));
  std::vector<std::map<std::string, std::vector<double>>> found;
  for (const int sms : {1, 5}) {
    const Engine engine = emulated_engine({.arch = 90, .sms = sms, .seed = static_cast<std::uint64_t>(sms)},
                                          "backward_sm90");
    auto& of = found.emplace_back();
    CHECK(compare(subject, inputs(dense(64)), std::span(&engine, 1),
                  {.forward = false, .observe = [&](const Observed& one) { of[one.name] = one.elements; }})
              .wrong == "");
  }
  CHECK(found[0].size() > 5);
  CHECK(found[0] == found[1]);
}

TEST_CASE("what masked-out keys hold reaches no gradient, of captured tensors neither, though prob(0) is not 0",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const Inputs in = with_nan_keys();
  std::size_t nth = 0;
  for (const std::string& prob : std::vector<std::string>{odd, threshold + " * g[h]", "p * p * g[h] + 0.0f * c[kv]",
                                                          "(p * p - p) * r[h, q]", sum})
    if (in_turn(nth++, 3)) CHECK(wrong_gradient({.prob = prob, .mask = "kv > 5 && kv < 129"}, in) == "");
  if (in_turn(nth++, 3)) CHECK(wrong_gradient({.prob = odd, .mask = "kv <= q"}, in) == "");
}

TEST_CASE("gradients of rows whose p underflow or are NaN are as in the oracle on Hopper's kernel", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7}, "backward_sm90");
  std::size_t nth = 0;
  for (Attention attention : odd_rows()) {
    if (!in_turn(nth++, 16)) continue;
    if (!attention.prob) attention.prob = [](Float p, At) { return p * p + 0.25f; };
    CHECK(compare(Subject(attention), inputs(dense(64)), std::span(&engine, 1), {.forward = false}).wrong == "");
  }
}

}  // namespace attune::tests
