// tests/runtime/engines/cover/tiles.test.cpp — covers against brute force: never wrong, and tight where they promise to
// be
#include "runtime/engines/cover/tiles.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "compiler/lower.h"
#include "runtime/engines/call.h"
#include "runtime/engines/oracle/oracle.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/numerics/masks.h"
#include "tests/sanitizers.h"

using namespace attune;
using runtime::Extent, runtime::Keep, runtime::Run;

namespace {

/// Every pair of one batch entry and head, evaluated one by one.
struct Brute {
  std::vector<char> kept;
  Extent e;

  Brute(const compiler::LoweredMod& lowered, const Extent& extent, std::int32_t b, std::int32_t h) : e(extent) {
    const ir::ReadCapture read = runtime::reader(lowered.slots.captures);
    const std::vector<double> params = compiler::args(lowered).params;
    const ir::Program program(lowered.mod.mask);
    ir::Program::Memory memory;
    ir::Env env;
    env.b = b;
    env.h = h;
    env.q_len = e.q_len;
    env.kv_len = e.kv_len;
    env.params = params;
    env.read = &read;
    for (env.q = e.q_offset; env.q < e.q_offset + e.q_len; ++env.q)
      for (env.kv = 0; env.kv < e.kv_len; ++env.kv) {
        program.run(env, memory);
        kept.push_back(program.result(0, memory) != 0);
      }
  }

  Keep tile(std::int32_t tq, std::int32_t tk) const {
    bool keeps = false, drops = false;
    for (std::int32_t q = tq * e.tile_q; q < std::min(e.q_len, (tq + 1) * e.tile_q); ++q)
      for (std::int32_t k = tk * e.tile_kv; k < std::min(e.kv_len, (tk + 1) * e.tile_kv); ++k)
        (kept[static_cast<std::size_t>(q * e.kv_len + k)] ? keeps : drops) = true;
    return keeps && drops ? Keep::Some : keeps ? Keep::All : Keep::None;
  }
  std::int64_t live() const { return std::count(kept.begin(), kept.end(), 1); }
};

struct Count {
  int wrong = 0, loose = 0, tiles = 0;
};

void compare(Keep said, Keep is, Count& count) {
  ++count.tiles;
  if (said != Keep::Some && said != is) ++count.wrong;
  if (said == Keep::Some && is != Keep::Some) ++count.loose;
}

Count compare(const runtime::TileLists& lists, const std::vector<Brute>& brutes) {
  Count count;
  const Extent& e = lists.extent;
  const std::int32_t rows = lists.along_q ? e.kv_tiles() : e.q_tiles(),
                     columns = lists.along_q ? e.q_tiles() : e.kv_tiles();
  for (std::int32_t b = 0; b < e.batch; ++b)
    for (std::int32_t h = 0; h < e.heads; ++h)
      for (std::int32_t row = 0; row < rows; ++row) {
        const std::int64_t list = ((lists.by_batch ? b : 0) * (lists.by_head ? e.heads : 1) + (lists.by_head ? h : 0)) *
                                      rows +
                                  row;
        std::vector<Keep> said(static_cast<std::size_t>(columns), Keep::None);
        for (std::int64_t i = lists.offsets[static_cast<std::size_t>(list)];
             i < lists.offsets[static_cast<std::size_t>(list + 1)]; ++i) {
          const Run& r = lists.runs[static_cast<std::size_t>(i)];
          REQUIRE((0 <= r.begin && r.begin < r.end && r.end <= columns));
          for (std::int32_t t = r.begin; t < r.end; ++t) said[static_cast<std::size_t>(t)] = r.keep;
        }
        const Brute& brute = brutes[static_cast<std::size_t>(b * e.heads + h)];
        for (std::int32_t t = 0; t < columns; ++t)
          compare(said[static_cast<std::size_t>(t)], lists.along_q ? brute.tile(t, row) : brute.tile(row, t), count);
      }
  return count;
}

constexpr std::array extents{
    Extent{.batch = 2, .heads = 4, .q_len = 100, .kv_len = 120, .tile_q = 16, .tile_kv = 16},
    Extent{.batch = 1, .heads = 2, .q_len = 97, .kv_len = 101, .tile_q = 32, .tile_kv = 8},
    Extent{.batch = 1, .heads = 1, .q_len = 53, .kv_len = 119, .q_offset = 40, .tile_q = 7, .tile_kv = 24},
    Extent{.batch = 1, .heads = 1, .q_len = 1, .kv_len = 1, .tile_q = 16, .tile_kv = 16},
    Extent{.batch = 1, .heads = 1, .q_len = 3, .kv_len = 120, .q_offset = 97, .tile_q = 64, .tile_kv = 64},
};

}  // namespace

