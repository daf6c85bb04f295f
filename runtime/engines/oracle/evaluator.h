// runtime/engines/oracle/evaluator.h — evaluates a call's expressions and reads its matrices, for the oracle
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "ir/eval.h"
#include "runtime/engines/call.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {

/// The part of a tensor, dense or packed, of one (batch entry, head): a matrix of rows by position.
struct HeadMatrix {
  const Tensor* tensor;
  MatrixLayout at;

  std::int64_t offset(std::int64_t i, std::int64_t j) const { return at.origin + i * at.row + j * at.column; }
  double get(std::int64_t i, std::int64_t j = 0) const { return load(*tensor, offset(i, j)); }
  void set(std::int64_t i, std::int64_t j, double value) const { store(*tensor, offset(i, j), value); }
  /// The first `count` rows, of `width` columns, contiguous.
  std::vector<double> all(std::int64_t count, std::int64_t width) const {
    std::vector<double> out;
    out.reserve(static_cast<std::size_t>(count * width));
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < width; ++j) out.push_back(get(i, j));
    return out;
  }
};

inline HeadMatrix rows_in(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h,
                          std::int64_t start) {
  return {&t, runtime::matrix(t, layout, b, h, start)};
}
inline HeadMatrix line_in(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h,
                          std::int64_t start) {
  return {&t, runtime::column(t, layout, b, h, start)};
}

inline double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// The number of rows of all heads; at least one.
inline double rows_of(const compiler::Problem& p) {
  double rows = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) rows += static_cast<double>(sequence(p, b).q_len);
  return std::max(1.0, rows * static_cast<double>(p.q_heads));
}

/// A Mod's expressions, ready to evaluate at one row.
class Evaluator {
 public:
  explicit Evaluator(const Call& call) : Evaluator(call, call.mod.mod) {}
  Evaluator(const Call& call, const compiler::Mod& mod)
      : problem_(call.problem), sink_(program(mod.sink)), mask_(mod.mask), score_(mod.score), prob_(mod.prob),
        dscore_(program(mod.dscore.by)), dprob_(program(mod.dprob.by)), read_(reader(call.args.captures)),
        params_(call.args.params) {
    env.params = params_;
    env.read = &read_;
  }
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  ir::Env env;
  bool sinks = true;  ///< true if the sink is part of the softmax

  void at(const Sequence& seq, std::int64_t h, std::int64_t q) {
    env.b = static_cast<std::int32_t>(seq.b);
    env.h = static_cast<std::int32_t>(h);
    env.q = static_cast<std::int32_t>(seq.q_offset + q);
    env.q_len = static_cast<std::int32_t>(seq.q_len);
    env.kv_len = seq.kv_end();
  }
  void at(const OracleRow::Pair& pair) {
    env.kv = static_cast<std::int32_t>(problem_.kv_offset + pair.kv);
    env.s = pair.s;
    env.p = pair.p;
  }

  /// s -> s' -> pairs left -> p, for one q and the keys of its head.
  OracleRow softmax(const double* q, const std::vector<double>& k, std::int64_t kv_len) {
    OracleRow row;
    for (std::int64_t kv = 0; kv < kv_len; ++kv) {
      env.kv = static_cast<std::int32_t>(problem_.kv_offset + kv);
      if (value(mask_) == 0) continue;
      env.s = problem_.scale * dot(q, k.data() + kv * problem_.d, problem_.d);
      const double score = value(score_);
      if (score == -infinity) continue;
      row.kept.push_back({kv, env.s, score, 0});
      if (score > row.max || std::isnan(score)) row.max = score;
    }
    if (sink_ && sinks) row.sink = value(*sink_);
    const double top = row.sink > row.max || std::isnan(row.sink) ? row.sink : row.max;
    if (top == -infinity) return row;
    double sum = row.sink_p = std::exp(row.sink - top);
    for (OracleRow::Pair& pair : row.kept) sum += pair.p = std::exp(pair.score - top);
    for (OracleRow::Pair& pair : row.kept) pair.p /= sum;
    row.sink_p /= sum;
    row.lse = top + std::log(sum);
    return row;
  }

  double value(const ir::Program& program, ir::Precision precision = ir::Precision::f64) {
    program.run(env, memory_, precision);
    return program.result(0, memory_);
  }
  bool keeps() { return value(mask_) != 0; }
  double score(ir::Precision precision) { return value(score_, precision); }
  double prob(ir::Precision precision = ir::Precision::f64) { return value(prob_, precision); }
  // Requires a Mod with derivatives.
  double dscore(ir::Precision precision = ir::Precision::f64) { return value(*dscore_, precision); }
  double dprob(ir::Precision precision = ir::Precision::f64) { return value(*dprob_, precision); }

 private:
  static std::optional<ir::Program> program(const ir::Expr& e) {
    return e ? std::optional<ir::Program>(e) : std::nullopt;
  }

  const compiler::Problem& problem_;
  std::optional<ir::Program> sink_;
  ir::Program mask_, score_, prob_;
  std::optional<ir::Program> dscore_, dprob_;
  ir::ReadCapture read_;
  std::vector<double> params_;
  ir::Program::Memory memory_;
};

}  // namespace attune::runtime
