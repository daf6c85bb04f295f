// tests/runtime/ranks/plan/plan.test.cpp — who holds what and what travels, by brute force; assignments, predictions,
// refusals
#include "runtime/ranks/plan/plan.h"

#include <attune/attune.h>

#include <array>

#include <fmt/format.h>

#include "runtime/engines/picture/draw.h"
#include "runtime/ranks/ranks.h"
#include "tests/catch.h"
#include "tests/numerics/masks.h"
#include "tests/refusal.h"
#include "tests/sanitizers.h"

using namespace attune;
using runtime::ranks::Needs;

namespace {

constexpr int q_len = 100, kv_len = 120;

Forward whole(std::int64_t batch, std::int64_t q_heads, std::int64_t kv_heads, std::int64_t q, std::int64_t kv,
              DType type = DType::bf16, std::int64_t d = 128) {
  return {.q = Tensor(nullptr, type, {batch, q_heads, q, d}),
          .k = Tensor(nullptr, type, {batch, kv_heads, kv, d}),
          .v = Tensor(nullptr, type, {batch, kv_heads, kv, d})};
}

Sharding sharding(const Attention& attention, const Forward& call, int ranks, Sharding::How how, int rank = 0) {
  return Sharding(std::span(&attention, 1), call, {.rank = rank, .count = ranks}, how);
}

/// Every row has one owner, and ranges are in order.
bool one_owner(const Sharding& of, int ranks, std::int64_t rows, bool keys) {
  std::vector<int> owners(static_cast<std::size_t>(rows));
  for (int r = 0; r < ranks; ++r) {
    std::int64_t before = -1;
    for (const Sharding::Range& s : keys ? of.keys_of(r) : of.of(r)) {
      if (s.begin <= before || s.end <= s.begin || s.end > rows) return false;
      before = s.end;
      for (std::int64_t i = s.begin; i < s.end; ++i) ++owners[static_cast<std::size_t>(i)];
    }
  }
  return std::ranges::all_of(owners, [](int n) { return n == 1; });
}

constexpr std::array assignments{Sharding::Assignment::best, Sharding::Assignment::contiguous,
                                 Sharding::Assignment::zigzag, Sharding::Assignment::greedy};

}  // namespace

TEST_CASE("every pair that a mask keeps is of a key that its rank holds or receives", "[ranks]") {
  std::size_t next = 0;
  for (const tests::MaskCase& c : tests::masks()) {
    if (!tests::runs_case(next++, 5)) continue;
    INFO(c.mod.name << ": " << c.mod.mask);
    const tests::Made made = tests::make(c.mod, 1);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    // Which blocks of queries and of keys share a pair that is kept, by batch entry and head.
    constexpr std::size_t block = 16, q_blocks = (q_len + block - 1) / block, kv_blocks = (kv_len + block - 1) / block;
    std::vector<std::array<bool, q_blocks * kv_blocks>> meet;
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 4; ++h) {
        const std::vector<char> kept = runtime::kept_pairs(
            lowered, compiler::args(lowered), {.batch = 2, .heads = 4, .q_len = q_len, .kv_len = kv_len}, b, h);
        meet.emplace_back();
        for (std::size_t i = 0; i < kept.size(); ++i)
          if (kept[i]) meet.back()[i / kv_len / block * kv_blocks + i % kv_len / block] = true;
      }
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const Sharding::Assignment assignment : assignments) {
        const Sharding of = sharding(made.attention, whole(2, 4, 2, q_len, kv_len), ranks,
                                     {.assignment = assignment, .block = block});
        const detail::Ranks& plan = *of.get();
        REQUIRE(one_owner(of, ranks, q_len, false));
        REQUIRE(one_owner(of, ranks, kv_len, true));
        const Needs& needs = *plan.layers[0].needs;
        for (int b = 0; b < 2; ++b)
          for (int h = 0; h < 4; ++h)
            for (std::size_t i = 0; i < q_blocks * kv_blocks; ++i)
              if (meet[static_cast<std::size_t>(b * 4 + h)][i] &&
                  !needs.of(b, h / 2, plan.owners().q[i / kv_blocks]).has(i % kv_blocks))
                FAIL("block " << i / kv_blocks << " of " << b << ", " << h << " lacks keys of " << i % kv_blocks);
      }
  }
}

