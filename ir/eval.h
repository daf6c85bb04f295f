// ir/eval.h — the meaning of each op: the reference that every engine, rule, range and derivative is tested against
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/node.h"

namespace attune::ir {

/// One block of Philox 4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). From 7 rounds on it
/// passes BigCrush; the authors recommend 10.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key, int rounds);
/// Of kept(): drawing is what bounds dropout in GPU kernels.
inline constexpr int kept_rounds = 7;

/// random(seed) of the language, in [0, 1) with 24 bits, the same on every engine:
///   counter = {kv >> 2, q, head, batch}, key = {seed, 0}, 10 rounds, the word kv & 3 of the block, its top 24 bits
///   times 2^-24.
/// Four neighbouring kv share one block, so a vector or a fragment pays a quarter of a block per element.
float random(std::int32_t seed, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv);

/// kept(seed, n) of the language, true for n of 65536 pairs: u < n, where u has 16 bits. The same on every engine.
/// 16 neighbouring kv share the block of
///   counter = {kv >> 4, q, head, batch}, key = {seed, 1}, 7 rounds.
/// Of its word i, shifted right by kv & 15, bit 0 is bit 8 + i of u, and bit 16 is bit 12 + i; of word i rotated to the
/// right by 5 xor word i rotated by 11, they are bits i and 4 + i. So a pair takes 8 bits of its own, and 8 that it
/// shares with others of the block; the bits of any two pairs are independent.
///
/// Bit by bit, a few instructions compare 32 pairs at once: see kept_word() in codegen/cuda/contract/ops.cuh.
bool kept(std::int32_t seed, std::int32_t n, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv);

/// f64: Floats are doubles, as in the oracle. f32: each operation rounds to f32, as engines do. Int is exact in both.
enum class Precision : std::uint8_t { f64, f32 };

/// Reads a captured tensor: its slot and the unclamped indices, which the callee clamps. Gives Int and Bool as whole
/// numbers.
using ReadCapture = std::function<double(std::uint32_t slot, std::span<const std::int32_t> index)>;

/// The values an expression is evaluated with.
struct Env {
  double s = 0, p = 0;
  std::int32_t b = 0, h = 0, q = 0, kv = 0, q_len = 1, kv_len = 1, origin = 0;
  std::int32_t q_begin = 0, q_end = 0, kv_begin = 0, kv_end = 0;
  std::span<const double> params;
  const ReadCapture* read = nullptr;       ///< required if the expression reads captures
  std::span<const double> head, row, col;  ///< the fields of each level, if the expression has any
  std::span<const std::int32_t> bound;     ///< by binder: the variables of the sums around the expression
};

/// One operation on values; `of_args` is the type of its last argument. Int and Bool are whole numbers.
/// A Bug for leaves, reads, sums and random, which need an Env.
double apply(Op op, Type of_args, std::span<const double> args, Precision precision);

/// Expressions flattened once, evaluated many times. Immutable: share one between threads, each with its own Memory.
class Program {
 public:
  using Memory = std::vector<double>;

  explicit Program(std::span<const Expr> roots);
  explicit Program(const Expr& root) : Program(std::span(&root, 1)) {}

  /// Evaluates every root; `result(i, memory)` then gives the i-th. Allocates only to grow `memory`.
  void run(const Env& env, Memory& memory, Precision precision = Precision::f64) const;
  double result(std::size_t root, const Memory& memory) const { return memory[results_[root]]; }
  /// The number of operations of a run: operations within sums count once for each term.
  double cost() const;

 private:
  struct Step {
    Op op;
    Type type, of_args;
    bool needs_env;  ///< true if `apply` cannot evaluate the op
    std::uint8_t arity;
    std::uint32_t bits, into;
    std::array<std::uint32_t, max_args> from;  ///< Sum: its body's slot, its variable's slot
    std::uint32_t loop_end;                    ///< Sum: its body is the steps from the next one up to here
  };
  /// Slots of the nodes emitted so far, by the innermost binder a node depends on; the last entry is for closed nodes.
  using Slots = std::array<DigestMap<std::uint32_t>, 33>;
  void emit(const Node& node, Slots& slots);
  std::uint32_t emit_loop(std::uint32_t variable, std::span<const Expr> bodies, Slots& slots);
  template <class Real>
  void run(std::size_t begin, std::size_t end, const Env& env, double* memory) const;
  template <class Real>
  static double fetch(const Step& step, const Env& env, const double* memory);

  std::vector<Step> steps_;
  std::vector<double> literals_;  ///< the first slots
  std::vector<std::uint32_t> results_;
  struct Free {
    std::uint32_t binder, slot;
  };
  std::vector<Free> free_;  ///< variables that Env::bound gives
  std::uint32_t slots_ = 0;
};

double eval(const Expr& root, const Env& env, Precision precision = Precision::f64);

}  // namespace attune::ir
