// tests/emulated/tiles.test.cpp — tiles of Hopper's forward by name, in calls whose lengths would choose others, where
// kernels are emulated
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

Engine with_kernel(const std::string& text) { return emulated_engine({.arch = 90, .sms = 3, .seed = 7}, text); }

std::string wrong(std::span<const Engine> engines, const Attention& attention, const Shape& shape, bool max = false) {
  return compare(Subject(attention), inputs(shape), engines, {.backward = false, .max = max}).wrong;
}
std::vector<Engine> with_kernels(std::initializer_list<const char*> all) {
  std::vector<Engine> out;
  for (const char* one : all) out.push_back(with_kernel(one));
  return out;
}

/// More tiles of queries than blocks, the last of few rows.
Shape usual(std::int64_t d) {
  return {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 141, .kv_len = 170, .d = d, .dv = d, .dtype = DType::bf16};
}

/// Checks tiles for one head dimension: they share the results of the oracle and of dense attention.
void check_tiles(std::int64_t d, std::initializer_list<const char*> kernels) {
  if (skipped_without_compiler()) return;
  const std::vector<Engine> engines = with_kernels(kernels);
  Shape short_one = usual(d), packed = usual(d), few = usual(d);
  short_one.q_len = short_one.kv_len = 77;
  packed.q_lens = packed.kv_lens = {77, 1, 64, 130};
  few.q_heads = 8;
  few.q_len = 5;
  const Attention causal{.mask = mods::causal()}, softcap{.score = mods::softcap(20), .mask = mods::causal()};
  const Attention listed{.mask = [](At at) { return (at.q * at.q) % 7 != at.kv % 5; }};
  std::size_t nth = 0;
  for (const Shape& shape : {usual(d), short_one, packed, few}) {
    INFO(shape.describe());
    for (const Attention& attention : {Attention{}, causal, softcap, listed})
      if (const std::size_t n = nth++; in_turn(n + n / 16, 16)) CHECK(wrong(engines, attention, shape) == "");
  }
  CHECK(wrong(engines, causal, usual(d), true) == "");
}

/// The backward where one tile of keys holds all keys: right, and the bits of ordered accumulation.
void check_alone(std::int64_t d, const Attention& attention, const Shape& shape) {
  const std::string to = d > 64 ? "backward_sm90:m=64" : "backward_sm90:m=128";
  const std::vector<Engine> engines{with_kernel(to + ",alone=1"), with_kernel(to + ",alone=0")};
  std::vector<std::vector<double>> seen;
  const Compared what{.forward = false, .observe = [&](const Observed& one) { seen.push_back(one.elements); }};
  INFO(shape.describe());
  CHECK(compare(Subject(attention), inputs(shape), engines, what).wrong == "");
  REQUIRE(seen.size() % 2 == 0);
  for (std::size_t i = 0; i < seen.size() / 2; ++i) CHECK(seen[i] == seen[seen.size() / 2 + i]);
}

}  // namespace

TEST_CASE("a mask is asked once for a block of keys that it keeps or drops as a whole", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Blocks fill tiles of 64 and 128 keys; of 80 keys they have sixteen, and of 96 thirty-two.
  const std::vector<Engine> engines = with_kernels({"forward_sm90:m=64,n=64,issue_order=0", "forward_sm90:m=128,n=128",
                                                    "forward_sm90:m=128,n=80", "forward_sm90:m=192,n=96,stages=3"});
  const auto blocks = [](int queries, int keys) {
    return Attention{.mask = [=](At at) { return (at.q / queries + at.kv / keys + at.head) % 3 != 0; }};
  };
  const Attention causal{.score = mods::softcap(20),
                         .mask = [](At at) { return at.kv <= at.q && (at.q + at.kv / 64) % 3 != 0; }};
  Shape packed = usual(64);
  packed.q_lens = packed.kv_lens = {77, 1, 64, 130};
  std::size_t nth = 0;
  for (const Shape& shape : {packed, usual(64)})
    for (const Attention& attention : {blocks(64, 64), blocks(16, 32), blocks(1, 16), causal}) {
      if (const std::size_t n = nth++; !in_turn(n + n / 16, 16)) continue;
      INFO(shape.describe());
      CHECK(wrong(engines, attention, shape, true) == "");
    }
  const Engine usual_tile = emulated_engine({.arch = 90, .sms = 3, .seed = 7});
  Shape fp8 = usual(64), full_precision = usual(64);
  fp8.e4m3 = true;
  full_precision.dtype = DType::f32;
  for (const Shape& shape : {fp8, full_precision}) {
    INFO(shape.describe());
    CHECK(wrong(std::span(&usual_tile, 1), blocks(16, 32), shape) == "");
  }
}

TEST_CASE("a backward of one tile of keys", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Of the second, the last queries see no key: whole tiles of them.
  const Attention causal{.mask = mods::causal()}, later{.mask = [](At at) { return at.kv > at.q + 20; }};
  std::size_t nth = 0;
  for (const std::int64_t d : {std::int64_t{64}, std::int64_t{128}}) {
    Shape shape = usual(d), packed = usual(d);
    shape.kv_len = 77;
    packed.q_lens = {77, 1, 0, 128};
    packed.kv_lens = {77, 30, 5, 128};
    for (const Shape& one : {shape, packed})
      for (const Attention& attention : {Attention{}, causal, later})
        if (const std::size_t n = nth++; in_turn(n + n / 16, 16)) check_alone(d, attention, one);
  }
}

