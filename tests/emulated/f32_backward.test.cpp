// tests/emulated/f32_backward.test.cpp — Hopper's backward of f32, with one product of f16 and with three, where
// kernels are emulated
#include <attune/attune.h>

#include "tests/emulated/f32.h"

namespace attune::tests {
namespace {

Verdict verdict(const Attention& attention, const Inputs& in) {
  return verdict_on_hopper(attention, in, {.forward = false});
}
double check(const Attention& attention, const Inputs& in) {
  return check_products(attention, in, {.forward = false}, 0x1p-7);
}
double check(const Attention& attention, const Shape& shape) { return check(attention, inputs(shape)); }

std::vector<Shape> shapes() {
  return {
      usual(),
      changed([](Shape& s) { s.d = s.dv = 128; }),
      changed([](Shape& s) { s.d = 96, s.dv = 40, s.batch = 2; }),
      changed([](Shape& s) { s.d = 20, s.dv = 100, s.q_offset = 50; }),
      changed([](Shape& s) { s.q_heads = 8, s.q_len = 33, s.kv_len = 1; }),
      changed([](Shape& s) { s.q_len = 1, s.kv_len = 65; }),
      changed([](Shape& s) { s.q_heads = 6, s.kv_heads = 2, s.q_len = 129, s.kv_len = 65, s.layout = Layout::bshd; }),
      changed([](Shape& s) { s.batch = 3, s.kv_shared = true, s.kv_len = 127; }),
      changed([](Shape& s) { s.d = s.dv = 128, s.q_len = 300, s.kv_len = 64; }),
  };
}

}  // namespace

TEST_CASE("the backward of f32 on Hopper is right for every shape and cover", "[emulated]") {
  if (skipped_without_compiler()) return;
  check_every(shapes(), [](const Attention& attention, const Shape& shape) { return check(attention, shape); });
}

TEST_CASE("the backward of f32 on Hopper takes biases and sinks", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Attention bias{.score = [](Float s, At at) { return max(s, 0.0f) * f32(at.head + 1) + f32(at.kv % 3); }};
  for (std::size_t nth = 0; const Shape& shape : {shapes()[0], shapes()[1]})
    check(in_turn(nth++, 2) ? alibi_and_sink : bias, shape);
}

TEST_CASE("of f32, masked-out infinities and NaN reach no gradient, and others do", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Heads of 64 and of 128 columns in turn.
  std::size_t number = 0;
  for (const auto& [with, nth] : {std::pair{infinity, 0}, {-infinity, 1}, {not_a_number, 1}, {0x1p90, 0}}) {
    if (!in_turn(number++, 16)) continue;
    Shape shape = shapes()[static_cast<std::size_t>(nth)];
    shape.q_len = 70;
    const Inputs in = inputs(shape);
    spoil_keys(in, with);
    check({.mask = without_overwritten_keys}, in);
    if (with == 0x1p90) continue;
    check({}, in);
    const Inputs queries = inputs(shape);
    for (const std::int64_t q : {0, 64, 69}) spoil(queries.q.tensor, q, with);
    check({.mask = mods::causal()}, queries);
  }
}

TEST_CASE("of f32, gradients of numbers far apart lose no more than f32 does", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Inputs in = inputs(shapes()[1]);
  scale(in.q.tensor, 1, 0x1p-60);
  scale(in.k.tensor, 1, 0x1p60);
  scale(in.v.tensor, 5, 0x1p20);
  CHECK(verdict({}, in).wrong == "");
  CHECK(verdict({.mask = mods::causal()}, in).wrong == "");
}

}  // namespace attune::tests