TEST_CASE("covers agree with brute force over every mask, both ways along", "[tiles]") {
  std::size_t next = 0;
  for (const tests::MaskCase& mask : tests::masks()) {
    if (!tests::runs_case(next++, 7)) continue;
    const tests::Made made = tests::make(mask.mod, 3);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const runtime::Tiles tiles(lowered);
    for (const Extent& e : extents) {
      std::vector<Brute> brutes;
      std::int64_t live = 0;
      for (std::int32_t b = 0; b < e.batch; ++b)
        for (std::int32_t h = 0; h < e.heads; ++h) {
          brutes.emplace_back(lowered, e, b, h);
          live += brutes.back().live();
        }
      for (const bool along_q : {false, true}) {
        const Count count = compare(tiles.lists(e, along_q), brutes);
        INFO("mask " << mask.mod.name << ": " << mask.mod.mask << (along_q ? " along q, " : " along kv, ") << e.q_len
                     << " x " << e.kv_len << ", tiles " << e.tile_q << " x " << e.tile_kv << ", of " << count.tiles);
        CHECK(count.wrong == 0);
        CHECK(count.loose == 0);
      }
      if (const auto said = tiles.live(e)) {
        INFO("mask " << mask.mod.name << ": " << mask.mod.mask << ", " << e.q_len << " x " << e.kv_len);
        CHECK(*said == live);
      }
    }
  }
}

TEST_CASE("a tile is not called empty or full where f64 and f32 disagree on a pair of it", "[tiles]") {
  // 10 * 0.1f is 1 in f32, and more in f64. 0.1f * 10.0f is 1 in f32 alone.
  struct Case {
    const char* mask;
    std::int32_t q, kv;
  };
  const std::array cases{Case{"f32(q) * 0.1f > 1.0f", 10, 0}, Case{"f32(kv) * 0.1f * 10.0f == f32(kv)", 0, 1},
                         Case{"f32(q + kv) * 0.1f > 1.0f", 4, 6}};
  for (const Case& one : cases) {
    INFO(one.mask);
    const compiler::LoweredMod lowered = compiler::lower(
        tests::make({.name = "rounds", .mask = one.mask}, 3).attention);
    const runtime::Tiles tiles(lowered);
    const Extent pair{.q_len = 1, .kv_len = 1, .q_offset = one.q, .kv_offset = one.kv, .tile_q = 16, .tile_kv = 16};
    CHECK(tiles.keep(pair, 0, 0, 0, 0) == Keep::Some);
    std::vector<Run> row, column;
    tiles.row(pair, 0, 0, 0, row);
    tiles.column(pair, 0, 0, 0, column);
    CHECK(row == std::vector{Run{0, 1, Keep::Some}});
    CHECK(column == row);
  }
  // A condition on the head alone is evaluated as kernels do.
  const compiler::LoweredMod by_head = compiler::lower(
      tests::make({.name = "rounds", .mask = "f32(h) * 0.1f > 1.0f || kv <= q"}, 3).attention);
  const runtime::Tiles tiles(by_head);
  const Extent e{.heads = 11, .q_len = 32, .kv_len = 32, .tile_q = 16, .tile_kv = 16};
  CHECK(tiles.keep(e, 0, 10, 0, 1) == Keep::None);
}

