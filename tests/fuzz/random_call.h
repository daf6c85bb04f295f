// tests/fuzz/random_call.h — a random mod with its data and a call's sizes, and an engine's results compared
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/random_expr.h"
#include "tests/numerics/agree.h"

namespace attune::tests {

/// How accurate an engine's functions are.
enum class Functions : std::uint8_t {
  near,  ///< within 4 ulps of f32
  fast,  ///< as namespace fast of codegen/cuda/contract/ops.cuh says
};

/// A random mod, its data, and the shape of a call. Other shapes work too: no capture's size depends on the shape.
class RandomCall {
 public:
  explicit RandomCall(std::uint64_t seed);
  /// A call for Hopper's kernels of 16 bits, of several tiles of queries and keys: packed sequences, many heads to a
  /// key head, offsets, and masks that leave out tiles. Some scores have a dense bias.
  static RandomCall of_tiles(std::uint64_t seed);

  Shape shape;
  const compiler::BoundMod& bound() const { return bound_; }
  bool hostile() const { return hostile_; }
  /// The same mod with errors: each function has its largest allowed error, and each s an error of some ulps, of 1 as
  /// well, because its terms may cancel.
  compiler::BoundMod shaken(std::uint64_t seed, Functions functions) const;

 private:
  ir::Expr expr(std::uint64_t seed, ir::Type type, std::uint32_t inputs);
  ir::Expr score(std::uint64_t seed);
  ir::Expr prob(std::uint64_t seed);
  void data();
  /// Captures `dense`, with an element for each pair, in f32 or 16 bits; returns how a score reads it.
  std::string add_dense_bias(ir::Random& random);
  Shape random_shape(std::uint64_t seed);

  ir::Random random_;
  bool hostile_ = false;
  ir::Grammar grammar_;
  compiler::BoundMod bound_;
  std::vector<std::shared_ptr<void>> memory_;
};

/// A similar shape with per-entry settings: lengths, positions, pages.
Shape per_entry(Shape shape, std::uint64_t seed);

/// A random call for a GPU. Every second one that is not hostile suits the fastest kernels: 16 bits, rows that TMA can
/// read, up to `most_q` queries and `most_kv` keys. Hostile ones have f32.
RandomCall device_call(std::uint64_t seed, std::uint32_t most_q, std::uint32_t most_kv);
/// How accurate a GPU's functions are in that call.
Functions device_functions(const RandomCall& call);

/// The outcome of one call.
struct Judged {
  bool refused = false;   ///< the compiler refuses its mod
  bool hopeless = false;  ///< dense attention is too inexact to compare with
  std::string wrong;      ///< empty, or what is wrong, with the seed and the expressions
};
Judged judge(std::uint64_t seed, const RandomCall& call, const Engine& engine, const Compared& what,
             Functions functions = Functions::near);

/// The outcomes of many calls.
struct Tally {
  std::uint64_t cases = 0, hopeless = 0, refused = 0;
  std::string wrong;

  void add(const Judged& one);
  /// Empty, or a complaint if too few calls could be compared.
  std::string too_few() const;
};

}  // namespace attune::tests
