// tests/emulated/dropout.test.cpp — dropout, which emulated kernels draw for many pairs at once: the same decisions as
// ir::kept in every tile, at any position, forward and backward
#include <array>

#include "ir/eval.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

Shape wide(std::int64_t d, std::uint64_t seed) {
  return {.batch = 2,
          .q_heads = 4,
          .kv_heads = 2,
          .q_len = 150,
          .kv_len = 203,
          .d = d,
          .dv = d,
          .dtype = DType::bf16,
          .seed = seed};
}

}  // namespace

TEST_CASE("dropout is the oracle's on emulated GPUs, forward and backward", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::array engines{emulated_engine({.arch = 80}), emulated_engine({.arch = 90, .sms = 3, .seed = 4})};
  const Param<float> keep("keep", 0.6f);
  const auto seed = Device::cpu().array<int>({4}, "seed");
  for (std::int64_t h = 0; h < 4; ++h) seed.data()[h] = static_cast<int>(100 - 77 * h);
  const Score bias = [](Float s, At at) { return s + 0.01f * f32(at.kv - at.q); };
  const Attention all[] = {
      {.prob = mods::dropout(0.9f, 7)},
      {.mask = mods::causal(),
       .prob =
           [&](Float p, At) {
             const Float n = max(round(keep * 65536.0f), 1.0f);
             return where(kept(seed[0], i32(n)), p / (n / 65536.0f), 0.0f);
           }},
      // Decisions of a head; a score whose exponents are no multiples; a share of 1.
      {.mask = mods::causal(), .prob = [&](Float p, At at) { return where(kept(seed[at.head], 20'000), p, 0.0f); }},
      {.score = bias, .mask = mods::sliding_window(40), .prob = mods::dropout(0.5f, -1)},
      {.prob = mods::dropout(1, 3)},
      // Pair by pair: the share depends on the key, and the prob mod is another.
      {.prob = [](Float p, At at) { return where(kept(3, 500 * at.kv), p * 2.0f, 0.0f); }},
      {.prob = [](Float p, At) { return where(kept(3, 40'000), p, 0.25f * p); }},
  };
  std::size_t nth = 0;
  for (const Attention& attention : all) {
    if (!in_turn(++nth, 12)) continue;
    Shape shape = wide(nth % 4 < 2 ? 64 : 128, nth);
    if (nth % 3 == 0)
      shape.q_lens = shape.kv_lens = {77, 0, 1, 130};
    else
      shape.q_offset = 53;
    INFO(shape.describe());
    CHECK(compare(Subject(attention), inputs(shape), engines).wrong == "");
  }
}

TEST_CASE("dropout that further warps draw ahead is the oracle's in every tile, and what warps draw themselves",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const Attention window{.mask = mods::sliding_window(90), .prob = mods::dropout(0.7f, 5)},
      biased{.score = [](Float s, At at) { return s + 0.02f * f32(at.kv - at.q); }, .prob = mods::dropout(0.7f, 5)};
  std::size_t nth = 0;
  for (const auto& [d, kernel] : {std::pair{64, "forward_sm90:m=128,n=128,issue_order=2,drawn=1"},
                                  {64, "forward_sm90:m=128,n=80,stages=4,issue_order=0,items=2,drawn=1"},
                                  {128, "forward_sm90:m=128,n=128,q_stages=1,issue_order=1,drawn=1"},
                                  {128, "forward_sm90:m=128,n=112,q_stages=1,own_o=2,drawn=1"},
                                  {192, "forward_sm90:m=128,n=64,q_stages=1,own_o=2,drawn=1"},
                                  {64, "forward_sm90:m=128,n=128,drawn=0"}}) {
    if (!in_turn(++nth, 12)) continue;
    const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7}, kernel);
    Shape shape = wide(d, nth), packed = wide(d, nth);
    shape.kv_len = 403;
    packed.q_lens = packed.kv_lens = {77, 0, 1, 230};
    for (const Shape& one : {shape, packed}) {
      INFO(one.describe());
      CHECK(
          compare(Subject(nth % 2 ? window : biased), inputs(one), std::span(&engine, 1), {.backward = false}).wrong ==
          "");
    }
  }
}

TEST_CASE("dropout over keys from any position on is the oracle's on emulated GPUs", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::array engines{emulated_engine({.arch = 80}), emulated_engine({.arch = 90, .sms = 3, .seed = 4})};
  const Attention attention{.mask = mods::causal(), .prob = mods::dropout(0.6f, 9)};
  std::size_t nth = 0;
  for (const std::int32_t from : {1, 16, 37, 1000})
    for (const std::int64_t queries : {3, 150}) {
      if (!in_turn(++nth, 8)) continue;
      Shape shape = wide(64, nth);
      shape.q_len = queries;
      shape.kv_offset = from;
      shape.q_offset = from + 203 - static_cast<std::int32_t>(queries);
      INFO(shape.describe());
      CHECK(compare(Subject(attention), inputs(shape), engines, {.backward = false}).wrong == "");
    }
}

TEST_CASE("dropout by head is the oracle's where heads share a tile, and of e4m3", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::array engines{emulated_engine({.arch = 80}), emulated_engine({.arch = 90, .sms = 3, .seed = 4})};
  const Attention attention{.prob = [](Float p, At at) { return where(kept(at.head, 40'000), 1.5f * p, 0.0f); }};
  const auto wrong = [&](const Shape& shape, std::span<const Engine> on) {
    return compare(Subject(attention), inputs(shape), on, {.backward = false}).wrong;
  };
  // Of 16 heads, a thread of the kernel of few queries has rows of two.
  for (const auto& [heads, queries] : {std::pair{16, 1}, {16, 3}, {4, 33}}) {
    Shape shape = wide(64, 5);
    shape.q_heads = heads, shape.kv_heads = 1, shape.q_len = queries;
    INFO(shape.describe());
    CHECK(wrong(shape, engines) == "");
  }
  Shape fp8 = wide(128, 6);
  fp8.e4m3 = true;
  CHECK(wrong(fp8, std::span(engines).last(1)) == "");
}

}  // namespace attune::tests