TEST_CASE("lists are the same whatever the number of threads", "[tiles]") {
  for (const tests::MaskCase& mask : tests::masks()) {
    const tests::Made made = tests::make(mask.mod, 3);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const runtime::Tiles tiles(lowered);
    const runtime::TileLists one = tiles.lists(extents[0]);
    for (const int threads : {2, 8}) {
      const runtime::TileLists many = tiles.lists(extents[0], false, threads);
      INFO(mask.mod.name << " by " << threads);
      CHECK((many.runs == one.runs && many.offsets == one.offsets && many.asked == one.asked));
    }
  }
}

TEST_CASE("the work for a million tokens grows with the tiles visited", "[tiles]") {
  for (const char* text : {"kv <= q", "kv <= q && q - kv < 1024", "kv < 1000 || kv <= q", "abs(q - kv) <= 700"}) {
    const tests::Made made = tests::make({.name = text, .mask = text}, 3);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const Extent e{.q_len = 1 << 20, .kv_len = 1 << 20};
    const runtime::Tiles tiles(lowered);
    INFO(text);
    CHECK(tiles.lists(e).asked == e.q_tiles());
    CHECK(tiles.lists(e, true).asked == e.kv_tiles());
  }
}

TEST_CASE("tightness: tiles called Some that keep nothing or everything, by lists and by the verdict alone",
          "[tightness]") {
  std::string page =
      "Of all tiles, those called Some that keep nothing or everything: by the lists, and by the verdict alone that a\n"
      "kernel asks on the fly. No tile of any mask is wrongly called None or All. Five extents and tile shapes "
      "each.\n\n";
  page += fmt::format("{:<34} {:>8} {:>8} {:>8}\n", "mask", "tiles", "lists", "verdict");
  for (const tests::MaskCase& mask : tests::masks()) {
    const tests::Made made = tests::make(mask.mod, 3);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const runtime::Tiles tiles(lowered);
    const runtime::Summaries summaries(lowered.slots.captures, lowered.cover.summaries);
    const std::vector<double> params = compiler::args(lowered).params;
    const ir::Program verdict(std::array{lowered.cover.may_keep, lowered.cover.may_drop});
    ir::Program::Memory memory;
    Count lists, alone;
    for (const Extent& e : extents) {
      std::vector<Brute> brutes;
      ir::Env at;
      at.q_len = e.q_len;
      at.kv_len = e.kv_len;
      at.params = params;
      at.read = &summaries.read();
      for (at.b = 0; at.b < e.batch; ++at.b)
        for (at.h = 0; at.h < e.heads; ++at.h) {
          brutes.emplace_back(lowered, e, at.b, at.h);
          for (std::int32_t tq = 0; tq < e.q_tiles(); ++tq)
            for (std::int32_t tk = 0; tk < e.kv_tiles(); ++tk) {
              at.q_begin = e.q_offset + tq * e.tile_q;
              at.q_end = e.q_offset + std::min(e.q_len, (tq + 1) * e.tile_q);
              at.kv_begin = tk * e.tile_kv;
              at.kv_end = std::min(e.kv_len, (tk + 1) * e.tile_kv);
              verdict.run(at, memory);
              const Keep said = verdict.result(0, memory) == 0   ? Keep::None
                                : verdict.result(1, memory) == 0 ? Keep::All
                                                                 : Keep::Some;
              compare(said, brutes.back().tile(tq, tk), alone);
            }
        }
      lists.loose += compare(tiles.lists(e), brutes).loose;
    }
    page += fmt::format("{:<34} {:>8} {:>8} {:>8}{}\n", mask.mod.name, alone.tiles, lists.loose, alone.loose,
                        mask.closed ? "  closed form" : "");
    INFO(mask.mod.name);
    CHECK(alone.wrong == 0);
    if (mask.closed) CHECK(lists.loose == 0);
  }
  tests::golden("runtime/tightness", page);
}
