// tests/runtime/engines/cuda/order.test.cpp — every tile of packed sequences is taken once, those with most keys first
#include "runtime/engines/cuda/query_tiles.h"

#include <set>
#include <utility>

#include "tests/catch.h"

namespace attune::runtime::cuda {
namespace {

using Starts = std::vector<std::int64_t>;

std::vector<std::pair<int, int>> pairs(const std::vector<int>& order) {
  std::vector<std::pair<int, int>> out;
  for (std::size_t i = 0; i + 1 < order.size(); i += 2) out.emplace_back(order[i], order[i + 1]);
  return out;
}

}  // namespace

TEST_CASE("every tile of packed sequences is taken once", "[order]") {
  const Starts q{0, 0, 1, 129, 400, 400, 1000}, kv{0, 7, 7, 200, 201, 900, 901};
  for (const int m : {64, 128, 192})
    for (const bool masked : {false, true}) {
      const auto order = pairs(packed_order(q, kv, m, masked));
      CHECK(static_cast<std::int64_t>(order.size()) == packed_tiles(q, m));
      std::set<std::pair<int, int>> all;
      for (std::size_t b = 0; b + 1 < q.size(); ++b)
        for (std::int64_t first = q[b]; first < q[b + 1]; first += m)
          all.emplace(static_cast<int>(b), static_cast<int>((first - q[b]) / m));
      CHECK(std::set(order.begin(), order.end()) == all);
    }
}

TEST_CASE("there are places for all tiles, whatever the lengths are", "[order]") {
  for (const Starts& starts :
       {Starts{0}, Starts{0, 0}, Starts{0, 1, 2, 3, 4}, Starts{0, 127, 255, 384, 1000}, Starts{0, 64, 64, 1000, 1001}})
    for (const int queries : {8, 64, 128}) {
      const auto sequences = static_cast<std::int64_t>(starts.size()) - 1;
      // As the kernel counts: the places of sequence b begin at starts[b] / queries + b.
      std::int64_t next = 0;
      for (std::int64_t b = 0; b < sequences; ++b) {
        const auto i = static_cast<std::size_t>(b);
        CHECK(starts[i] / queries + b >= next);
        next = starts[i] / queries + b + (starts[i + 1] - starts[i] + queries - 1) / queries;
      }
      CHECK(packed_places(starts.back(), sequences, queries) >= next);
    }
}

TEST_CASE("under a mask the last tiles of long sequences come first, without one those of many keys", "[order]") {
  const Starts q{0, 128, 512, 768}, kv{0, 1000, 1384, 1640};
  CHECK(pairs(packed_order(q, kv, 128, true)) ==
        std::vector<std::pair<int, int>>{{1, 2}, {1, 1}, {2, 1}, {1, 0}, {2, 0}, {0, 0}});
  CHECK(pairs(packed_order(q, kv, 128, false)) ==
        std::vector<std::pair<int, int>>{{0, 0}, {1, 0}, {1, 1}, {1, 2}, {2, 0}, {2, 1}});
}

TEST_CASE("no sequences, and empty ones, have no tiles", "[order]") {
  CHECK(packed_order(Starts{0}, Starts{0}, 128, true).empty());
  CHECK(packed_order(Starts{0, 0, 0}, Starts{0, 5, 9}, 128, true).empty());
  CHECK(packed_tiles(Starts{0, 0, 0}, 128) == 0);
}

}  // namespace attune::runtime::cuda
