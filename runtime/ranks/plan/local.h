// runtime/ranks/plan/local.h — a call over ranks, checked: the sizes of the whole call, and a rank's part of it against
// the plan
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <attune/attention.h>
#include <attune/error.h>

#include "compiler/bind.h"
#include "compiler/problem.h"
#include "runtime/ranks/plan/plan.h"
#include "runtime/ranks/plan/predict.h"

namespace attune::runtime::ranks {

/// The name of an option of the call that is not supported over ranks; empty if there is none.
std::string_view not_over_ranks(const Forward& call);
/// The sizes of the whole call. Its tensors may have no memory, and need not be where a rank's are.
compiler::Problem whole_problem(const Forward& whole);
Sizes sizes_of(const compiler::Problem& p, DType type);

// Each throws an Error.
void check_how(const How& how);
void check_layers(std::span<const Attention> attentions, std::span<const Forward> wholes);

/// Plans iterate over pairs of ranks, and `threads` keeps a queue for each pair, so the number of ranks is bounded.
inline constexpr int most_ranks = 4096;
/// Throws the Error `ranks-count` unless 1 <= count <= most_ranks.
void check_count(int count);

/// The layer of the plan that a call belongs to. Masks are also distinguished by the contents of their captures, if
/// those are on the host.
const Layer& layer_of(const Plan& plan, const compiler::LoweredMod& lowered, const compiler::Args& args);

/// A rank's call, in the form that the usual checks accept: packed sequences begin at this rank's rows of them.
template <class Call>
class Local {
 public:
  /// Throws an Error unless q, k and v have the rows that this rank holds, and the sequences are the plan's.
  Local(const Plan& plan, const Call& asked);
  Local(const Local&) = delete;
  const Call& call() const { return call_; }

 private:
  Call call_;
  std::vector<std::int64_t> q_starts_, kv_starts_;
};

/// Sizes of the whole call. Throws an Error unless the plan is for the rank's call, whose own sizes are `local`.
compiler::Problem whole_of(const Plan& plan, const compiler::LoweredMod& lowered, const compiler::Args& args,
                           const compiler::Problem& local, DType type);

}  // namespace attune::runtime::ranks
