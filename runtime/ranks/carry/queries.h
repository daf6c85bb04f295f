// runtime/ranks/carry/queries.h — splits a rank's queries into launches, each of which is a part of the whole call
#pragma once

#include "compiler/bind.h"
#include "runtime/ranks/schedule/rank.h"

namespace attune::runtime::ranks {

/// The queries of one launch. Packed: all queries of the sequences [first, last), or some queries of one sequence.
/// Dense: queries of all entries.
struct QuerySlice {
  std::int64_t first = 0, last = 1;      ///< sequences
  std::int64_t q_first = 0, q_last = 0;  ///< positions in each
  std::int64_t row = 0;                  ///< this rank's row of the first query
};

/// The launches of the rank's queries, latest positions first: under most masks they meet most keys.
std::vector<QuerySlice> slices_of(const Rank& rank);
/// The sizes of one launch, which computes these queries of these key heads.
compiler::Problem problem_of(const Rank& rank, const QuerySlice& of, const KeyHeads& heads);
/// The place of the launch in the whole call.
compiler::Slice slice_of(const Rank& rank, const QuerySlice& of, const KeyHeads& heads);
/// The launch's rows of a tensor.
Tensor rows_of(const Rows& rows, const QuerySlice& of);

}  // namespace attune::runtime::ranks
