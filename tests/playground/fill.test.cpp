// tests/playground/fill.test.cpp — every word fills every shape with the documented values
#include "playground/fill.h"

#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;
using playground::Fill, playground::fill;

namespace {

std::vector<float> filled(const std::string& how, std::int64_t n, double limit = 0) {
  const auto out = Device::cpu().array<float>({n});
  Fill words;
  words.how = how, words.limit = limit;
  fill(out, words, "x");
  return {out.values().begin(), out.values().end()};
}

}  // namespace

TEST_CASE("each word fills tensors of every rank, and none at all", "[fill]") {
  for (const playground::FillWord& word : playground::fill_words()) {
    INFO(word.word);
    Fill how;
    how.how = word.word;
    fill(Device::cpu().array<float>({}), how, "x");
    fill(Device::cpu().array<std::int32_t>({0}), how, "x");
    fill(Device::cpu().array<bool>({3, 5}), how, "x");
    fill(Device::cpu().array<bf16>({2, 1, 3, 4}), how, "x");
  }
}

TEST_CASE("words mean what they say", "[fill]") {
  REQUIRE(filled("slopes", 8)[0] == 0.5f);
  REQUIRE(filled("slopes", 8)[7] == 1 / 256.0f);
  REQUIRE(filled("ramp", 4, 3) == std::vector<float>{0, 3, 6, 9});
  REQUIRE(filled("column", 9) == std::vector<float>{0, 1, 2, 0, 1, 2, 0, 1, 2});
  REQUIRE(filled("morton", 16) == std::vector<float>{0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15});
  const std::vector<float> documents = filled("documents", 100, 6);
  REQUIRE(std::is_sorted(documents.begin(), documents.end()));
  REQUIRE(std::set<float>(documents.begin(), documents.end()).size() <= 6);
  for (const float x : filled("lengths", 200, 5)) REQUIRE((x >= 1 && x <= 5));
  for (const float x : filled("indices", 200, 5)) REQUIRE((x >= 0 && x < 5));
  for (const float x : filled("buckets", 257)) REQUIRE((x >= 0 && x < 32));
  REQUIRE(filled("buckets", 257)[128] == 0);
  double sum = 0, squares = 0;
  for (const float x : filled("normal", 20000)) sum += x, squares += double{x} * x;
  REQUIRE(std::fabs(sum / 20000) < 0.03);
  REQUIRE(squares / 20000 == Approx(1).epsilon(0.05));
}

TEST_CASE("a walk through a tree enters a node before its children, and leaves it after them", "[fill]") {
  const std::vector<float> enter = filled("enter", 50), leave = filled("leave", 50);
  std::set<float> times(enter.begin(), enter.end());
  times.insert(leave.begin(), leave.end());
  REQUIRE(times.size() == 100);
  for (std::size_t i = 0; i < 50; ++i) {
    REQUIRE(enter[i] < leave[i]);
    for (std::size_t j = 0; j < 50; ++j)  // one contains the other, or they are apart
      REQUIRE(((enter[i] < enter[j]) == (leave[j] < leave[i]) || leave[i] < enter[j] || leave[j] < enter[i]));
    REQUIRE((enter[0] <= enter[i] && leave[i] <= leave[0]));
  }
}

TEST_CASE("a word that there is not is refused, with the nearest one", "[fill]") {
  const Error e = tests::refusal([] { filled("slope", 4); });
  REQUIRE(e.code == "bad-fill");
  tests::golden_error("bad-fill", e.what());
}
