// tests/emulated/mla.test.cpp — MLA where kernels are emulated: blocks, pairs and fours of blocks that share keys
#include <attune/attune.h>

#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/mla.h"

namespace attune::tests {
namespace {

template <class Change>
Shape changed(Shape shape, const Change& change) {
  change(shape);
  return shape;
}

std::string wrong(const Attention& attention, const Shape& shape) {
  std::string out;
  Engine few = emulated_engine({.arch = 90, .sms = 3, .seed = 100}), more = emulated_engine({.arch = 90, .sms = 9});
  few.mla = more.mla = true;
  const std::array engines{few, more};
  return compare(Subject(attention), inputs(shape), engines, {.backward = false, .max = shape.q_heads == 24}).wrong;
}

}  // namespace

TEST_CASE("MLA on an emulated GPU is what the oracle says, however many rows share keys", "[emulated]") {
  if (skipped_without_compiler()) return;
  // Rows of 1, 2, 4 and 5 blocks; shares that begin and end within a tile; entries without keys; results merged in.
  std::size_t nth = 0;
  for (const Shape& shape : {
           mla_shape(5, 1, 150),
           changed(mla_shape(128, 1, 700),
                   [](Shape& s) {
                     s.used = {700, 0, 67};
                   }),
           changed(mla_shape(64, 4, 300),
                   [](Shape& s) {
                     s.page = 16, s.used = {300, 4, 131}, s.layout = Layout::bshd;
                   }),
           changed(mla_shape(24, 7, 200), [](Shape& s) { s.before = true; }),
           changed(mla_shape(100, 3, 130), [](Shape& s) { s.dtype = DType::f16; }),
       })
    for (const Attention& attention : {Attention{}, Attention{.mask = mods::causal()}})
      if (++nth; in_turn(nth + nth / 16, 16)) CHECK(wrong(attention, shape) == "");
}

}  // namespace attune::tests
