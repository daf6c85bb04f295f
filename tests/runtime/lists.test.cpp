// tests/runtime/lists.test.cpp — covers made by hand: there and back, against rows, and refused when malformed
#include "runtime/lists.h"

#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include <attune/error.h>

#include "tests/catch.h"
#include "tests/golden.h"

using namespace attune;
using namespace attune::runtime;

namespace {

constexpr Extent small{.batch = 2, .heads = 1, .q_len = 10, .kv_len = 12, .tile_q = 4, .tile_kv = 5};

Tensor i32s(std::vector<std::int32_t>& values, std::initializer_list<std::int64_t> shape) {
  return Tensor(values.data(), DType::i32, shape);
}

struct Blocks {
  std::vector<std::int32_t> counts{2, 0, 1}, indices{2, 0, 7, 9, 9, 9, 1, 9, 9}, full_counts{1, 3, 0},
      full_indices{1, 0, 0, 2, 1, 0, 0, 0, 0};
  BlockLists lists{i32s(counts, {1, 1, 3}), i32s(indices, {1, 1, 3, 3}), i32s(full_counts, {1, 1, 3}),
                   i32s(full_indices, {1, 1, 3, 3})};
};

struct Rows {
  std::vector<std::int32_t> begin{0, 0, 0, 0, 5, 5, 5, 5, 3, 0}, end{12, 12, 12, 12, 10, 10, 10, 10, 3, 1};
  RowIntervals intervals{{{i32s(begin, {1, 1, 10}), i32s(end, {1, 1, 10})}}};
};

template <class F>
void refused(const char* name, F call) {
  try {
    call();
  } catch (const Error& e) {
    tests::golden_error(name, e.what());
    return;
  }
  FAIL("not refused: " << name);
}

}  // namespace

TEST_CASE("block lists in any order become runs, and come back", "[lists]") {
  Blocks made;
  const TileLists lists = from_blocks(made.lists, small);
  CHECK(lists.offsets == std::vector<std::int64_t>{0, 3, 4, 5});
  CHECK(lists.runs ==
        std::vector<Run>{
            {0, 1, Keep::Some}, {1, 2, Keep::All}, {2, 3, Keep::Some}, {0, 3, Keep::All}, {1, 2, Keep::Some}});
  CHECK((lists.some == 6 && lists.all == 8 && lists.total == 18));
  OwnedBlocks owned = to_blocks(lists);
  const TileLists again = from_blocks(owned.view(), small);
  CHECK((again.runs == lists.runs && again.offsets == lists.offsets));
}

TEST_CASE("intervals of rows become tiles, cut short at the end", "[lists]") {
  Rows made;
  const TileLists lists = from_intervals(made.intervals, small);
  CHECK(lists.offsets == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(lists.runs == std::vector<Run>{{0, 3, Keep::All}, {1, 2, Keep::All}, {0, 1, Keep::Some}});
}

TEST_CASE("one or two intervals a row agree with brute force, shared or not by batches and heads", "[lists]") {
  std::mt19937 dice(5);
  for (int round = 0; round < 60; ++round) {
    const auto pick = [&](int most) { return static_cast<std::int32_t>(dice() % static_cast<unsigned>(most)); };
    const Extent e{.batch = 3,
                   .heads = 2,
                   .q_len = 1 + pick(20),
                   .kv_len = 1 + pick(25),
                   .tile_q = 1 + pick(6),
                   .tile_kv = 1 + pick(6)};
    const std::int64_t batch = pick(2) ? 3 : 1, heads = pick(2) ? 2 : 1;
    const std::size_t rows = static_cast<std::size_t>(batch * heads * e.q_len);
    std::vector<std::vector<std::int32_t>> begin(2, std::vector<std::int32_t>(rows)), end = begin;
    RowIntervals intervals;
    for (std::size_t n = 0; n < 1 + static_cast<std::size_t>(pick(2)); ++n) {
      for (std::size_t i = 0; i < rows; ++i) {
        begin[n][i] = pick(e.kv_len + 1);
        end[n][i] = begin[n][i] + pick(e.kv_len - begin[n][i] + 1);
      }
      intervals.all.push_back({i32s(begin[n], {batch, heads, e.q_len}), i32s(end[n], {batch, heads, e.q_len})});
    }
    const TileLists lists = from_intervals(intervals, e);
    REQUIRE(lists.by_batch == (batch > 1));
    REQUIRE(lists.by_head == (heads > 1));
    std::size_t list = 0;
    for (std::int64_t bh = 0; bh < batch * heads; ++bh)
      for (std::int32_t tq = 0; tq < e.q_tiles(); ++tq, ++list)
        for (std::int32_t tk = 0; tk < e.kv_tiles(); ++tk) {
          bool keeps = false, drops = false;
          for (std::int32_t q = tq * e.tile_q; q < std::min(e.q_len, (tq + 1) * e.tile_q); ++q)
            for (std::int32_t kv = tk * e.tile_kv; kv < std::min(e.kv_len, (tk + 1) * e.tile_kv); ++kv) {
              const auto row = static_cast<std::size_t>(bh * e.q_len + q);
              bool in = false;
              for (std::size_t n = 0; n < intervals.all.size(); ++n) in |= begin[n][row] <= kv && kv < end[n][row];
              (in ? keeps : drops) = true;
            }
          Keep said = Keep::None;
          for (std::int64_t i = lists.offsets[list]; i < lists.offsets[list + 1]; ++i) {
            const Run& r = lists.runs[static_cast<std::size_t>(i)];
            if (r.begin <= tk && tk < r.end) said = r.keep;
          }
          INFO("round " << round << ", batch and head " << bh << ", tile " << tq << ", " << tk);
          REQUIRE(said == (keeps && drops ? Keep::Some : keeps ? Keep::All : Keep::None));
        }
  }
}

TEST_CASE("malformed lists and intervals are refused", "[lists]") {
  const auto blocks = [](const char* name, const std::function<void(Blocks&)>& spoil) {
    Blocks made;
    spoil(made);
    refused(name, [&] { from_blocks(made.lists, small); });
  };
  blocks("block-list-type", [](Blocks& b) { b.lists.counts.dtype = DType::i64; });
  blocks("block-list-type.missing", [](Blocks& b) { b.lists.full_indices = {}; });
  blocks("block-list-shape", [](Blocks& b) { b.lists.indices = i32s(b.indices, {1, 3, 3, 1}); });
  blocks("block-list-count", [](Blocks& b) { b.counts[0] = 4; });
  blocks("block-list-count.negative", [](Blocks& b) { b.full_counts[2] = -1; });
  blocks("block-list-index", [](Blocks& b) { b.counts[0] = 3; });
  blocks("block-list-twice", [](Blocks& b) { b.indices[1] = 2; });
  blocks("block-list-twice.both", [](Blocks& b) { b.indices[1] = 1; });
  const auto rows = [](const char* name, const std::function<void(Rows&)>& spoil) {
    Rows made;
    spoil(made);
    refused(name, [&] { from_intervals(made.intervals, small); });
  };
  rows("interval-count", [](Rows& r) { r.intervals.all.clear(); });
  rows("interval-type", [](Rows& r) { r.intervals.all[0].end.dtype = DType::f32; });
  rows("interval-shape", [](Rows& r) { r.intervals.all[0].end = i32s(r.end, {1, 2, 5}); });
  rows("interval-order", [](Rows& r) { r.begin[4] = 11; });
  rows("interval-range", [](Rows& r) { r.end[2] = 13; });
}
