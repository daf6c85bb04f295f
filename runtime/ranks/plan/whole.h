// runtime/ranks/plan/whole.h — the inputs of a plan: the checked sizes of the whole call
#pragma once

#include <span>
#include <string_view>

#include <attune/attention.h>

#include "compiler/problem.h"
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

}  // namespace attune::runtime::ranks
