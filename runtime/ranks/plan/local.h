// runtime/ranks/plan/local.h — a rank's part of a call, checked against the plan
#pragma once

#include <vector>

#include <attune/error.h>

#include "compiler/bind.h"
#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

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
