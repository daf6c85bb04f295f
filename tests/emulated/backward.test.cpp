// tests/emulated/backward.test.cpp — Hopper's backward where kernels are emulated: tiles of 80 and 64 queries, packed
// sequences, bits that do not depend on the number of blocks
#include <array>
#include <limits>
#include <map>
#include <tuple>

#include "runtime/machine/tensor.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

Shape dense(std::int64_t q_len, std::int64_t kv_len, std::int64_t d) {
  return {
      .batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = q_len, .kv_len = kv_len, .d = d, .dv = d, .dtype = DType::bf16};
}
Shape packed(std::vector<std::int64_t> lens, std::int64_t d) {
  Shape out{.q_heads = 2, .kv_heads = 1, .d = d, .dv = d, .dtype = DType::bf16};
  out.q_lens = out.kv_lens = std::move(lens);
  return out;
}

std::string wrong(std::span<const Engine> engines, const std::string& mask, const Shape& shape) {
  Text text;
  return compare(Subject({.mask = text.mask(mask)}), inputs(shape), engines, {.forward = false}).wrong;
}
std::string wrong(const Engine& engine, const std::string& mask, const Shape& shape) {
  return wrong(std::span(&engine, 1), mask, shape);
}

}  // namespace

TEST_CASE("tiles of 80 queries end anywhere", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 11},
                                        "backward_sm90:m=80,order=3,alone=0,completes=0");
  std::size_t nth = 0;
  for (const auto& [q_len, kv_len] : {std::pair{80, 128}, {79, 300}, {161, 129}, {250, 250}})
    for (const std::string mask : {"true", "kv <= q", "kv <= q && q - kv < 70"}) {
      if (!in_turn(nth++, 8)) continue;
      INFO(q_len << " queries, " << kv_len << " keys, " << mask);
      CHECK(wrong(engine, mask, dense(q_len, kv_len, 128)) == "");
    }
  CHECK(wrong(engine, "kv <= q + 60", dense(170, 230, 96)) == "");
  CHECK(wrong(engine, "kv <= q", packed({300, 1, 129, 256, 77}, 128)) == "");
}

