// runtime/engines/cpu/results.cpp — from a row's sums to the caller's results: normalised outputs, lse and maxima
#include "runtime/engines/cpu/results.h"

#include <cmath>
#include <limits>

#include "runtime/engines/call.h"
#include "runtime/engines/merge.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime::cpu {
Finished finish(double m, double l, double sink, double term) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  // Nothing was kept: the row term does not matter, and only the sink is in the softmax.
  if (l == 0 || term == -infinity) return {0, sink == infinity ? nan : sink, -infinity, -infinity};
  const double max = std::isnan(l) && m != infinity ? nan : m + term;
  if (std::isnan(term) || term == infinity) return {nan, nan, max, nan};
  const double own = sink - term;
  double top = m;
  if (own > m || std::isnan(own)) top = own;
  const double scale = top == m && std::isfinite(m) ? 1 : std::exp(m - top);
  const double sum = l * scale + (own == -infinity ? 0 : std::exp(own - top));
  const double lse = top + std::log(sum);
  return {scale / sum, lse + term, max, lse};
}

double sink_at(const Call& call, const codegen::Frame& frame) {
  const ir::Expr& sink = call.mod.mod.sink;
  if (!sink || (call.is_forward() && call.forward().o_before.given())) return -infinity;
  const ir::ReadCapture read = reader(call.args.captures);
  ir::Env env;
  env.b = frame.b;
  env.h = frame.h;
  env.q_len = frame.q_len;
  env.kv_len = frame.kv_len;
  env.params = call.args.params;
  env.read = &read;
  return ir::eval(sink, env);
}

Results::Results(const Call& call, const KernelsFor& what)
    : call_(call.forward()), problem_(call.problem), o_(what, unit_for(what.isa, call_.o.dtype), call_.o.dtype) {}

void Results::store(const Sequence& seq, const Rows& rows, std::span<const Finished> finished) const {
  each_query_run(problem_, seq, rows.first, rows.count, [&](std::int64_t skip, std::int64_t count, std::int64_t row) {
    const Rows some{.h = rows.h,
                    .first = row,
                    .count = count,
                    .o = rows.o + skip * rows.o_row,
                    .o_row = rows.o_row,
                    .factor = rows.factor + skip};
    const auto of = finished.subspan(static_cast<std::size_t>(skip), static_cast<std::size_t>(count));
    call_.o_before.given() ? merge(seq, some, of) : store_all(seq, some, of);
  });
}

void Results::merge(const Sequence& seq, const Rows& rows, std::span<const Finished> finished) const {
  const MatrixLayout lse = column(call_.lse_before, problem_.q.layout, seq.b, rows.h, seq.q_start),
                     o = matrix(call_.o_before, problem_.q.layout, seq.b, rows.h, seq.q_start);
  std::vector<Finished> merged(finished.begin(), finished.end());
  std::vector<float> sums(static_cast<std::size_t>(rows.count * problem_.dv)),
      ones(static_cast<std::size_t>(rows.count), 1.0f);
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const std::int64_t row = rows.first + r;
    Finished& here = merged[static_cast<std::size_t>(r)];
    const Merged with = runtime::merge(here.lse, load(call_.lse_before, lse.origin + row * lse.row));
    here.lse = with.lse;
    for (std::int64_t j = 0; j < problem_.dv; ++j) {
      double sum = double{rows.o[r * rows.o_row + j]} * double{rows.factor[r]} * with.own;
      // Results with weight 0 may be anything and are not read.
      if (with.before != 0) sum += load(call_.o_before, o.origin + row * o.row + j * o.column) * with.before;
      sums[static_cast<std::size_t>(r * problem_.dv + j)] = static_cast<float>(sum);
    }
  }
  store_all(seq,
            {.h = rows.h,
             .first = rows.first,
             .count = rows.count,
             .o = sums.data(),
             .o_row = problem_.dv,
             .factor = ones.data()},
            merged);
}

void Results::store_all(const Sequence& seq, const Rows& rows, std::span<const Finished> finished) const {
  const auto line = [&](const Tensor& t, double Finished::*member) {
    if (!t.given()) return;
    const MatrixLayout at = column(t, problem_.q.layout, seq.b, rows.h, seq.q_start);
    for (std::int64_t r = 0; r < rows.count; ++r)
      runtime::store(t, at.origin + (rows.first + r) * at.row, finished[static_cast<std::size_t>(r)].*member);
  };
  line(call_.lse, &Finished::lse);
  line(call_.max, &Finished::max);

  const MatrixLayout at = matrix(call_.o, problem_.q.layout, seq.b, rows.h, seq.q_start);
  o_.store(call_.o, shifted(at, rows.first),
           {.from = rows.o, .row = rows.o_row, .rows = rows.count, .columns = problem_.dv, .factor = rows.factor});
}

}  // namespace attune::runtime::cpu
