// runtime/ranks/carry/queries.h — a rank's queries as launches take them: each a part of the whole call
#pragma once

#include "compiler/slice.h"
#include "runtime/ranks/schedule/rank.h"

namespace attune::runtime::ranks {

/// Queries of one launch. Packed: of the sequences [first, last), wholly, or some of one; dense: of all entries.
struct QuerySlice {
  std::int64_t first = 0, last = 1;      ///< sequences
  std::int64_t q_first = 0, q_last = 0;  ///< positions in each
  std::int64_t row = 0;                  ///< of the first, on this rank
};

/// The rank's queries, a launch each; those with the latest positions, which meet most keys under most masks, first.
std::vector<QuerySlice> slices_of(const Rank& rank);
/// The sizes of one launch, which computes these queries of these key heads.
compiler::Problem problem_of(const Rank& rank, const QuerySlice& of, const KeyHeads& heads);
/// Where it lies in the whole call.
compiler::Slice slice_of(const Rank& rank, const QuerySlice& of, const KeyHeads& heads);
/// Its rows of a tensor.
Tensor rows_of(const Rows& rows, const QuerySlice& of);

}  // namespace attune::runtime::ranks