TEST_CASE("packed sequences begin blocks, and need no keys of others", "[ranks]") {
  auto starts = Device::cpu().array<std::int32_t>({7});
  std::ranges::copy(std::array{0, 0, 1, 50, 50, 97, 130}, starts.values().begin());
  Forward call{.q = Tensor(nullptr, DType::f32, {130, 4, 16}),
               .k = Tensor(nullptr, DType::f32, {130, 2, 16}),
               .v = Tensor(nullptr, DType::f32, {130, 2, 8}),
               .cu_seqlens_q = starts,
               .cu_seqlens_kv = starts};
  const Attention causal{.mask = mods::causal()};
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const Sharding::Assignment assignment : assignments) {
      const Sharding of = sharding(causal, call, ranks, {.assignment = assignment, .block = 16});
      const detail::Ranks& plan = *of.get();
      REQUIRE(one_owner(of, ranks, 130, false));
      REQUIRE(plan.together);
      for (std::size_t g = 0; g < plan.q.blocks.size(); ++g) {
        const auto& block = plan.q.blocks[g];
        CHECK(block.first % 16 == 0);
        CHECK(block.row == starts.values()[static_cast<std::size_t>(block.entry)] + block.first);
        for (std::size_t k = 0; k < plan.kv.blocks.size(); ++k) {
          const auto& keys = plan.kv.blocks[k];
          const bool sees = keys.entry == block.entry && keys.first < block.last;
          const auto& spans = plan.layers[0].work.need(0, 0, g);
          const bool needed = std::ranges::any_of(spans, [&](const auto& s) {
            return s.begin <= static_cast<std::int32_t>(k) && static_cast<std::int32_t>(k) < s.end;
          });
          CHECK(sees == needed);
        }
      }
      // Positions begin at 0 in each sequence.
      std::vector<int> seen;
      for (int r = 0; r < ranks; ++r) {
        const Array<int> positions = of.positions(r);
        std::size_t at = 0;
        for (const Sharding::Range& s : of.of(r))
          for (std::int64_t row = s.begin; row < s.end; ++row) {
            const auto next = std::upper_bound(starts.values().begin(), starts.values().end(), row);
            CHECK(positions.values()[at++] == row - next[-1]);
          }
        CHECK(at == positions.values().size());
      }
    }
}

TEST_CASE("all ranks make the same plan, and another plan is not the same", "[ranks]") {
  const Attention causal{.mask = mods::causal()}, window{.mask = mods::sliding_window(64)};
  const Forward call = whole(1, 8, 2, 1000, 1000);
  const Sharding::How how{.block = 32};
  const ir::Digest first = sharding(causal, call, 3, how, 0).get()->digest;
  CHECK(sharding(causal, call, 3, how, 2).get()->digest == first);
  CHECK(sharding(Attention{.mask = mods::causal()}, call, 3, how, 1).get()->digest == first);
  CHECK(sharding(window, call, 3, how).get()->digest != first);
  CHECK(sharding(causal, whole(1, 8, 2, 1001, 1001), 3, how).get()->digest != first);
  CHECK(sharding(causal, call, 4, how).get()->digest != first);
  const ir::Digest
      line = sharding(causal, call, 3, {.assignment = Sharding::Assignment::contiguous, .block = 32}).get()->digest,
      both_ends = sharding(causal, call, 3, {.assignment = Sharding::Assignment::zigzag, .block = 32}).get()->digest;
  CHECK(line != both_ends);
  auto doc = Device::cpu().array<int>({1000});
  const Attention documents{.mask = mods::document(doc)};
  const ir::Digest one = sharding(documents, call, 3, how).get()->digest;
  doc.values()[999] = 1;
  CHECK(sharding(documents, call, 3, how).get()->digest != one);
}

TEST_CASE("assignments are as even as is known of them, and move what is known", "[ranks]") {
  const auto measured = [](const Attention& attention, Sharding::Assignment assignment) {
    return sharding(attention, whole(1, 64, 8, 131072, 131072), 4, {.assignment = assignment})
        .get()
        ->candidates.front();
  };
  const Attention causal{.mask = mods::causal()}, window{.mask = mods::sliding_window(1024)};
  const auto line = measured(causal, Sharding::Assignment::contiguous),
             zigzag = measured(causal, Sharding::Assignment::zigzag),
             greedy = measured(causal, Sharding::Assignment::greedy);
  CHECK(line.load == Approx(1.75).margin(0.01));
  CHECK(line.gather == Approx(0.50).margin(0.01));
  CHECK(zigzag.load < 1.01);
  CHECK(zigzag.gather == Approx(0.75).margin(0.01));
  CHECK(greedy.load < 1.01);
  // Runs end where documents do, as far as runs may differ in length.
  auto ids = Device::cpu().array<std::int32_t>({131072}, "doc");
  for (std::int64_t i = 0, id = 0; i < 131072; ++i) {
    if (i % 8192 == 3000 || i % 8192 == 5500) ++id;
    ids.data()[i] = static_cast<std::int32_t>(id);
  }
  const auto documents = measured({.mask = mods::causal() && mods::document(ids)}, Sharding::Assignment::greedy);
  CHECK(documents.load < 1.10);
  CHECK(documents.gather < 0.10);
  const auto near = measured(window, Sharding::Assignment::best);
  CHECK(near.assignment == Sharding::Assignment::contiguous);
  CHECK(near.gather < 0.02);
  CHECK(near.load < 1.02);
}

