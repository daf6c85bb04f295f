// runtime/engines/oracle/scatters.h — adds expressions' terms to the gradients of captured tensors, in double precision
#pragma once

#include <vector>

#include "compiler/bind.h"
#include "ir/eval.h"
#include <attune/attention.h>

namespace attune::runtime {

/// A captured tensor's gradient. For each element: the sum of its terms, and the sum of their squares.
struct CapturedSum {
  explicit CapturedSum(const Backward::Captured& one)
      : asked(&one), sum(static_cast<std::size_t>(one.of.size())), squares(sum.size()) {}

  const Backward::Captured* asked;
  std::vector<double> sum, squares;
};

/// The terms that one expression adds to the captured gradients that a call requests.
class Scatters {
 public:
  Scatters(const std::vector<compiler::Scatter>& all, const compiler::Args& args, std::vector<CapturedSum>& sums);

  bool empty() const { return terms_.empty(); }
  void add(double upstream, ir::Env& env);

 private:
  struct Term {
    Term(const compiler::Scatter& scatter, CapturedSum& to);
    std::vector<compiler::Scatter::Loop> loops;
    ir::Program program;
    CapturedSum* sum;
    std::vector<std::int32_t> bound = std::vector<std::int32_t>(ir::max_binders + 1);  ///< by binder
  };

  void add(double upstream, ir::Env& env, Term& term, std::size_t loop);

  std::vector<Term> terms_;
  ir::Program::Memory memory_;
};

}  // namespace attune::runtime
