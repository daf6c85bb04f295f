// tests/runtime/engines/cover/pages.test.cpp — missing pages are refused where a query needs them, and only there
#include "runtime/engines/cover/tiles.h"

#include <attune/attune.h>

#include <array>
#include <limits>
#include <random>
#include <set>
#include <string>

#include <fmt/format.h>

#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/numerics/inputs.h"
#include "tests/numerics/masks.h"
#include "tests/refusal.h"
#include "tests/sanitizers.h"

using namespace attune;
using tests::Inputs, tests::Shape;

namespace {

/// Writes pages of all kinds: of the pool, shared by entries, none, and none in every way there is.
void fill(const Tensor& table, std::int64_t pool, double share_missing, std::mt19937& dice) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const std::array wrong{-1, static_cast<std::int32_t>(pool), -most - 1, most, -2};
  for (std::int64_t b = 0; b < table.shape[0]; ++b)
    for (std::int64_t i = 0; i < table.shape[1]; ++i) {
      const bool is_missing = std::uniform_real_distribution<double>()(dice) < share_missing;
      const auto of = static_cast<std::int64_t>(dice() % 1000);
      runtime::store(table, runtime::offset(table, b, i),
                     is_missing ? wrong[static_cast<std::size_t>(of % 5)] : static_cast<double>(of % pool));
    }
}

/// What must be refused, pair by pair: problems of the pages that a kept pair needs.
std::set<std::string> needed(const runtime::Call& call) {
  const Forward& asked = call.forward();
  std::set<std::string> out;
  runtime::OracleRows rows(call);
  for (std::int64_t b = 0; b < call.problem.batch; ++b)
    for (std::int64_t h = 0; h < call.problem.q_heads; ++h)
      for (std::int64_t i = 0; i < runtime::sequence(call.problem, b).q_len; ++i)
        for (const runtime::OracleRow::Pair& kept : rows.row(b, h, i).kept) {
          const std::int64_t page = kept.kv / asked.k.shape[2];
          const double number = runtime::load(asked.page_table, runtime::offset(asked.page_table, b, page));
          if (number < 0 || number >= static_cast<double>(asked.k.shape[0]))
            out.insert(fmt::format("page_table[{}, {}] is not a page of the pool", b, page));
        }
  return out;
}

/// Refusals and calls that are fine, with random tables.
std::pair<int, int> compare(const Attention& attention, Shape shape, unsigned seed) {
  std::pair<int, int> out;
  const compiler::LoweredMod lowered = compiler::lower(attention);
  std::mt19937 dice(seed);
  for (const double share : {0.05, 0.3, 1.0}) {
    const Inputs in = tests::inputs(shape);
    Forward call = in.forward();
    const tests::Placed o = tests::place(call.q.dtype,
                                         std::span(call.q.shape).first(static_cast<std::size_t>(call.q.rank)));
    call.o = o.tensor;  // d is dv
    fill(call.page_table, call.k.shape[0], share, dice);
    const compiler::Problem problem = compiler::check(lowered, call, {});
    const runtime::Call checked = runtime::call_of(lowered, call, problem);
    const std::set<std::string> wanted = needed(checked);
    const Error refused = tests::refusal([&] { runtime::refuse_missing_pages(checked); });
    INFO(shape.describe() << ", " << share << " of the pages missing: " << refused.what());
    CHECK(refused.code == (wanted.empty() ? "nothing" : "page-table"));
    if (!wanted.empty()) CHECK(wanted.contains(refused.problem));
    ++(wanted.empty() ? out.second : out.first);
  }
  return out;
}

const Device host = Device::cpu();

/// Two entries of four and three keys, in pages of two rows, and the last query of each.
struct Small {
  Array<float> q = host.array<float>({2, 2, 1, 4}), pool = host.array<float>({3, 1, 2, 4}),
               o = host.array<float>({2, 2, 1, 4});
  Array<int> page_table = host.array<int>({2, 4}), lengths = host.array<int>({2}), last = host.array<int>({2});

