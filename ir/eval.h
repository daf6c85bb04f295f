// ir/eval.h — what each op means: the reference every engine, rule, range and derivative is tested against
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/node.h"

namespace attune::ir {

/// f64: Floats are doubles, as in the oracle. f32: each operation rounds to f32, as engines do. Int is exact in both.
enum class Precision : std::uint8_t { f64, f32 };

/// A captured read: the slot and its (unclamped) indices; the callee clamps. Int and Bool come as whole numbers.
using ReadCapture = std::function<double(std::uint32_t slot, std::span<const std::int32_t> index)>;

/// What an expression is evaluated at.
struct Env {
  double s = 0, p = 0;
  std::int32_t b = 0, h = 0, q = 0, kv = 0, q_len = 1, kv_len = 1, origin = 0;
  std::span<const double> params;
  const ReadCapture* read = nullptr;  ///< must be there if the expression reads
  std::span<const double> head, row, col;  ///< the fields of each level, if the expression has any
};

/// One operation on values. Not for leaves, reads, sums or random, which need an Env.
double apply(Op op, Type type, Type of_args, std::span<const double> args, Precision precision);

/// Expressions flattened once, evaluated many times. Immutable: share one between threads, each with its own Memory.
class Program {
 public:
  using Memory = std::vector<double>;

  explicit Program(std::span<const Expr> roots);
  explicit Program(const Expr& root) : Program(std::span(&root, 1)) {}

  /// Evaluates every root; `result(i, memory)` then gives the i-th.
  void run(const Env& env, Memory& memory, Precision precision = Precision::f64) const;
  double result(std::size_t root, const Memory& memory) const { return memory[results_[root]]; }

 private:
  struct Step {
    Op op;
    Type type, of_args;
    std::uint8_t arity;
    std::uint32_t bits, into;
    std::array<std::uint32_t, max_args> from;
    std::uint32_t loop_end;  ///< Sum: its body is the steps from the next one up to here
  };
  void emit(const Expr& root, std::uint32_t binders, DigestMap<std::uint32_t>& where);
  void run(std::size_t begin, std::size_t end, const Env& env, Memory& memory, Precision precision) const;

  std::vector<Step> steps_;
  std::vector<std::uint32_t> results_;
  std::uint32_t slots_ = 0;
};

double eval(const Expr& root, const Env& env, Precision precision = Precision::f64);

}  // namespace attune::ir
