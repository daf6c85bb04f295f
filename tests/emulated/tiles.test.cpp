// tests/emulated/tiles.test.cpp — tiles of Hopper's forward by name, in calls whose lengths would choose others, where
// kernels are emulated
#include "codegen/variant.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {
namespace {

/// An engine whose forward is computed by this kernel.
Engine with_kernel(const std::string& text) {
  Engine out = emulated_engine({.arch = 90, .sms = 3, .seed = 7});
  out.name = text;
  out.forward = [preference = codegen::Preference{codegen::variant(text), true, ""}](
                    const Subject& subject, const Forward& call, const compiler::Problem& problem) {
    on_device(subject, call, problem, {.preference = &preference});
  };
  return out;
}

std::string wrong(const Engine& engine, const Attention& attention, const Shape& shape, bool max = false) {
  return compare(Subject(attention), inputs(shape), std::span(&engine, 1), {.backward = false, .max = max}).wrong;
}

/// More tiles of queries than blocks, the last of few rows.
Shape usual(std::int64_t d) {
  return {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 141, .kv_len = 170, .d = d, .dv = d, .dtype = DType::bf16};
}

void check_tile(const std::string& kernel, std::int64_t d) {
  if (skipped_without_compiler()) return;
  const Engine engine = with_kernel(kernel);
  Shape short_one = usual(d), packed = usual(d), few = usual(d);
  short_one.q_len = short_one.kv_len = 77;
  packed.q_lens = packed.kv_lens = {77, 1, 64, 130};
  few.q_heads = 8;
  few.q_len = 5;
  const Attention causal{.mask = mods::causal()}, softcap{.score = mods::softcap(20), .mask = mods::causal()};
  const Attention listed{.mask = [](At at) { return (at.q * at.q) % 7 != at.kv % 5; }};
  for (const Shape& shape : {usual(d), short_one, packed, few}) {
    INFO(kernel << " " << shape.describe());
    for (const Attention& attention : {Attention{}, causal, softcap, listed})
      CHECK(wrong(engine, attention, shape) == "");
  }
  CHECK(wrong(engine, causal, usual(d), true) == "");
}

}  // namespace

TEST_CASE("one warpgroup a block, three blocks on an SM", "[emulated]") {
  check_tile("forward_sm90:m=64,n=80,issue_order=0", 64);
}

TEST_CASE("one warpgroup a block, two blocks on an SM", "[emulated]") {
  check_tile("forward_sm90:m=64,n=112,issue_order=0", 64);
  check_tile("forward_sm90:m=64,n=80,q_stages=1,own_o=0,issue_order=0", 128);
}

TEST_CASE("three warpgroups a block, which short sequences would not choose", "[emulated]") {
  check_tile("forward_sm90:m=192,n=96,stages=3", 64);
  check_tile("forward_sm90:m=192,n=96,q_stages=1", 96);
}

}  // namespace attune::tests
