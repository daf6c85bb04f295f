// runtime/engines/oracle/oracle.cpp — the definition of attention: forward and backward in double precision, simple and
// slow
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/captures.h"
#include "runtime/engines/infinity.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <attune/error.h>

#include "runtime/engines/keys.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/merge.h"
#include "runtime/engines/oracle/scatters.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

using compiler::Problem;

/// The part of a tensor, dense or packed, of one (batch entry, head): a matrix of rows by position.
struct Rows {
  const Tensor* tensor;
  MatrixLayout at;

  std::int64_t offset(std::int64_t i, std::int64_t j) const { return at.origin + i * at.row + j * at.column; }
  double get(std::int64_t i, std::int64_t j = 0) const { return load(*tensor, offset(i, j)); }
  void set(std::int64_t i, std::int64_t j, double value) const { store(*tensor, offset(i, j), value); }
  /// The first `count` rows, of `width` columns, one after the other.
  std::vector<double> all(std::int64_t count, std::int64_t width) const {
    std::vector<double> out;
    out.reserve(static_cast<std::size_t>(count * width));
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < width; ++j) out.push_back(get(i, j));
    return out;
  }
};

Rows rows_in(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h, std::int64_t start) {
  return {&t, runtime::matrix(t, layout, b, h, start)};
}
Rows line_in(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h, std::int64_t start) {
  return {&t, runtime::column(t, layout, b, h, start)};
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

double rows_of(const Problem& p) {
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
        dscore_(program(mod.dscore.by)), dprob_(program(mod.dprob.by)), read_(reader(call.args.captures)) {
    env.params = call.args.params;
    env.read = &read_;
  }
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  ir::Env env;
  bool sinks = true;  ///< does the sink join the softmax?

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
  // Only for a Mod with derivatives.
  double dscore(ir::Precision precision = ir::Precision::f64) { return value(*dscore_, precision); }
  double dprob(ir::Precision precision = ir::Precision::f64) { return value(*dprob_, precision); }

 private:
  static std::optional<ir::Program> program(const ir::Expr& e) {
    return e ? std::optional<ir::Program>(e) : std::nullopt;
  }

  const Problem& problem_;
  std::optional<ir::Program> sink_;
  ir::Program mask_, score_, prob_;
  std::optional<ir::Program> dscore_, dprob_;
  ir::ReadCapture read_;
  ir::Program::Memory memory_;
};

/// Stores a contiguous sum into a tensor of any strides, rounded to its type.
void store_all(const std::vector<double>& sum, const Tensor& into) {
  std::array<std::int64_t, Tensor::max_rank> at{}, extent{1, 1, 1, 1};
  std::copy_n(into.shape.begin(), into.rank, extent.begin());
  std::size_t next = 0;
  for (at[0] = 0; at[0] < extent[0]; ++at[0])
    for (at[1] = 0; at[1] < extent[1]; ++at[1])
      for (at[2] = 0; at[2] < extent[2]; ++at[2])
        for (at[3] = 0; at[3] < extent[3]; ++at[3]) store(into, offset(into, at[0], at[1], at[2], at[3]), sum[next++]);
}

/// dk or dv: summed over the query heads of a group, and over the batch when k and v are shared.
struct KVSum {
  explicit KVSum(const Tensor& k) : shape(k) {
    std::int64_t step = 1;
    for (std::size_t i = static_cast<std::size_t>(k.rank); i-- > 0; step *= k.shape[i]) shape.strides[i] = step;
    sum.resize(static_cast<std::size_t>(step));
  }
  /// One row of one batch entry and KV head.
  double* row(const Problem& p, const Sequence& seq, std::int64_t kv_head, std::int64_t kv) {
    return sum.data() + rows_in(shape, p.kv.layout, seq.kv_b, kv_head, seq.kv_start).offset(kv, 0);
  }
  Tensor shape;  ///< contiguous; its data is not used
  std::vector<double> sum;
};

}  // namespace

struct OracleRows::Head {
  explicit Head(const Call& of) : call(of.forward()), problem(of.problem), at(of) { at.sinks = !call.o_before.given(); }

  const Forward& call;
  const Problem& problem;
  Evaluator at;
  Sequence seq{};
  std::int64_t b = -1, h = -1;
  std::vector<double> q, k, v, o;
  OracleRow row;