  std::string operator()(std::array<int, 8> table, Attention attention = {}) {
    std::ranges::copy(table, page_table.data());
    std::ranges::copy(std::array{4, 3}, lengths.data());
    std::ranges::copy(std::array{3, 2}, last.data());
    std::ranges::fill(o.values(), -7.0f);
    const Forward call{
        .q = q, .k = pool, .v = pool, .o = o, .kv_len = lengths, .page_table = page_table, .q_offsets = last};
    const std::string said = tests::refusal([&] { attention.run(call, Line{}); }).what();
    // A refused call has written nothing.
    CHECK((o.data()[0] == -7) == (said.find("nothing was refused") == std::string::npos));
    return said;
  }
};

bool is_fine(const std::string& said) { return said.find("nothing was refused") != std::string::npos; }

}  // namespace

TEST_CASE("a missing page is refused exactly where a kept pair needs it, by every mask", "[pages]") {
  int refused = 0, fine = 0;
  unsigned next = 0;
  for (const tests::MaskCase& mask : tests::masks()) {
    const unsigned nth = next++;
    if (!tests::runs_case(nth, 7)) continue;
    const tests::Made made = tests::make(mask.mod, 3);
    for (const std::int64_t page : {1, 5, 16, 200}) {
      Shape shape{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = nth % 2 ? 1 : 13, .kv_len = 70, .d = 2, .dv = 2};
      shape.used = {70, 31};
      shape.q_offsets = {57, nth % 3 ? 18 : 0};
      shape.page = page;
      shape.seed = nth + 1;
      INFO("mask " << mask.mod.name << ": " << mask.mod.mask);
      const auto [r, f] = compare(made.attention, shape, nth * 7 + static_cast<unsigned>(page));
      refused += r;
      fine += f;
    }
  }
  CHECK((refused > 10 && fine > 10));
}

TEST_CASE("missing pages of packed queries, of entries without keys or queries, and of one head alone", "[pages]") {
  Shape shape{.q_heads = 4, .kv_heads = 2, .kv_len = 90, .d = 2, .dv = 2, .q_lens = {1, 30, 0, 9}};
  shape.used = {90, 30, 60, 0};
  shape.q_offsets = {89, 0, 0, 0};
  const auto visible = host.array<bool>({4, 100}, "visible");
  std::mt19937 dice(5);
  for (std::int64_t i = 0; i < 400; ++i) visible.data()[i] = dice() % 40 == 0;
  const std::array<Attention, 5> attentions{
      Attention{}, Attention{.mask = [](At at) { return at.kv <= at.q && at.q - at.kv < 9; }},
      Attention{.mask = [](At at) { return at.head == 3 && at.kv >= 40; }},
      Attention{.mask = [=](At at) { return visible(at.batch, at.kv); }}, Attention{.score = [](Float s, At at) {
        return where(at.kv % 16 < 8, s, -std::numeric_limits<float>::infinity());
      }}};
  int refused = 0, fine = 0;
  for (const std::int64_t page : {1, 4, 8, 33})
    for (const Attention& attention : attentions)
      for (unsigned seed = 0; seed < 4; ++seed) {
        shape.page = page;
        const auto [r, f] = compare(attention, shape, seed);
        refused += r;
        fine += f;
      }
  CHECK((refused > 10 && fine > 10));
}

TEST_CASE("a query's missing page is an Error of every engine of the host, and others may hold anything", "[pages]") {
  Small small;
  constexpr int huge = 1 << 30;
  const Mask late = [](At at) { return at.kv >= 2; };
  for (const Target target : {Target::oracle, Target::cpu, Target::automatic}) {
    // Behind the end: nothing, garbage, and pages of the other entry; pages are shared.
    CHECK(is_fine(small({0, 1, -1, huge, 1, 0, -huge, 3}, {.target = target})));
    CHECK(is_fine(small({2, 2, 2, 2, 2, 2, 2, 2}, {.target = target})));
    CHECK(is_fine(small({-1, 1, -1, -1, 3, 0, -1, -1}, {.mask = late, .target = target})));
    tests::golden_error("page-table.missing", small({0, 1, 5, 5, 2, -1, 5, 5}, {.target = target}));
    tests::golden_error("page-table.beyond", small({0, 1, 5, 5, 3, 0, 5, 5},
                                                   {.mask = [](At at) { return at.kv <= at.q; }, .target = target}));
    CHECK_FALSE(is_fine(small({-1, 1, -1, -1, 3, huge, -1, -1}, {.mask = late, .target = target})));
  }
}