TEST_CASE("a predicted gather is its first group and all work, and head groups must divide", "[ranks]") {
  const Attention plain{};
  const Sharding of = sharding(plain, whole(1, 8, 4, 1024, 1024), 2,
                               {.travel = Sharding::Travel::gather, .groups = 2, .block = 128});
  const runtime::ranks::Predicted& p = of.get()->layers[0].chosen();
  // 512 keys of 4 heads and 512 bytes, half of them before anything is computed.
  const double bytes = 512 * 4 * 512, travel = bytes / 2 / 330e6 + 0.03;
  const double compute = 512.0 * 1024 * 8 * 512 / 660e9;
  CHECK(static_cast<double>(of.received(0)) == bytes);
  CHECK(p.ms == Approx(travel + compute + 2 * 0.015).epsilon(1e-6));
  CHECK(p.ideal == Approx(compute));
  CHECK(tests::refusal([&] { sharding(plain, whole(1, 8, 4, 64, 64), 2, {.groups = 3}); }).code == "sharding-how");
}

TEST_CASE("a block crosses between nodes once, and is passed on inside", "[ranks]") {
  const Attention plain{};
  const Forward call = whole(1, 8, 1, 1024, 1024);
  const Sharding of = sharding(plain, call, 4, {.travel = Sharding::Travel::gather, .block = 128, .per_node = 2});
  for (const auto& r : of.get()->layers[0].chosen().ranks) {
    CHECK(r.across == Approx(512 * 512 / 2));  // half of what two ranks of the other node hold
    CHECK(r.received() == Approx(768 * 512));
  }
}

TEST_CASE("decode queries go to the keys, and prob mods that are no multiple of p keep parts from being merged",
          "[ranks]") {
  const Attention causal{.mask = mods::causal()};
  const Attention squared{.mask = mods::causal(), .prob = [](Float p, At) { return p * p; }};
  Forward call = whole(8, 64, 8, 1, 131072);
  call.q_offset = 131071;
  CHECK(sharding(causal, call, 2, {}).get()->layers[0].chosen().travel == Sharding::Travel::decode);
  const auto travel = sharding(squared, call, 2, {}).get()->layers[0].chosen().travel;
  CHECK((travel == Sharding::Travel::gather || travel == Sharding::Travel::heads));
  for (const Sharding::Travel asked : {Sharding::Travel::decode, Sharding::Travel::ring}) {
    const Error e = tests::refusal([&] { sharding(squared, call, 2, {.travel = asked}); });
    CHECK(e.code == "sharding-how");
  }
}

TEST_CASE("layers share one sharding, and each moves what it needs", "[ranks]") {
  const std::array layers{Attention{.mask = mods::causal()}, Attention{.mask = mods::sliding_window(256)}};
  const Sharding of(layers, whole(1, 8, 2, 32768, 32768), {.rank = 1, .count = 4});
  CHECK(of.received(1, 0) > 4 * of.received(1, 1));
  CHECK(of.explain().find("schedules of layer 1") != std::string::npos);
  CHECK(tests::refusal([&] { of.received(1, 2); }).code == "ranks-count");
}

TEST_CASE("an assignment is kept for calls of other masks, heads and types", "[ranks]") {
  const Attention causal{.mask = mods::causal()}, window{.mask = mods::sliding_window(64)};
  const Forward call = whole(1, 8, 2, 3000, 3000), heads = whole(1, 4, 2, 3000, 3000);
  for (const Sharding::Assignment assignment : assignments) {
    const Sharding first = sharding(causal, call, 3, {.assignment = assignment, .block = 32}, 1);
    const Sharding second(first, std::span(&window, 1), std::span(&heads, 1));
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(std::ranges::equal(first.of(rank), second.of(rank)));
      CHECK(std::ranges::equal(first.keys_of(rank), second.keys_of(rank)));
    }
    CHECK(second.get()->digest != first.get()->digest);
    CHECK(second.received(1) < first.received(1));
    const Sharding third(second, std::span(&causal, 1), std::span(&call, 1));
    CHECK(third.get()->digest == first.get()->digest);
  }
  const Sharding first = sharding(causal, call, 3, {.block = 32});
  const Forward longer = whole(1, 8, 2, 3001, 3001);
  CHECK(tests::refusal([&] { Sharding(first, std::span(&causal, 1), std::span(&longer, 1)); }).code ==
        "sharding-other");
  CHECK(tests::refusal([&] { Sharding(Sharding(), std::span(&causal, 1), std::span(&call, 1)); }).code ==
        "ranks-count");
}

