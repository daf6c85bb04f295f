// runtime/engines/oracle/gradients.cpp — the definition of attention's backward in double precision, simple and slow
#include <algorithm>
#include <array>
#include <utility>

#include <attune/error.h>

#include "runtime/engines/merge.h"
#include "runtime/engines/oracle/evaluator.h"
#include "runtime/engines/oracle/oracle.h"

namespace attune::runtime {
namespace {

std::vector<ir::Expr> roots(const compiler::Scatter& scatter) {
  std::vector<ir::Expr> all = scatter.index;
  all.push_back(scatter.value);
  return all;
}

}  // namespace

Scatters::Term::Term(const compiler::Scatter& scatter, CapturedSum& to)
    : loops(scatter.loops), program(roots(scatter)), sum(&to) {}

Scatters::Scatters(const std::vector<compiler::Scatter>& all, const compiler::Args& args,
                   std::vector<CapturedSum>& sums) {
  for (const compiler::Scatter& scatter : all)
    for (CapturedSum& sum : sums)
      if (is_of(*sum.asked, args, scatter.capture)) terms_.emplace_back(scatter, sum);
}

void Scatters::add(double upstream, double parts, ir::Env& env) {
  for (Term& term : terms_) {
    env.bound = term.bound;
    add({upstream, parts}, env, term, 0);
    env.bound = {};
  }
}

void Scatters::add(Upstream upstream, ir::Env& env, Term& term, std::size_t loop) {
  if (loop < term.loops.size()) {
    const auto [binder, count] = term.loops[loop];
    for (std::uint32_t i = 0; i < count; ++i) {
      term.bound[binder] = static_cast<std::int32_t>(i);
      add(upstream, env, term, loop + 1);
    }
    return;
  }
  term.program.run(env, memory_);
  const Tensor& of = term.sum->asked->of;
  std::int64_t element = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(of.rank); ++i) {
    const auto index = static_cast<std::int64_t>(term.program.result(i, memory_));
    element = element * of.shape[i] + std::clamp<std::int64_t>(index, 0, of.shape[i] - 1);
  }
  const double by = term.program.result(static_cast<std::size_t>(of.rank), memory_), x = upstream.x * by,
               parts = upstream.parts * by;
  term.sum->sum[static_cast<std::size_t>(element)] += x;
  term.sum->squares[static_cast<std::size_t>(element)] += x * x;
  term.sum->part_squares[static_cast<std::size_t>(element)] += parts * parts;
}

namespace {

using compiler::Problem;

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

// With dp' = dO . v and p' = prob(p):
//   dv += p' dO          dp = dp' dprob/dp      delta = sum p dp  (the sink's dp is 0)
//   ds' = p (dp - delta) + dlse p               the softmax, and lse = log sum exp s'
//   ds = ds' dscore/ds * scale,  dq += ds k,  dk += ds q
class Gradients {
 public:
  explicit Gradients(const Call& of)
      : call_(of.backward()), problem_(of.problem), at_(of), sums_(sums_of(call_)),
        by_score_(of.mod.mod.dscore.captures, of.args, sums_), by_prob_(of.mod.mod.dprob.captures, of.args, sums_),
        by_sink_(of.mod.mod.dsink.captures, of.args, sums_), dk_(call_.k), dv_(call_.v) {}

  std::vector<CapturedSum> operator()(const Progress& progress) {
    Rate rate(progress, rows_of(problem_));
    double rows = 0;
    for (std::int64_t b = 0; b < problem_.batch; ++b)
      for (std::int64_t h = 0; h < problem_.q_heads; ++h) {
        enter(b, h);
        for (std::int64_t i = 0; i < seq_.q_len; ++i) {
          row(i);
          rate.at(++rows);
        }
      }
    if (call_.dk.given()) store_all(dk_.sum, call_.dk);
    if (call_.dv.given()) store_all(dv_.sum, call_.dv);
    return std::move(sums_);
  }

 private:
  static std::vector<CapturedSum> sums_of(const Backward& call) {
    std::vector<CapturedSum> out;
    for (const Backward::Captured& asked : call.captured) out.emplace_back(asked);
    return out;
  }