  void enter(std::int64_t batch, std::int64_t head) {
    if (b == batch && h == head) return;
    seq = sequence(problem, batch);
    const auto all = [&](const Tensor& t, std::int64_t width) {
      const KeyRows keys(problem, call.pages, seq, head / problem.group);
      std::vector<double> out(static_cast<std::size_t>(seq.kv_len * width));
      for (std::int64_t kv = 0; kv < seq.kv_len;) {
        const KeyRows::Stretch stretch = keys.stretch(t, kv, seq.kv_len);
        const std::vector<double> some = stretch.there ? Rows{&t, stretch.at}.all(stretch.count, width)
                                                       : std::vector<double>();
        std::ranges::copy(some, out.begin() + kv * width);
        kv += stretch.count;
      }
      return out;
    };
    // Query heads of a group read the same keys.
    if (b != batch || h / problem.group != head / problem.group) {
      k = all(call.k, problem.d);
      v = all(call.v, problem.dv);
    }
    b = batch;
    h = head;
  }

  void place(std::int64_t i) {
    const Rows of = rows_in(call.q, problem.q.layout, b, h, seq.q_start);
    q.clear();
    for (std::int64_t j = 0; j < problem.d; ++j) q.push_back(of.get(i, j));
    at.at(seq, h, i);
  }

  void compute() {
    row = at.softmax(q.data(), k, seq.kv_len);
    o.assign(static_cast<std::size_t>(problem.dv), 0);
    for (const OracleRow::Pair& pair : row.kept) {
      at.at(pair);
      const double p = at.prob();
      for (std::int64_t j = 0; j < problem.dv; ++j)
        o[static_cast<std::size_t>(j)] += p * v[static_cast<std::size_t>(pair.kv * problem.dv + j)];
    }
  }
};

OracleRows::OracleRows(const Call& call) : head_(std::make_unique<Head>(call)) {}
OracleRows::~OracleRows() = default;

const OracleRow& OracleRows::row(std::int64_t b, std::int64_t h, std::int64_t i) {
  enter(b, h, i);
  head_->compute();
  return head_->row;
}
void OracleRows::enter(std::int64_t b, std::int64_t h, std::int64_t i) {
  head_->enter(b, h);
  head_->place(i);
}
const std::vector<double>& OracleRows::o() const { return head_->o; }

namespace {

std::span<const double> row_of(const std::vector<double>& matrix, std::int64_t i, std::int64_t width) {
  return std::span(matrix).subspan(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width));
}

}  // namespace

std::span<const double> OracleRows::q() const { return head_->q; }
std::span<const double> OracleRows::k(std::int64_t kv) const { return row_of(head_->k, kv, head_->problem.d); }
std::span<const double> OracleRows::v(std::int64_t kv) const { return row_of(head_->v, kv, head_->problem.dv); }

double OracleRows::score(std::int64_t kv, double s, ir::Precision precision) {
  head_->at.at(OracleRow::Pair{kv, s, 0, 0});
  return head_->at.keeps() ? head_->at.score(precision) : -infinity;
}
double OracleRows::prob(std::int64_t kv, double p, ir::Precision precision) {
  head_->at.at(OracleRow::Pair{kv, 0, 0, p});
  return head_->at.prob(precision);
}
double OracleRows::dscore(std::int64_t kv, double s, ir::Precision precision) {
  head_->at.at(OracleRow::Pair{kv, s, 0, 0});
  return head_->at.dscore(precision);
}
double OracleRows::dprob(std::int64_t kv, double p, ir::Precision precision) {
  head_->at.at(OracleRow::Pair{kv, 0, 0, p});
  return head_->at.dprob(precision);
}
double OracleRows::value(const ir::Program& program, const OracleRow::Pair& pair) {
  head_->at.at(pair);
  return head_->at.value(program);
}

void oracle_forward(const Call& checked, const Progress& progress) {
  const Forward& call = checked.forward();
  const Problem& problem = checked.problem;
  OracleRows at(checked);
  Rate rate(progress, rows_of(problem));
  double rows = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence seq = sequence(problem, b);
    for (std::int64_t h = 0; h < problem.q_heads; ++h)
      for (std::int64_t i = 0; i < seq.q_len; ++i) {
        const OracleRow& row = at.row(b, h, i);
        const auto of = [&](const Tensor& t) { return rows_in(t, problem.q.layout, b, h, seq.q_start); };
        const auto line = [&](const Tensor& t) { return line_in(t, problem.q.layout, b, h, seq.q_start); };
        Merged merged{.lse = row.lse};
        if (call.o_before.given()) merged = merge(row.lse, line(call.lse_before).get(i));
        const Rows o = of(call.o);
        for (std::int64_t j = 0; j < problem.dv; ++j) {
          double sum = at.o()[static_cast<std::size_t>(j)] * merged.own;
          // What counts for nothing may be anything.
          if (merged.before != 0) sum += of(call.o_before).get(i, j) * merged.before;
          o.set(i, j, sum);
        }
        if (call.lse.given()) line(call.lse).set(i, 0, merged.lse);
        if (call.max.given()) line_in(call.max, problem.q.layout, b, h, seq.q_start).set(i, 0, row.max);
        rate.at(++rows);
      }
  }
}

