// runtime/ranks/plan/whole.h — what a plan is asked for: the sizes of the whole call, checked
#pragma once

#include <span>
#include <string_view>

#include <attune/attention.h>

#include "compiler/problem.h"
#include "runtime/ranks/plan/predict.h"

namespace attune::runtime::ranks {

/// What a call says that only one rank computes; empty: nothing.
std::string_view not_over_ranks(const Forward& call);
/// The sizes of the whole call. Its tensors may have no memory, and need not be where a rank's are.
compiler::Problem whole_problem(const Forward& whole);
Sizes sizes_of(const compiler::Problem& p, DType type);

// Each throws an Error.
void check_how(const How& how);
void check_layers(std::span<const Attention> attentions, std::span<const Forward> wholes);

/// Plans look at pairs of ranks, and threads keep a queue for each.
inline constexpr int most_ranks = 4096;
/// Throws the Error `ranks-count` where there are more, or none.
void check_count(int count);

}  // namespace attune::runtime::ranks