TEST_CASE("layers may bind other tensors to the same names", "[ranks]") {
  const auto early = Device::cpu().array<int>({1000}, "doc"), late = Device::cpu().array<int>({1000}, "doc");
  for (std::size_t i = 0; i < 1000; ++i) {
    early.values()[i] = i < 100;
    late.values()[i] = i < 900;
  }
  const std::vector<Attention> layers(2, Attention{.mask = mods::document(early)});
  const std::array<Tensor, 1> one{early}, two{late};
  std::array calls{whole(1, 8, 2, 1000, 1000), whole(1, 8, 2, 1000, 1000)};
  calls[0].captures = one;
  calls[1].captures = two;
  const Sharding of(layers, calls, {.rank = 0, .count = 2}, {.block = 32});
  CHECK(of.get()->layers[0].mask != of.get()->layers[1].mask);
  CHECK(tests::refusal([&] { Sharding(layers, std::span(calls).first(1), {}, {}); }).code == "sharding-call");
}

TEST_CASE("lengths of nothing, of one, and below the number of ranks can be sharded", "[ranks]") {
  const Attention causal{.mask = mods::causal()};
  for (const std::int64_t length : {0, 1, 2, 7, 13})
    for (const Sharding::Assignment assignment : assignments) {
      const Sharding of = sharding(causal, whole(2, 4, 2, length, length), 8, {.assignment = assignment, .block = 2});
      CHECK(one_owner(of, 8, length, false));
      CHECK(!of.explain().empty());
    }
  CHECK(one_owner(sharding(causal, whole(0, 4, 2, 64, 64), 3, {.block = 8}), 3, 64, false));
}

TEST_CASE("what cannot be sharded is refused", "[ranks]") {
  const Attention causal{.mask = mods::causal()};
  const Forward call = whole(2, 4, 2, 64, 64);
  const auto code = [&](const Attention& attention, const Forward& of, int ranks, Sharding::How how) {
    return tests::refusal([&] { sharding(attention, of, ranks, how); }).code;
  };
  CHECK(code(causal, call, 0, {}) == "ranks-count");
  CHECK(code(causal, call, 4097, {}) == "ranks-count");
  CHECK(tests::refusal([] { threads(1 << 16); }).code == "ranks-count");
  CHECK(tests::refusal([&] { Sharding(std::span(&causal, 1), call, {.rank = 2, .count = 2}); }).code == "ranks-count");
  CHECK(tests::refusal([&] { Sharding({}, call, {}); }).code == "sharding-call");
  CHECK(code(causal, call, 2, {.block = 0}) == "sharding-how");
  CHECK(code(causal, call, 2, {.groups = -1}) == "sharding-how");
  CHECK(code(causal, call, 2, {.per_node = 0}) == "sharding-how");
  CHECK(code(causal, call, 2, {.own_gb_s = 0}) == "sharding-how");
  CHECK(code(causal, call, 3, {.travel = Sharding::Travel::heads}) == "sharding-how");
  CHECK(code(causal, whole(2, 4, 3, 64, 64), 2, {}) == "head-groups");
  Forward lens = call;
  lens.kv_len = Tensor(nullptr, DType::i32, {2});
  CHECK(code(causal, lens, 2, {}) == "sharding-call");
  const Tensor there(reinterpret_cast<void*>(64), DType::i32, {64}, {}, Device::cuda());
  const Capture<int> doc(there, "doc");
  const Error e = tests::refusal([&] { sharding(Attention{.mask = mods::document(doc)}, call, 2, {}); });
  CHECK(e.code == "sharding-capture");
  CHECK(e.problem.find("`doc`") != std::string::npos);
  CHECK(tests::refusal([] { Sharding().of(0); }).code == "ranks-count");
  CHECK(tests::refusal([&] { sharding(causal, call, 2, {}).of(2); }).code == "ranks-count");
}

TEST_CASE("a plan's picture has a row for each rank", "[ranks]") {
  const Attention causal{.mask = mods::causal()};
  for (const int ranks : {1, 4, 64}) {
    const std::string svg = runtime::ranks::picture(*sharding(causal, whole(1, 8, 2, 32768, 32768), ranks, {}).get(), 0,
                                                    "kv <= q");
    CHECK(svg.starts_with("<svg"));
    CHECK(svg.find("<title>kv &lt;= q</title>") != std::string::npos);
    CHECK(svg.find(fmt::format("rank {}</text>", ranks - 1)) != std::string::npos);
    CHECK(svg.find("nan") == std::string::npos);
  }
}
