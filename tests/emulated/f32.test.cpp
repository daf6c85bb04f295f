// tests/emulated/f32.test.cpp — Hopper's forward of f32, with one product of TF32 and with three, where kernels are
// emulated
#include <attune/attune.h>

#include "tests/emulated/f32.h"

namespace attune::tests {
namespace {

Verdict verdict(const Attention& attention, const Inputs& in) {
  return verdict_on_hopper(attention, in, {.backward = false, .max = in.shape.d == 64});
}
double check(const Attention& attention, const Inputs& in) {
  return check_products(attention, in, {.backward = false, .max = in.shape.d == 64}, 0x1p-9);
}
double check(const Attention& attention, const Shape& shape) { return check(attention, inputs(shape)); }

std::vector<Shape> shapes() {
  return {
      usual(),
      changed([](Shape& s) { s.d = s.dv = 128; }),
      changed([](Shape& s) { s.d = 96, s.dv = 40, s.batch = 2; }),
      changed([](Shape& s) { s.d = 20, s.dv = 100, s.q_offset = 50; }),
      changed([](Shape& s) { s.q_heads = 8, s.q_len = 33, s.kv_len = 1; }),
      changed([](Shape& s) { s.q_heads = 6, s.kv_heads = 2, s.q_len = 129, s.kv_len = 65, s.layout = Layout::bshd; }),
      changed([](Shape& s) { s.q_heads = 5, s.q_len = 60, s.kv_len = 64, s.before = true; }),
      changed([](Shape& s) { s.batch = 3, s.kv_shared = true, s.kv_len = 127; }),
      changed([](Shape& s) {
        s.q_lens = {150, 33, 1, 129}, s.kv_lens = {150, 64, 1, 200};
      }),
      changed([](Shape& s) {
        s.q_lens = {256, 7}, s.kv_lens = {70, 192}, s.d = s.dv = 128;
      }),
      changed([](Shape& s) { s.q_heads = 256, s.q_len = 1; }),
  };
}

}  // namespace

TEST_CASE("f32 by products of TF32 is right for every shape and cover", "[emulated]") {
  if (skipped_without_compiler()) return;
  check_every(shapes(), [](const Attention& attention, const Shape& shape) { return check(attention, shape); });
}

TEST_CASE("f32 by products of TF32 takes lists of tiles, biases, sinks and prob mods", "[emulated]") {
  if (skipped_without_compiler()) return;
  Array<int> doc = Device::cpu().array<int>({300}, "doc");
  for (int i = 0; i < 300; ++i) doc.data()[i] = i / 70;
  std::size_t nth = 0;
  for (const Shape& shape : {shapes()[0], shapes()[1], shapes()[8]})
    for (const Attention& attention :
         {Attention{.mask = [=](At at) { return doc[at.q] == doc[at.kv]; }}, alibi_and_sink,
          Attention{.prob = [](Float p, At at) { return p * (1.0f + f32(at.kv % 3)); }}})
      if (const std::size_t n = nth++; in_turn(n + n / 3, 3)) check(attention, shape);
}

TEST_CASE("of f32, infinities and NaN of masked-out keys reach no result, and others do", "[emulated]") {
  if (skipped_without_compiler()) return;
  std::size_t nth = 0;
  for (const double with : {infinity, -infinity, not_a_number})
    for (Shape shape : {shapes()[0], shapes()[1]}) {
      if (const std::size_t n = nth++; !in_turn(n + n / 12, 12)) continue;
      shape.q_len = 70;
      const Inputs in = inputs(shape);
      spoil_keys(in, with);
      check({.mask = without_overwritten_keys}, in);
      check({.mask = mods::causal()}, in);
      check({}, in);
      const Inputs queries = inputs(shape);
      for (const std::int64_t q : {0, 64, 69}) spoil(queries.q.tensor, q, with);
      check({.mask = mods::causal()}, queries);
    }
}

TEST_CASE("of f32, numbers far apart lose no more than f32 does", "[emulated]") {
  if (skipped_without_compiler()) return;
  const Inputs in = inputs(shapes()[1]);
  scale(in.q.tensor, 1, 0x1p-60);
  scale(in.k.tensor, 1, 0x1p60);
  scale(in.v.tensor, 5, 0x1p30);
  CHECK(verdict({}, in).wrong == "");
  CHECK(verdict({.mask = mods::causal()}, in).wrong == "");
}

}  // namespace attune::tests