TEST_CASE("prob mods that are multiples of p are right in every order of the steps", "[emulated]") {
  if (skipped_without_compiler()) return;
  const auto by_head = Device::cpu().array<float>({2}, "by_head"), by_key = Device::cpu().array<float>({700}, "by_key"),
             by_row = Device::cpu().array<float>({2, 700}, "by_row");
  for (const auto& gates : {by_head, by_key, by_row})
    for (std::size_t i = 0; i < gates.values().size(); ++i)
      gates.values()[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;  // also 0
  const Mask causal = mods::causal();
  const Score capped = mods::softcap(5);
  const Attention all[] = {
      {.mask = causal, .prob = mods::dropout(0.8f, 7)},
      {.prob = [&](Float p, At at) { return p * by_head[at.head]; }},
      {.mask = causal, .prob = [&](Float p, At at) { return p * by_key[at.kv] * by_row(at.head, at.q); }},
      {.score = capped, .mask = causal, .prob = [&](Float p, At at) { return 0.5f * p * by_key[at.kv]; }},
  };
  std::size_t nth = 0;
  for (const std::int64_t d : {64, 128})
    for (const int order : {0, 1, 2, 3}) {
      const Engine engine = emulated_engine(
          {.arch = 90, .sms = 3, .seed = 11},
          fmt::format("backward_sm90:m={},order={},alone=0", d == 64 ? 128 : 64, order));
      for (const Attention& attention : all) {
        const Subject subject(attention);
        if (order == 3 && attention.score) continue;  // rounded early, as in order 2
        if (const std::size_t n = nth++; !in_turn(n + n / 32, 32)) continue;
        for (const Shape& shape : {dense(200, 230, d), packed({150, 0, 1, 77}, d)}) {
          INFO(order << ' ' << shape.describe());
          CHECK(compare(subject, inputs(shape), std::span(&engine, 1), {.forward = false, .captured = false}).wrong ==
                "");
        }
      }
    }
}

TEST_CASE("the two kernels of wide heads are right under prob mods that are multiples of p", "[emulated]") {
  if (skipped_without_compiler()) return;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const auto by_head = Device::cpu().array<float>({2}, "by_head"), by_key = Device::cpu().array<float>({700}, "by_key"),
             by_row = Device::cpu().array<float>({2, 700}, "by_row"), slope = Device::cpu().array<float>({2}, "slope");
  for (const auto& gates : {by_head, by_key, by_row, slope})
    for (std::size_t i = 0; i < gates.values().size(); ++i)
      gates.values()[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;  // also 0
  by_key.values()[3] = nan;                                          // of a key that is masked out
  const Mask causal = mods::causal();
  const Attention all[] = {
      {.prob = mods::dropout(0.8f, 7)},
      {.mask = causal, .prob = mods::dropout(0.5f, -3)},
      {.score = mods::softcap(5), .mask = causal, .prob = mods::dropout(0.8f, 7)},
      {.score = [&](Float s, At at) { return s * slope[at.head] + 0.01f * f32(at.kv - at.q); },
       .mask = mods::sliding_window(40),
       .prob = [](Float p, At at) { return where(kept(100 - 77 * at.head, 40'000), p, 0.0f); }},
      {.prob = [&](Float p, At at) { return p * by_head[at.head]; }},
      {.mask = [](At at) { return at.kv > 3 && at.kv <= at.q; },
       .prob = [&](Float p, At at) { return p * by_key[at.kv] * by_row(at.head, at.q); }},
      {.score = mods::softcap(5), .mask = causal, .prob = [&](Float p, At at) { return 0.5f * p * by_head[at.head]; }},
      // Pair by pair: some rows see no key.
      {.mask = [](At at) { return at.kv > at.q + 20; },
       .prob = [](Float p, At) { return where(kept(3, 40'000), p, 0.25f * p); }},
      {.mask = [](At at) { return at.kv > at.q + 1000; }, .prob = mods::dropout(0.8f, 7)},
  };
  std::size_t nth = 0;
  for (const auto& [d, dv] : {std::pair{192, 128}, {256, 256}, {144, 200}})
    for (const Attention& attention : all) {
      if (const std::size_t n = nth++; !in_turn(n + n / 12, 12)) continue;
      const Engine engine = emulated_engine(
          {.arch = 90, .sms = 3, .seed = nth},
          fmt::format("{}_sm90:parts={}", nth % 2 ? "keys" : "queries", 1 + nth % 3 % 2));
      Shape shape = dense(141, 150, d), odd = dense(nth % 2 ? 1 : 65, nth % 2 ? 67 : 1, d);
      shape.dv = odd.dv = dv;
      shape.batch = 2, shape.kv_shared = nth % 4 == 0;
      if (nth % 3 == 0) shape.dtype = DType::f16;
      odd.q_offset = static_cast<std::int32_t>(nth % 5);
      for (const Shape& one : {shape, odd}) {
        INFO(nth << ' ' << one.describe());
        CHECK(compare(Subject(attention), inputs(one), std::span(&engine, 1), {.forward = false, .captured = false})
                  .wrong == "");
      }
    }
}

TEST_CASE("dropout of wide heads has the same bits on any number of multiprocessors, whatever masked-out values hold",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const Subject subject({.score = mods::softcap(5),
                         .mask = [](At at) { return at.kv > 3 && at.kv < 125; },
                         .prob = mods::dropout(0.8f, 7)});
  const Shape shape = dense(70, 130, 192);
  Inputs in = inputs(shape);
  for (const bool non_finite : {false, true}) {
    if (non_finite) {
      runtime::store(in.k.tensor, runtime::offset(in.k.tensor, 0, 0, 3, 5), std::numeric_limits<double>::quiet_NaN());
      runtime::store(in.v.tensor, runtime::offset(in.v.tensor, 0, 0, 125, 5), std::numeric_limits<double>::infinity());
    }
    std::vector<std::map<std::string, std::vector<double>>> found;
    for (const int sms : {1, 5}) {
      const Engine engine = emulated_engine({.arch = 90, .sms = sms, .seed = static_cast<std::uint64_t>(sms)},
                                            sms == 1 ? "keys_sm90" : "queries_sm90");
      auto& of = found.emplace_back();
      CHECK(compare(subject, in, std::span(&engine, 1),
                    {.forward = false, .observe = [&](const Observed& one) { of[one.name] = one.elements; }})
                .wrong == "");
    }
    CHECK(found[0].size() == 3);
    CHECK(found[0] == found[1]);
  }
}

TEST_CASE("packed sequences are visited in alternating directions", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::array engines{emulated_engine({.arch = 90, .sms = 1, .seed = 11}),
                           emulated_engine({.arch = 90, .sms = 5, .seed = 11})};
  for (const std::int64_t d : {64, 128})
    for (const std::string mask : {"true", "kv <= q"}) {
      if (!in_turn((d == 64) != (mask == "true"), 4)) continue;
      INFO(d << ' ' << mask);
      CHECK(wrong(engines, mask, packed({300, 1, 129, 256, 77}, d)) == "");
      if (mask != "true") CHECK(wrong(engines, mask, packed({128, 384}, d)) == "");
    }
}

TEST_CASE("the item that visits queries last completes their dq", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Keyed by the width of heads.
  std::map<std::int64_t, std::vector<Engine>> engines;
  for (const auto& [d, sms, tile] : {std::tuple{128, 1, "m=64,order=3"},
                                     {128, 3, "m=64,order=1"},
                                     {64, 1, "m=128,order=2"},
                                     {64, 3, "m=128,order=3"}})
    engines[d].push_back(emulated_engine({.arch = 90, .sms = sms, .seed = 5},
                                         fmt::format("backward_sm90:{},alone=0,completes=1", tile)));
  for (const auto& [d, all] : engines)
    // Some queries have no keys, some keys no queries, and the last mask needs a table of tiles.
    for (std::size_t nth = 0; const std::string mask : {"kv <= q", "kv <= q && q - kv < 70", "kv + 100 <= q",
                                                        "kv < q - 60 || kv > q + 200", "kv / 64 % 2 == q / 128 % 2"}) {
      INFO(d << ' ' << mask);
      if (in_turn(nth, 24)) CHECK(wrong(all, mask, dense(300, 300, d)) == "");
      if (in_turn(nth + 3, 24))
        CHECK(wrong(all, mask, nth % 2 ? dense(161, 270, d) : packed({300, 1, 129, 70}, d)) == "");
      ++nth;
    }
}

TEST_CASE("dq is added up in any order", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 5}, "backward_sm90:m=128,ordered=0");
  // Without a mask, nothing repairs what is added to memory that holds NaN.
  CHECK(wrong(engine, "true", dense(300, 300, 64)) == "");
}

TEST_CASE("dq is completed in sections of both directions", "[emulated]") {
  if (skipped_without_compiler()) return;
  if (!in_turn(1, 16)) return;  // a long call
  Shape shape = dense(290, 290, 128);
  shape.batch = 24, shape.kv_heads = 2;
  const Engine engine = emulated_engine({.arch = 90, .sms = 7, .seed = 5},
                                        "backward_sm90:m=64,order=3,alone=0,completes=1");
  CHECK(wrong(engine, "kv <= q", shape) == "");
}

TEST_CASE("all but the first heads of a group are visited on the way back", "[emulated]") {
  if (skipped_without_compiler()) return;
  // 64 sets of two tiles of keys are a section; two more begin a second one, whose keys rise.
  for (const auto& [d, tile] : {std::pair{128, "m=64,order=3,completes=0"}, {64, "m=128,order=3,completes=1"}}) {
    if (!in_turn(d == 64, 8)) continue;  // long calls
    const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 9},
                                          fmt::format("backward_sm90:{},path=1", tile));
    Shape shape = dense(140, 140, d);
    shape.batch = d == 64 ? 2 : 33, shape.kv_heads = 2, shape.q_heads = d == 64 ? 6 : 4;
    INFO(d);
    // Some keys have no queries, and some heads more than others.
    CHECK(wrong(engine, "kv <= q + 20 * h - 60", shape) == "");
  }
}

TEST_CASE("heads of a group are visited together", "[emulated]") {
  if (skipped_without_compiler()) return;
  for (const auto& [d, tile] : {std::pair{128, "m=64,order=3,completes=1"}, {64, "m=128,order=3,completes=0"}}) {
    if (!in_turn(d == 128, 4)) continue;
    const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 9},
                                          fmt::format("backward_sm90:{},alone=0,path=2", tile));
    Shape shape = dense(270, 290, d), shared = dense(200, 270, d), many = dense(100, 150, d);
    shape.kv_heads = 2;
    // One head, as many as lanes make up, and others.
    for (const std::int64_t group : d == 64 ? std::array{1, 3} : std::array{2, 5}) {
      if (!in_turn(group > 2, 3)) continue;
      INFO(d << ' ' << group);
      shape.q_heads = 2 * group;
      CHECK(wrong(engine, "kv <= q + 40 * h - 60", shape) == "");
    }
    many.q_heads = 35;  // more than a warp has lanes
    if (d == 64 && in_turn(2, 3)) CHECK(wrong(engine, "kv <= q + 40", many) == "");
    shared.batch = 3, shared.q_heads = 4, shared.kv_heads = 2, shared.kv_shared = true;
    CHECK(wrong(engine, "kv <= q + 40", shared) == "");
    CHECK(wrong(engine, "kv <= q", packed({300, 1, 129, 70}, d)) == "");
  }
}

}  // namespace attune::tests
