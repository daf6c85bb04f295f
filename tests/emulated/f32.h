// tests/emulated/f32.h — what the tests of Hopper's f32 kernels, forward and backward, share
#pragma once

#include <array>
#include <limits>
#include <vector>

#include <attune/attune.h>

#include "runtime/machine/tensor.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"

namespace attune::tests {

/// 256 rows share keys, so that the forward's are split.
inline Shape usual() {
  return {.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 150, .kv_len = 200, .d = 64, .dv = 64, .dtype = DType::f32};
}
template <class Change>
Shape changed(const Change& change) {
  Shape out = usual();
  change(out);
  return out;
}

inline Verdict verdict_on_hopper(const Attention& attention, const Inputs& in, const Compared& what) {
  const Engine engine = emulated_engine({.arch = 90, .sms = 3, .seed = 7});
  return compare(Subject(attention), in, std::span(&engine, 1), what);
}

/// The same engine, which computes each product of f32 by one product instead of three.
inline Engine with_one_product(Engine engine) {
  const auto inexact = [](Subject subject) {
    subject.exact = false;
    return subject;
  };
  engine.forward = [=, forward = engine.forward](const Subject& subject, const auto&... of) {
    forward(inexact(subject), of...);
  };
  engine.backward = [=, backward = engine.backward](const Subject& subject, const auto&... of) {
    backward(inexact(subject), of...);
  };
  return engine;
}

/// Three products have to be as near as f32; one, as near as TF32 (tests/gpu/exact.test.cpp), with infinities and NaN
/// where the oracle has them. Returns the larger error, which is that of one and at most `most_of_one`.
inline double check_products(const Attention& attention, const Inputs& in, const Compared& what, double most_of_one) {
  INFO(in.shape.describe());
  std::array engines{emulated_engine({.arch = 90, .sms = 3, .seed = 7}), Engine{}};
  engines[1] = with_one_product(engines[0]);
  engines[0].name = "three products";
  engines[1].name = "one product";
  const Verdict verdict = compare(Subject(attention), in, engines, what);
  CHECK(verdict.engine_error <= most_of_one);
  INFO(verdict.wrong);
  for (const char* const fault : {"three products", ": element", "threw"})
    CHECK(verdict.wrong.find(fault) == std::string::npos);
  return verdict.engine_error;
}

/// Sets elements of every other key and value, or of a query.
inline void spoil(const Tensor& t, std::int64_t position, double with) {
  for (std::int64_t h = 0; h < t.shape[1]; ++h)
    for (std::int64_t j = 0; j < t.shape[3]; j += 3) runtime::store(t, runtime::offset(t, 0, h, position, j), with);
}

/// Overwrites elements of some keys and values. The mask `without_overwritten_keys` removes these positions.
inline void spoil_keys(const Inputs& in, double with) {
  for (const std::int64_t kv : {3, 77, 190}) {
    spoil(in.k.tensor, kv, with);
    spoil(in.v.tensor, kv, with);
  }
}
inline const Mask without_overwritten_keys = [](At at) { return at.kv != 3 && at.kv != 77 && at.kv != 190; };

/// Multiplies every nth element.
inline void scale(const Tensor& t, int nth, double by) {
  each_element(t, [&, at = 0](std::int64_t offset) mutable {
    runtime::store(t, offset, runtime::load(t, offset) * (at++ % nth == 0 ? by : 1));
  });
}

/// Rows without pairs, and partial tiles on both sides.
inline const Attention band{.score = mods::softcap(20),
                            .mask = [](At at) { return at.kv >= at.q + 20 && at.kv < at.q + 90 && at.q % 7 != 3; }};
inline const Attention alibi_and_sink{
    .score = [](Float s, At at) { return s + 0.7f * f32(at.kv - at.q) * (1.0f - 2.0f * f32(at.head % 2)); },
    .mask = mods::causal(),
    .sink = [](SinkAt) { return Float(0.5f); }};

/// Calls `check`, which returns the larger error, for every shape without a mod, and with a mask. Half of the shapes
/// are in a turn, each in one of both ways.
template <class Check>
void check_every(const std::vector<Shape>& shapes, const Check& check) {
  for (std::size_t nth = 0; const Shape& shape : shapes) {
    if (in_turn(nth, 16)) CHECK((check({}, shape) > 0x1p-16 || shape.kv_len == 1));  // it is not f32
    if (in_turn(nth + 2, 16)) check(nth / 2 % 2 == 0 ? band : Attention{.mask = mods::causal()}, shape);
    ++nth;
  }
}

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace attune::tests
