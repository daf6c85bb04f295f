// runtime/engines/oracle/oracle.h — the definition of attention: forward and backward in double precision, simple and
// slow
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <attune/attention.h>

#include "compiler/bind.h"
#include "ir/eval.h"
#include "runtime/engines/engine.h"
#include "runtime/engines/merge.h"

namespace attune::runtime {

/// A row of queries after its softmax. It has only the pairs that were kept; removed pairs are never read.
struct OracleRow {
  struct Pair {
    std::int64_t kv;
    double s, score, p;
  };
  std::vector<Pair> kept;
  double max = -infinity;   ///< of the kept scores
  double lse = -infinity;   ///< over the kept scores and the sink
  double sink = -infinity;  ///< the sink's logit
  double sink_p = 0;        ///< the sink's probability
};

/// Rows of a call, in any order. Consecutive rows of one head read its keys and values once. The call's results are
/// not read.
class OracleRows {
 public:
  /// Of a forward.
  explicit OracleRows(const Call& call);
  ~OracleRows();

  /// Row i of a batch entry or packed sequence; valid until the next call.
  const OracleRow& row(std::int64_t b, std::int64_t h, std::int64_t i);
  const std::vector<double>& o() const;
  /// Selects the row without computing its softmax, the only step that reads more than one pair.
  void enter(std::int64_t b, std::int64_t h, std::int64_t i);

  // The last row's inputs, and expressions at one of its pairs. A pair that the mask removes has a score of -inf.
  std::span<const double> q() const, k(std::int64_t kv) const, v(std::int64_t kv) const;
  double score(std::int64_t kv, double s, ir::Precision precision = ir::Precision::f64);
  double prob(std::int64_t kv, double p, ir::Precision precision = ir::Precision::f64);
  // Only for a Mod with derivatives: of the score by s, of the prob mod by p.
  double dscore(std::int64_t kv, double s, ir::Precision precision = ir::Precision::f64);
  double dprob(std::int64_t kv, double p, ir::Precision precision = ir::Precision::f64);
  /// Another expression of the call's, at a pair of the last row.
  double value(const ir::Program& program, const OracleRow::Pair& pair);

 private:
  struct Head;
  std::unique_ptr<Head> head_;
};

/// A Mod as it was written, for calls of the oracle, which needs no cover.
inline compiler::LoweredMod as_written(compiler::BoundMod bound) {
  return {{std::move(bound)}, ir::Digest{}, compiler::Cover{}};
}

void oracle_forward(const Call& call, const Progress& progress = {});
void oracle_backward(const Call& call, const Progress& progress = {});

struct CapturedSum;
/// The same, except that gradients of captured tensors are returned and not stored.
std::vector<CapturedSum> oracle_gradients(const Call& call, const Progress& progress = {});

/// The oracle needs no workspace.
inline constexpr Engine oracle{.workspace = [](const Call&, const Means&) -> std::size_t { return 0; },
                               .run =
                                   [](const Call& call, const Means& means) {
                                     call.is_forward() ? oracle_forward(call, means.progress)
                                                       : oracle_backward(call, means.progress);
                                   },
                               .story = nullptr};

/// A captured tensor's gradient. For each element: the sum of its terms, and the sums of their squares and of those of
/// their parts, which cancel: in a row with one key dp and delta are equal, and terms are 0.
struct CapturedSum {
  explicit CapturedSum(const Backward::Captured& one)
      : asked(&one), sum(static_cast<std::size_t>(one.of.size())), squares(sum.size()), part_squares(sum.size()) {}

  const Backward::Captured* asked;
  std::vector<double> sum, squares, part_squares;
};

/// The terms that one expression adds to the captured gradients that a call requests.
class Scatters {
 public:
  Scatters(const std::vector<compiler::Scatter>& all, const compiler::Args& args, std::vector<CapturedSum>& sums);

  bool empty() const { return terms_.empty(); }
  /// `parts`: the size of the upstream's parts, if it has several.
  void add(double upstream, double parts, ir::Env& env);
  void add(double upstream, ir::Env& env) { add(upstream, upstream, env); }

 private:
  struct Term {
    Term(const compiler::Scatter& scatter, CapturedSum& to);
    std::vector<compiler::Scatter::Loop> loops;
    ir::Program program;
    CapturedSum* sum;
    std::vector<std::int32_t> bound = std::vector<std::int32_t>(ir::max_binders + 1);  ///< by binder
  };

  struct Upstream {
    double x, parts;
  };
  void add(Upstream upstream, ir::Env& env, Term& term, std::size_t loop);

  std::vector<Term> terms_;
  ir::Program::Memory memory_;
};

}  // namespace attune::runtime
