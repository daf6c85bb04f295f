// tests/fuzz/random_expr.h — seeded random typed expressions, and inputs to evaluate them at
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/eval.h"
#include "ir/node.h"
#include "ir/range.h"
#include "tests/turn.h"

namespace attune::ir {

/// Which expressions may be made. `ordinary()` holds every op; narrow it as a property needs.
struct Grammar {
  Signature signature;          ///< captures and params that may be read
  std::uint32_t inputs = 0;     ///< bit(Input) of every input that may be read
  int max_nodes = 40;           ///< about how many nodes, written out as a tree
  int max_sums = 2;             ///< how deep sums nest; 0: none
  std::uint32_t max_count = 4;  ///< the longest sum
  bool random = true;           ///< random(seed), kept(seed, n)
  bool custom = true;           ///< custom(value, derivative)
  bool hostile = true;          ///< literals and values such as INT_MIN, inf, NaN, denormals, -0; else small ones
  bool denormals = true;        ///< else zeros in their place: engines may treat them as 0
  bool smooth = false;          ///< only Float ops with a derivative everywhere they are defined, and small Ints
  bool share = true;            ///< sometimes reuse a sub-expression made before

  /// Every op over s, p, the coordinates and lengths, six captures of ranks 0 to 4 and every type, three params.
  static Grammar ordinary();
  /// For central differences: smooth ops over s, Float captures and params; no hostile values.
  static Grammar differentiable();
};

/// An expression that `verify` accepts; the same seed gives the same one on every machine.
Expr random_expr(std::uint64_t seed, Type type, const Grammar& grammar);

/// Values for everything an expression of a Grammar may read. Immutable; `env()` points into it, so keep it alive.
/// kv < kv_len, no coordinate or length is negative, p is in [0, 1] or NaN: what Bounds() promises.
class RandomEnv {
 public:
  RandomEnv(std::uint64_t seed, const Grammar& grammar);
  RandomEnv(const RandomEnv&) = delete;
  const Env& env() const { return env_; }
  Env& env() { return env_; }
  /// The tensors behind the captures, row-major, by slot: extents and values.
  struct Tensor {
    Type type = Type::F32;
    std::vector<std::int32_t> extents;
    std::vector<double> values;
    /// The element at an index clamped into the tensor.
    double at(std::span<const std::int32_t> index) const;
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }
  std::vector<Tensor>& tensors() { return tensors_; }
  /// Default Bounds narrowed to these params, captures and, on some seeds, to a box around these coordinates.
  Bounds bounds(std::uint64_t seed) const;

 private:
  Env env_;
  std::vector<double> params_;
  std::vector<Tensor> tensors_;
  ReadCapture read_;
};

/// The number of random cases per property: the environment variable ATTUNE_FUZZ, else 20 000, every turn others, and
/// 100 000 in a run of all turns; 5 000 under a sanitizer, because memory errors show in fewer cases than wrong values.
std::uint64_t fuzz_count();

/// SplitMix64: fast, seeded, and the same on every machine, unlike std's distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// 0 .. below - 1.
  std::uint32_t below(std::uint32_t below) { return static_cast<std::uint32_t>((next() >> 32) * below >> 32); }
  bool chance(double of_one) { return unit() < of_one; }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double between(double lo, double hi) { return lo + (hi - lo) * unit(); }
  template <class T>
  const T& pick(std::span<const T> from) {
    return from[below(static_cast<std::uint32_t>(from.size()))];
  }

 private:
  std::uint64_t state_;
};

/// A value of a type: mostly small, and when `hostile` often an extreme one. Floats are f32 values.
double random_value(Random& random, Type type, bool hostile, bool denormals = true);

}  // namespace attune::ir
