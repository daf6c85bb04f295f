// tests/codegen/bound.test.cpp — peaks are those of data sheets; products, exponentials or memory bound a call
#include "codegen/choose/card.h"

#include <attune/text.h>

#include "compiler/lower.h"
#include "tests/catch.h"

using namespace attune;
using namespace attune::codegen;

namespace {

int specials(const char* score, const char* mask = "true") {
  const Text text;
  return special_functions(compiler::lower(Attention{.score = text.score(score), .mask = text.mask(mask)}).mod);
}

}  // namespace

TEST_CASE("peaks are those of data sheets", "[bound]") {
  const auto teraflops = [](int arch, const char* name) {
    return card(arch, name).flops(DType::bf16, false, Products::wgmma) / 1e12;
  };
  CHECK(teraflops(90, "NVIDIA H200") == Approx(989).epsilon(0.01));
  CHECK(teraflops(90, "NVIDIA H100 80GB HBM3") == Approx(989).epsilon(0.01));
  CHECK(teraflops(80, "NVIDIA A100-SXM4-80GB") == Approx(312).epsilon(0.01));
  CHECK(teraflops(86, "NVIDIA A10") == Approx(125).epsilon(0.01));
  CHECK(teraflops(89, "NVIDIA L40S") == Approx(362).epsilon(0.02));
  CHECK(teraflops(100, "NVIDIA B200") == Approx(2250).epsilon(0.01));
  CHECK(card(90, "NVIDIA H200").bytes_per_second == 4.8e12);
  CHECK(card(90, "NVIDIA H200").bytes == 141e9);
  CHECK(card(90, "H100").bytes == 80e9);
}

TEST_CASE("a card without a name is one of its capability, or of the one before", "[bound]") {
  CHECK(card(90).name == "H200");
  CHECK(card(80, "NVIDIA A100-SXM4-40GB").name == "A100");
  CHECK(card(121).arch == 120);
  CHECK(card(75).arch == 80);
}

TEST_CASE("special functions are counted for each pair", "[bound]") {
  CHECK(specials("s") == 1);
  CHECK(specials("s * 2.0f + f32(kv - q)") == 1);
  CHECK(specials("30.0f * tanh(s / 30.0f)") == 2);
  CHECK(specials("sigmoid(s) + exp(s)") == 4);
}

TEST_CASE("random numbers bound a call that has little else", "[bound]") {
  const Text text;
  const auto randoms = [&](const char* prob) {
    return random_numbers(compiler::lower(Attention{.prob = text.prob(prob)}).mod);
  };
  CHECK(randoms("p") == 0);
  CHECK(randoms("random(7) < 0.9f ? p : 0.0f") == 1);
  CHECK(randoms("p * (random(1) + random(2))") == 2);
  const Bound of_dropout = bound(card(90), {.visited = 1e9, .d = 64, .dv = 64, .randoms = 1, .bytes = 1e6});
  CHECK(of_dropout.by() == "random numbers");
  CHECK(of_dropout.random == Approx(1e9 * 15 / (64 * 132 * 1.83e9)));
}

TEST_CASE("the slowest bounds a call", "[bound]") {
  const Card& h200 = card(90);
  // A pair of width 128: 512 flop of products and one exp2.
  const Work wide{.visited = 1e9, .d = 128, .dv = 128, .bytes = 1e6};
  const Bound of_wide = bound(h200, wide);
  CHECK(of_wide.by() == "products");
  CHECK(of_wide.products == Approx(1e9 * 512 / 989e12).epsilon(0.01));
  CHECK(of_wide.exponentials == Approx(1e9 / (16 * 132 * 1.83e9)));
  CHECK(of_wide.seconds() == of_wide.products);
  // Width 32 has a quarter of them.
  CHECK(bound(h200, {.visited = 1e9, .d = 32, .dv = 32, .bytes = 1e6}).by() == "exponentials");
  CHECK(bound(h200, {.visited = 1e6, .d = 128, .dv = 128, .bytes = 1e9}).by() == "memory");
  // A product of f32 is three of TF32, or one.
  Work single{.dtype = DType::f32, .visited = 1e9, .d = 128, .dv = 128};
  CHECK(bound(h200, single).products == Approx(6 * of_wide.products));
  single.exact = false;
  CHECK(bound(h200, single).products == Approx(2 * of_wide.products));
}
