// tests/runtime/engines/picture/draw.test.cpp — the numbers of a picture are the oracle's, and its text is well formed
#include "runtime/engines/picture/draw.h"

#include <attune/text.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <random>
#include <set>

#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;

namespace {

compiler::LoweredMod lowered(const std::string& score, const std::string& mask) {
  const Text text;
  return compiler::lower(Attention{.score = text.score(score), .mask = text.mask(mask)});
}

Array<float> normal(std::initializer_list<std::int64_t> shape, unsigned seed) {
  auto out = Device::cpu().array<float>(shape);
  std::mt19937 random(seed);
  for (float& x : out.values()) x = std::normal_distribution<float>()(random);
  return out;
}

}  // namespace

TEST_CASE("a picture's probabilities are those of the attention", "[picture]") {
  constexpr int n = 24, m = 31, d = 8;
  const auto q = normal({2, 4, n, d}, 1), k = normal({2, 2, m, d}, 2), v = Device::cpu().array<float>({2, 2, m, m}),
             o = Device::cpu().array<float>({2, 4, n, m});
  for (int b = 0; b < 4; ++b)  // o = p: each key's value is its own unit vector
    for (int j = 0; j < m; ++j) v.data()[(b * m + j) * m + j] = 1;
  const Text text;
  const Attention attention{
      .score = text.score("s - 0.2f * f32(abs(q - kv))"), .mask = text.mask("kv <= q + 3"), .target = Target::oracle};
  attention(q, k, v, o);
  const runtime::View view{.extent = {.batch = 2, .heads = 4, .q_len = n, .kv_len = m}, .b = 1, .h = 3, .q = q, .k = k};
  const compiler::LoweredMod mod = compiler::lower(attention);
  const auto [score, prob, grad] = runtime::numbers(mod, compiler::args(mod), view);
  REQUIRE((prob.rows == n && prob.columns == m && score.values.size() == std::size_t{n * m}));
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < m; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * m + j);
      INFO(i << ", " << j);
      REQUIRE(std::isnan(prob.values[at]) == (j > i + 3));
      if (j <= i + 3) REQUIRE(prob.values[at] == Approx(o.data()[((1 * 4 + 3) * n + i) * m + j]).margin(1e-6));
    }
}

TEST_CASE("cells of many pairs hold the mean of all, and ignore what is removed", "[picture]") {
  const runtime::View view{.extent = {.q_len = 300, .kv_len = 500}};
  const auto [score, prob, grad] = runtime::numbers(lowered("kv == 7 ? nan : s + f32(kv)", "kv != 7 && q < 200"), {},
                                                    view);
  REQUIRE((prob.rows == 96 && prob.columns == 96));
  for (int r = 0; r < 96; ++r) {
    double sum = 0;
    for (int c = 0; c < 96; ++c) {
      const double p = prob.values[static_cast<std::size_t>(r * 96 + c)];
      REQUIRE(std::isnan(p) == (r >= 64));
      sum += p * ((c + 1) * 500 / 96 - c * 500 / 96);
    }
    if (r < 64) REQUIRE(sum == Approx(1));
  }
  // Cells of two keys are no paler than cells of three.
  for (const double p : runtime::numbers(lowered("s", "true"), {}, {.extent = {.q_len = 4, .kv_len = 256}}).prob.values)
    REQUIRE(p == Approx(1.0 / 256));
}

TEST_CASE("cells that touch share an edge, so that nothing shines through between them", "[picture]") {
  runtime::View view{.extent = {.q_len = 256, .kv_len = 256}};
  view.score = view.plain = true;
  const std::string drawn = runtime::draw(lowered("s - 0.5f * f32(abs(q - kv))", "true"), {}, view);
  for (const std::string& axis : {std::string("MH"), std::string(" V")}) {
    std::set<double> edges;
    for (std::size_t at = drawn.find(" d=\"M"); (at = drawn.find_first_of(axis, at)) != std::string::npos; ++at)
      if (std::isdigit(static_cast<unsigned char>(drawn[at + 1]))) edges.insert(std::strtod(&drawn[at + 1], nullptr));
    REQUIRE(edges.size() >= 90);
    for (auto edge = edges.begin(), next = std::next(edge); next != edges.end(); edge = next++)
      REQUIRE(*next - *edge > 0.5);
  }
}

TEST_CASE("a picture has a panel for each thing asked, and never a number that is none", "[picture]") {
  for (const char* score : {"s", "0.0f / 0.0f", "inf", "-inf", "s + 1e30f * f32(kv - q)"})
    for (const char* mask : {"true", "false", "kv <= q", "random(3) < 0.5f"}) {
      runtime::View view{.extent = {.q_len = 40, .kv_len = 90, .q_offset = 5, .tile_q = 16, .tile_kv = 7}};
      view.tiles = view.score = view.prob = view.grad = true;
      const std::string drawn = runtime::draw(lowered(score, mask), {}, view);
      INFO(score << ", " << mask << "\n" << drawn);
      REQUIRE(drawn.starts_with("<svg "));
      REQUIRE(drawn.ends_with("</svg>\n"));
      REQUIRE(drawn.find("=\"nan") == std::string::npos);
      REQUIRE(drawn.find("prefers-color-scheme:dark") != std::string::npos);
      std::size_t panels = 0;
      for (std::size_t at = 0; (at = drawn.find("<g ", at)) != std::string::npos; ++at) ++panels;
      REQUIRE(panels == 4);
      view.plain = true;
      const std::string plain = runtime::draw(lowered(score, mask), {}, view);
      REQUIRE((plain.size() < drawn.size() && plain.find("<text") == std::string::npos && plain.ends_with("</svg>\n")));
    }
}

TEST_CASE("pictures that take too long, or have a scale that is no number, are refused", "[picture]") {
  const auto refused = [](const std::string& name, const std::string& mask, const runtime::View& view) {
    tests::golden_error(name, tests::refusal([&] { runtime::draw(lowered("s", mask), {}, view); }).what());
  };
  const runtime::Extent pairs{.q_len = 1 << 29, .kv_len = 1 << 29, .tile_q = 1, .tile_kv = 1};
  refused("bad-size.picture-rows", "kv <= q", {.extent = pairs});
  const runtime::Extent many{.q_len = 1 << 20, .kv_len = 1 << 20};
  refused("bad-size.picture-tiles", "q * kv % 7 == 0", {.extent = many});
  CHECK(runtime::draw(lowered("s", "kv <= q"), {}, {.extent = many}).starts_with("<svg"));
  refused("bad-scale.picture", "kv <= q", {.extent = {.q_len = 8, .kv_len = 8}, .scale = 1e39});
  for (const double scale : std::array<double, 2>{NAN, INFINITY})
    CHECK(tests::refusal([&] {
            runtime::draw(lowered("s", "kv <= q"), {}, {.extent = {.q_len = 8, .kv_len = 8}, .scale = scale});
          }).code == "bad-scale");
}

TEST_CASE("q and k that do not fit a picture are refused", "[picture]") {
  const auto q = normal({1, 4, 8, 16}, 1), k = normal({1, 2, 8, 12}, 2);
  const Error e = tests::refusal(
      [&] { runtime::numbers(lowered("s", "true"), {}, {.extent = {.q_len = 8, .kv_len = 8}, .q = q, .k = k}); });
  REQUIRE(e.code == "picture-qk");
  tests::golden_error("picture-qk", e.what());
  REQUIRE(tests::refusal([&] {
            runtime::numbers(lowered("s", "true"), {}, {.extent = {.q_len = 96, .kv_len = 1 << 20}});
          }).code == "bad-size");
}