  void enter(std::int64_t b, std::int64_t h) {
    seq_ = sequence(problem_, b);
    h_ = h;
    kv_head_ = h / problem_.group;
    const auto of_q = [&](const Tensor& t, std::int64_t width) {
      return rows_in(t, problem_.q.layout, b, h, seq_.q_start).all(seq_.q_len, width);
    };
    const auto of_kv = [&](const Tensor& t, std::int64_t width) {
      return rows_in(t, problem_.kv.layout, seq_.kv_b, kv_head_, seq_.kv_start).all(seq_.kv_len, width);
    };
    q_ = of_q(call_.q, problem_.d);
    grad_o_ = of_q(call_.grad_o, problem_.dv);
    k_ = of_kv(call_.k, problem_.d);
    v_ = of_kv(call_.v, problem_.dv);
  }

  void row(std::int64_t i) {
    const double* q = q_.data() + i * problem_.d;
    const double* grad_o = grad_o_.data() + i * problem_.dv;
    at_.at(seq_, h_, i);
    const OracleRow row = at_.softmax(q, k_, seq_.kv_len);
    const double dlse = call_.grad_lse.given()
                            ? line_in(call_.grad_lse, problem_.q.layout, seq_.b, h_, seq_.q_start).get(i)
                            : 0;

    std::vector<double> dp;
    double delta = 0;
    for (const OracleRow::Pair& pair : row.kept) {
      at_.at(pair);
      const double p_after = at_.prob(), dp_after = dot(grad_o, v_.data() + pair.kv * problem_.dv, problem_.dv);
      double* to = dv_.row(problem_, seq_, kv_head_, pair.kv);
      for (std::int64_t j = 0; j < problem_.dv; ++j) to[j] += p_after * grad_o[j];
      by_prob_.add(dp_after, at_.env);
      dp.push_back(dp_after * at_.dprob());
      delta += pair.p * dp.back();
    }

    std::vector<double> dq(static_cast<std::size_t>(problem_.d));
    for (std::size_t n = 0; n < row.kept.size(); ++n) {
      const OracleRow::Pair& pair = row.kept[n];
      at_.at(pair);
      const double ds_after = pair.p * (dp[n] - delta + dlse);
      by_score_.add(ds_after, pair.p * (std::abs(dp[n]) + std::abs(delta) + std::abs(dlse)), at_.env);
      const double ds = ds_after * at_.dscore() * problem_.scale;
      double* to = dk_.row(problem_, seq_, kv_head_, pair.kv);
      for (std::int64_t j = 0; j < problem_.d; ++j) {
        dq[static_cast<std::size_t>(j)] += ds * k_[static_cast<std::size_t>(pair.kv * problem_.d + j)];
        to[j] += ds * q[j];
      }
    }
    // A sink at -inf adds nothing, whatever the rest of its row is.
    if (row.sink != -infinity) by_sink_.add(row.sink_p * (dlse - delta), at_.env);
    if (!call_.dq.given()) return;
    const HeadMatrix into = rows_in(call_.dq, problem_.q.layout, seq_.b, h_, seq_.q_start);
    for (std::int64_t j = 0; j < problem_.d; ++j) into.set(i, j, dq[static_cast<std::size_t>(j)]);
  }

  const Backward& call_;
  const Problem& problem_;
  Evaluator at_;
  std::vector<CapturedSum> sums_;
  Scatters by_score_, by_prob_, by_sink_;
  KVSum dk_, dv_;
  // The current head's:
  Sequence seq_{};
  std::int64_t h_ = 0, kv_head_ = 0;
  std::vector<double> q_, grad_o_, k_, v_;
};

}  // namespace

void oracle_backward(const Call& call, const Progress& progress) {
  for (const CapturedSum& sum : oracle_gradients(call, progress)) store_all(sum.sum, sum.asked->into);
}

std::vector<CapturedSum> oracle_gradients(const Call& call, const Progress& progress) {
  if (!call.mod.mod.dscore.by || !call.mod.mod.dprob.by) throw Bug("a backward was asked of a Mod without derivatives");
  return Gradients(call)(progress);
}

}  // namespace attune::runtime
