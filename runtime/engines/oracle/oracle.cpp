// runtime/engines/oracle/oracle.cpp — the definition of attention's forward in double precision, simple and slow
#include "runtime/engines/oracle/oracle.h"

#include <algorithm>
#include <cmath>

#include "runtime/engines/layout.h"
#include "runtime/engines/merge.h"
#include "runtime/engines/oracle/evaluator.h"

namespace attune::runtime {

using compiler::Problem;

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
      const KeyRows keys(problem, call.page_table, seq, head / problem.group);
      std::vector<double> out(static_cast<std::size_t>(seq.kv_len * width));
      for (std::int64_t kv = 0; kv < seq.kv_len;) {
        const KeyRows::Range range = keys.range(t, kv, seq.kv_len);
        const std::vector<double> some = range.there ? HeadMatrix{&t, range.at}.all(range.count, width)
                                                     : std::vector<double>();
        std::ranges::copy(some, out.begin() + kv * width);
        kv += range.count;
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
    const HeadMatrix of = rows_in(call.q, problem.q.layout, b, h, seq.q_start);
    q.clear();
    for (std::int64_t j = 0; j < problem.d; ++j) q.push_back(of.get(i, j));
    at.at(seq, h, i);
  }

  void compute() {
    row = at.softmax(q.data(), k, seq.kv_len);
    // prob() might hide infinite and NaN scores: it need not depend on p.
    const bool hidden = !row.kept.empty() && std::isnan(row.lse);
    o.assign(static_cast<std::size_t>(problem.dv), hidden ? row.lse : 0);
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
        const HeadMatrix o = of(call.o);
        for (std::int64_t j = 0; j < problem.dv; ++j) {
          double sum = at.o()[static_cast<std::size_t>(j)] * merged.own;
          // Results with weight 0 may be anything and are not read.
          if (merged.before != 0) sum += of(call.o_before).get(i, j) * merged.before;
          o.set(i, j, sum);
        }
        if (call.lse.given()) line(call.lse).set(i, 0, merged.lse);
        if (call.max.given()) line_in(call.max, problem.q.layout, b, h, seq.q_start).set(i, 0, row.max);
        rate.at(++rows);
      }
  }
}

}  // namespace attune::runtime
