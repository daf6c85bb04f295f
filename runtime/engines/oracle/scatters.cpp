// runtime/engines/oracle/scatters.cpp — adds expressions' terms to the gradients of captured tensors, in double
// precision
#include "runtime/engines/oracle/scatters.h"

#include <algorithm>

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

void Scatters::add(double upstream, ir::Env& env) {
  for (Term& term : terms_) {
    env.bound = term.bound;
    add(upstream, env, term, 0);
    env.bound = {};
  }
}

void Scatters::add(double upstream, ir::Env& env, Term& term, std::size_t loop) {
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
  const double x = upstream * term.program.result(static_cast<std::size_t>(of.rank), memory_);
  term.sum->sum[static_cast<std::size_t>(element)] += x;
  term.sum->squares[static_cast<std::size_t>(element)] += x * x;
}

}  // namespace attune::runtime
