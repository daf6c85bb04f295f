// tests/runtime/engines/cover/summary.test.cpp — least, greatest and runs, against a walk through the elements
#include "runtime/engines/cover/tiles.h"

#include <algorithm>
#include <array>

#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"

using namespace attune;
using compiler::Summary;

TEST_CASE("the least and the greatest of any box, clamped, in ranks 1 to 3 and any strides", "[summary]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    ir::Random random(seed);
    const std::int64_t n = 1 + random.below(seed % 2 ? 600 : 30), rows = 1 + random.below(40), planes = 3;
    std::vector<std::int32_t> data(static_cast<std::size_t>(planes * rows * n));
    for (std::int32_t& x : data) x = static_cast<std::int32_t>(random.next());
    const bool turned = seed % 3 == 0, repeated = seed % 5 == 0;
    const Tensor t(turned ? data.data() + n - 1 : data.data(), DType::i32, {planes, rows, n},
                   {repeated ? 0 : rows * n, n, turned ? -1 : 1});
    const runtime::Summaries made(std::array{t},
                                  std::array{Summary{Summary::Of::Least, 0}, Summary{Summary::Of::Greatest, 0}});
    for (int i = 0; i < 40; ++i) {
      std::array<std::int32_t, 6> box{};
      for (std::size_t d = 0; d < 3; ++d) {
        const auto extent = static_cast<std::uint32_t>(t.shape[d]);
        box[2 * d] = static_cast<std::int32_t>(random.below(extent + 4)) - 2;
        box[2 * d + 1] = box[2 * d] + static_cast<std::int32_t>(random.below(extent + 1));
      }
      std::int32_t least = INT32_MAX, most = INT32_MIN;
      const auto in = [&](std::int64_t at, std::size_t d) { return std::clamp<std::int64_t>(at, 0, t.shape[d] - 1); };
      for (std::int64_t p = in(box[0], 0); p <= in(box[1], 0); ++p)
        for (std::int64_t r = in(box[2], 1); r <= in(box[3], 1); ++r)
          for (std::int64_t c = in(box[4], 2); c <= in(box[5], 2); ++c) {
            const std::int32_t x = static_cast<const std::int32_t*>(
                t.data)[p * t.strides[0] + r * t.strides[1] + c * t.strides[2]];
            least = std::min(least, x);
            most = std::max(most, x);
          }
      INFO("seed " << seed);
      CHECK(made.read()(1, box) == least);
      CHECK(made.read()(2, box) == most);
    }
  }
}

TEST_CASE("runs of equal elements, and whether a line is sorted, and none in an empty tensor", "[summary]") {
  std::vector<std::int16_t> data{4, 4, 7, 7, 7, 2};
  const std::array wanted{Summary{Summary::Of::Sorted, 0}, Summary{Summary::Of::RunFirst, 0},
                          Summary{Summary::Of::RunLast, 0}, Summary{Summary::Of::Least, 0}};
  const Tensor all(data.data(), DType::i16, {6}), sorted(data.data(), DType::i16, {5}),
      none(data.data(), DType::i16, {0});
  const auto ask = [&](const Tensor& t, std::uint32_t slot, std::vector<std::int32_t> index) {
    return runtime::Summaries(std::array{t}, wanted).read()(slot, index);
  };
  CHECK(ask(all, 1, {}) == 0);
  CHECK(ask(sorted, 1, {}) == 1);
  CHECK((ask(all, 2, {3}) == 2 && ask(all, 3, {3}) == 4));
  CHECK((ask(all, 2, {-5}) == 0 && ask(all, 3, {0}) == 1));
  CHECK((ask(sorted, 2, {99}) == 2 && ask(sorted, 3, {4}) == compiler::after_all));
  CHECK((ask(none, 2, {0}) == 0 && ask(none, 3, {0}) == compiler::after_all));
  CHECK(ask(none, 4, {0, 3}) == INT32_MIN);
}