// With dp' = dO . v and p' = prob(p):
//   dv += p' dO          dp = dp' dprob/dp      delta = sum p dp  (the sink's dp is 0)
//   ds' = p (dp - delta) + dlse p               the softmax, and lse = log sum exp s'
//   ds = ds' dscore/ds * scale,  dq += ds k,  dk += ds q
void oracle_backward(const Call& call, const Progress& progress) {
  for (const CapturedSum& sum : oracle_gradients(call, progress)) store_all(sum.sum, sum.asked->into);
}

std::vector<CapturedSum> oracle_gradients(const Call& checked, const Progress& progress) {
  const Backward& call = checked.backward();
  const Problem& problem = checked.problem;
  const compiler::Mod& mod = checked.mod.mod;
  if (!mod.dscore.by || !mod.dprob.by) throw Bug("a backward was asked of a Mod without derivatives");
  const compiler::Args& args = checked.args;
  Evaluator at(checked);
  std::vector<CapturedSum> sums;
  for (const Backward::Captured& asked : call.captured) sums.emplace_back(asked);
  Scatters by_score(mod.dscore.captures, args, sums), by_prob(mod.dprob.captures, args, sums),
      by_sink(mod.dsink.captures, args, sums);
  KVSum dk(call.k), dv(call.v);
  Rate rate(progress, rows_of(problem));
  double rows = 0;

  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence seq = sequence(problem, b);
    for (std::int64_t h = 0; h < problem.q_heads; ++h) {
      const std::int64_t kv_head = h / problem.group;
      const auto of = [&](const Tensor& t, std::int64_t width) {
        return rows_in(t, problem.q.layout, b, h, seq.q_start).all(seq.q_len, width);
      };
      const auto kv_of = [&](const Tensor& t, std::int64_t width) {
        return rows_in(t, problem.kv.layout, seq.kv_b, kv_head, seq.kv_start).all(seq.kv_len, width);
      };
      const std::vector<double> qs = of(call.q, problem.d), grad_os = of(call.grad_o, problem.dv);
      const std::vector<double> k = kv_of(call.k, problem.d), v = kv_of(call.v, problem.dv);
      for (std::int64_t i = 0; i < seq.q_len; ++i) {
        const double* q = qs.data() + i * problem.d;
        const double* grad_o = grad_os.data() + i * problem.dv;
        at.at(seq, h, i);
        const OracleRow row = at.softmax(q, k, seq.kv_len);
        const double dlse = call.grad_lse.given() ? line_in(call.grad_lse, problem.q.layout, b, h, seq.q_start).get(i)
                                                  : 0;

        std::vector<double> dp;
        double delta = 0;
        for (const OracleRow::Pair& pair : row.kept) {
          at.at(pair);
          const double p_after = at.prob(), dp_after = dot(grad_o, v.data() + pair.kv * problem.dv, problem.dv);
          double* to = dv.row(problem, seq, kv_head, pair.kv);
          for (std::int64_t j = 0; j < problem.dv; ++j) to[j] += p_after * grad_o[j];
          by_prob.add(dp_after, at.env);
          dp.push_back(dp_after * at.dprob());
          delta += pair.p * dp.back();
        }

        std::vector<double> dq(static_cast<std::size_t>(problem.d));
        for (std::size_t n = 0; n < row.kept.size(); ++n) {
          const OracleRow::Pair& pair = row.kept[n];
          at.at(pair);
          const double ds_after = pair.p * (dp[n] - delta + dlse);
          by_score.add(ds_after, at.env);
          const double ds = ds_after * at.dscore() * problem.scale;
          double* to = dk.row(problem, seq, kv_head, pair.kv);
          for (std::int64_t j = 0; j < problem.d; ++j) {
            dq[static_cast<std::size_t>(j)] += ds * k[static_cast<std::size_t>(pair.kv * problem.d + j)];
            to[j] += ds * q[j];
          }
        }
        // A sink at -inf adds nothing, whatever the rest of its row is.
        if (row.sink != -infinity) by_sink.add(row.sink_p * (dlse - delta), at.env);

        if (call.dq.given())
          for (std::int64_t j = 0; j < problem.d; ++j)
            rows_in(call.dq, problem.q.layout, b, h, seq.q_start).set(i, j, dq[static_cast<std::size_t>(j)]);
        rate.at(++rows);
      }
    }
  }
  if (call.dk.given()) store_all(dk.sum, call.dk);
  if (call.dv.given()) store_all(dv.sum, call.dv);
  return sums;
}

}  // namespace attune::runtime