TEST_CASE("more keys than a tile are refused by the backward of one tile", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Engine engine = with_kernel("backward_sm90:m=128,alone=1");
  const Subject subject(Attention{});
  const std::string wrong = compare(subject, inputs(usual(64)), std::span(&engine, 1), {.forward = false}).wrong;
  CHECK(wrong.find("it is for up to 128 keys, and there are more") != std::string::npos);
}

TEST_CASE("tiles of heads of 64: one warpgroup a block and two or three blocks on an SM, three warpgroups",
          "[emulated]") {
  check_tiles(64, {"forward_sm90:m=64,n=64,stages=3,q_stages=2,own_o=1,issue_order=0,items=2",
                   "forward_sm90:m=64,n=112,stages=2,q_stages=2,own_o=1,issue_order=0,items=1",
                   "forward_sm90:m=192,n=96,stages=3,issue_order=1,items=1",
                   // Results leave through the memory of values.
                   "forward_sm90:m=64,n=64,stages=3,q_stages=1,own_o=2,issue_order=0,items=1",
                   "forward_sm90:m=192,n=80,stages=3,q_stages=1,own_o=2,issue_order=1,items=1"});
}

TEST_CASE("tiles of heads of 96: three warpgroups", "[emulated]") {
  check_tiles(96, {"forward_sm90:m=192,n=96,stages=2,q_stages=1,items=2"});
}

TEST_CASE("tiles of heads of 128: one warpgroup a block, results leave through the memory of values", "[emulated]") {
  check_tiles(128, {"forward_sm90:m=64,n=80,stages=2,q_stages=1,own_o=0,issue_order=0,items=1",
                    "forward_sm90:m=128,n=128,stages=2,q_stages=2,own_o=2,issue_order=0,items=1"});
}

TEST_CASE("tiles of heads of 256: results leave through the memory of values", "[emulated]") {
  check_tiles(256, {"forward_sm90:m=128,n=80,stages=2,q_stages=1,own_o=2,issue_order=1,items=1"});
}

TEST_CASE("results leave through the memory of values or queries, next to tiles without keys and to single tiles",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::vector<Engine> engines = with_kernels(
      {"forward_sm90:m=128,n=64,stages=2,q_stages=1,own_o=2,issue_order=1,items=1",
       "forward_sm90:m=128,n=64,stages=2,q_stages=1,own_o=0,issue_order=1,items=1",
       "forward_sm90:m=64,n=64,stages=3,q_stages=1,own_o=0,issue_order=0,items=2"});
  // Tiles of queries with many tiles of keys, one and none follow one another, in both orders.
  const Attention later{.mask = [](At at) { return at.kv > at.q; }},
      some{.mask = [](At at) { return at.q / 128 % 2 == 1 && at.kv <= at.q % 128; }},
      rising{.score = [](Float s, At at) { return s + 40.0f * f32(at.kv); }, .mask = mods::causal()};
  Shape shape = usual(64), packed = usual(64);
  shape.q_len = 700;
  shape.kv_len = 300;
  packed.q_lens = {128, 0, 260, 1};
  packed.kv_lens = {0, 3, 130, 64};
  std::size_t nth = 0;
  for (const Shape& one : {shape, packed})
    for (const Attention& attention : {Attention{}, later, some, rising}) {
      if (const std::size_t n = nth++; !in_turn(n + n / 16, 16)) continue;
      INFO(one.describe());
      CHECK(wrong(engines, attention, one) == "");
    }
}

TEST_CASE("warpgroups leave out tiles of keys at the beginning", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Attention causal{.mask = mods::causal()}, some{.mask = [](At at) { return at.kv <= at.q - 70; }},
      more{.mask = [](At at) { return at.kv <= at.q + 37 && at.q - at.kv < 150; }},
      rising{.score = [](Float s, At at) { return s + 40.0f * f32(at.kv); }, .mask = mods::causal()};
  Shape square = usual(64), later = usual(64), packed = usual(64);
  square.q_len = square.kv_len = 330;
  later.q_len = 200;
  later.kv_len = 330;
  later.q_offset = 130;
  packed.q_lens = packed.kv_lens = {130, 0, 1, 222};
  const std::vector<Engine> engines = with_kernels(
      {"forward_sm90:m=128,n=80,stages=2,q_stages=1,own_o=2,issue_order=1,items=1",
       "forward_sm90:m=128,n=48,stages=2,q_stages=2,own_o=1,issue_order=0,items=2",
       "forward_sm90:m=192,n=80,stages=3,q_stages=2,own_o=1,issue_order=2,items=1",
       // A warpgroup could skip two tiles of keys. It skips one, since earlier results leave over values.
       "forward_sm90:m=192,n=80,stages=3,q_stages=1,own_o=2,issue_order=1,items=1"});
  std::size_t nth = 0;
  for (const Shape& shape : {square, later, packed})
    for (const Attention& attention : {causal, some, more, rising}) {
      if (const std::size_t n = nth++; !in_turn(n + n / 16, 16)) continue;
      INFO(shape.describe());
      CHECK(wrong(engines, attention, shape) == "");
    }
}

}  // namespace attune::tests
