// tests/runtime/engines/cuda/query_tiles.test.cpp — how many tiles of queries a call has, dense and packed, and memory
// laid out once
#include "runtime/engines/cuda/query_tiles.h"

#include <array>
#include <cstdint>

#include "runtime/engines/workspace.h"
#include "tests/catch.h"

using namespace attune;
using compiler::Layout, compiler::Problem;
using runtime::cuda::QueryTiles, runtime::cuda::QueryTiling, runtime::cuda::section_of;

namespace {

Problem dense(std::int64_t batch, std::int64_t q_heads, std::int64_t group, std::int64_t q_len) {
  return {.batch = batch,
          .q_heads = q_heads,
          .kv_heads = q_heads / group,
          .group = group,
          .q = {.length = q_len},
          .kv = {.length = 1000},
          .d = 64,
          .dv = 64};
}

Problem packed(bool on_device) {
  Problem p = dense(3, 4, 1, 300);
  p.q = {.layout = Layout::packed, .length = 300, .total = 420, .starts = {0, 300, 300, 420}};
  p.kv = p.q;
  if (on_device) p.q.starts = p.kv.starts = {};
  return p;
}

}  // namespace

TEST_CASE("a dense call has the tiles of every set of heads of every batch entry", "[query_tiles]") {
  CHECK(QueryTiles({.queries = 128}, dense(2, 4, 1, 129)).count == 2 * 4 * 2);
  // Heads that share tiles are one set; the last set of a key head may be short.
  CHECK(QueryTiles({.queries = 16, .heads = 8}, dense(2, 12, 12, 1)).sets == 2);
  CHECK(QueryTiles({.queries = 16, .heads = 8}, dense(2, 12, 12, 1)).count == 2 * 2);
}

TEST_CASE("packed tiles are counted by their starts where the host knows them, else by the places they may take",
          "[query_tiles]") {
  const QueryTiles known({.queries = 128, .persistent = true}, packed(false));
  CHECK(known.ordered);
  CHECK(known.order == 3 + 0 + 1);
  CHECK(known.count == 4 * 4);
  const QueryTiles unknown({.queries = 128, .persistent = true}, packed(true));
  CHECK_FALSE(unknown.ordered);
  CHECK(unknown.order == 420 / 128 + 3);
  // A block for each tile of the longest sequence, of each.
  CHECK(QueryTiles({.queries = 128}, packed(false)).count == 4 * 3 * 3);
}

TEST_CASE("a section is at least one group of heads and at most all of them", "[query_tiles]") {
  const Problem p = dense(2, 16, 4, 500);
  const QueryTiling tiling{.queries = 128};
  const QueryTiles of(tiling, p);
  CHECK(section_of(of, p, 1, 2) == 4);
  CHECK(section_of(of, p, std::int64_t{1} << 40, 2) == 32);
  // Two heads of 1000 keys fit half of the cache: keys and values, 64 numbers of two bytes each.
  CHECK(section_of(of, p, 4 * 1000 * 128 * 2, 2) == 8);
}

TEST_CASE("a section of persistent blocks has one group of heads of short sequences, few of long ones",
          "[query_tiles]") {
  const QueryTiling tiling{.queries = 128, .persistent = true};
  const auto section = [&](const Problem& p, std::int64_t cache) { return section_of({tiling, p}, p, cache, 2); };
  constexpr std::int64_t cache = 50 << 20;
  CHECK(section(dense(2, 16, 1, 1024), cache) == 1);
  CHECK(section(dense(2, 16, 4, 1024), cache) == 4);
  // Keys and values of a head: 128 numbers of two bytes for each of 1000 positions.
  CHECK(section(dense(2, 16, 1, 2048), 12 * 5 * 256000) == 5);
  CHECK(section(dense(2, 16, 1, 2048), 1) == 2);
  CHECK(section(dense(2, 16, 1, 16384), 1) == 1);
  CHECK(section(dense(2, 16, 4, 2048), 1) == 4);
  CHECK(section(dense(1, 1, 1, 2048), cache) == 1);
  // Tiles of packed sequences are ordered by their lengths.
  const Problem p = packed(false);
  CHECK(section(p, cache) == section_of({{.queries = 128}, p}, p, cache, 2));
}

TEST_CASE("regions of a workspace are aligned, do not overlap, and are null if empty", "[query_tiles]") {
  runtime::WorkspaceLayout space;
  const auto ints = space.take<int>(3);
  const auto none = space.take<double>(0);
  const auto bytes = space.take<std::byte>(65);
  CHECK(space.bytes() == 64 + 128);
  alignas(runtime::alignment) std::array<std::byte, 192> memory{};
  CHECK(reinterpret_cast<std::byte*>(ints.in(memory.data())) == memory.data());
  CHECK(none.in(memory.data()) == nullptr);
  CHECK(bytes.in(memory.data()) == memory.data() + 64);
}
