// runtime/ranks/schedule/rank.h — a rank's part of a call, independent of the engine: its queries, the keys that it
// needs
#pragma once

#include <optional>
#include <vector>

#include "compiler/problem.h"
#include "runtime/engines/call.h"
#include "runtime/ranks/ranks.h"
#include "runtime/ranks/schedule/chunk.h"

namespace attune::runtime::ranks {

/// Key heads [first, last) that travel and are computed together.
struct KeyHeads {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
};

/// Neighbouring blocks of keys that a rank receives from one owner: of one entry, and of heads that need the same keys.
struct KeyRange {
  int owner;
  std::int64_t entry, head, heads;
  std::size_t first, last;  ///< blocks
  std::int64_t rows = 0;    ///< of each head
  std::int64_t before = 0;  ///< rows of all ranges before this one
};

/// Which keys a rank gets.
struct Wanted {
  KeyHeads heads;
  std::optional<int> step{};  ///< only the keys of rank (this + step) % ranks; none: the keys of all ranks
  bool all = false;           ///< true: also keys that no query of the rank needs
};

class Rank {
 public:
  /// Throws an Error if the plan has no transport.
  Rank(const detail::Ranks& ranks, const Call& of);

  const detail::Ranks& ranks() const { return ranks_; }
  const Call& call() const { return of_; }
  const compiler::Problem& problem() const { return of_.problem; }
  const Layer& layer() const { return layer_; }
  int me() const { return me_; }
  int count() const { return ranks_.count(); }
  bool packed() const { return problem().q.packed(); }
  std::int64_t q_entries() const { return packed() ? 1 : problem().batch; }
  std::int64_t key_entries() const { return packed() || problem().kv_shared ? 1 : problem().batch; }
  /// The number of rows of queries and of keys that the rank holds.
  std::int64_t q_rows() const { return ranks_.q_rows(me_); }
  std::int64_t kv_rows() const { return ranks_.kv_rows(me_); }
  KeyHeads all_heads() const { return {0, problem().kv_heads}; }
  KeyHeads group_of_heads(std::int64_t group, std::int64_t groups) const {
    return {problem().kv_heads * group / groups, problem().kv_heads * (group + 1) / groups};
  }

  /// Pieces in the order of entries, heads and positions.
  std::vector<KeyRange> key_ranges(int rank, const Wanted& wanted) const;
  /// True if all key heads need the same keys; a range then has all heads.
  bool heads_are_alike() const { return layer_.needs->heads == 1; }
  /// True if a gather leaves out keys.
  bool has_holes() const;
  /// The row of a block in its owner's keys.
  std::int64_t owners_row(std::size_t block) const { return kv_local_[block]; }

  using Queries = std::vector<std::vector<compiler::Held::Rows>>;  ///< by sequence, or one for a dense batch
  Queries own_queries() const;
  /// The queries of all ranks, in the order of the whole call.
  Queries all_queries() const;

  /// A tensor of a call as rows.
  Rows rows(const Tensor& t) const { return {t, problem().q.layout}; }
  Rows numbers(const Tensor& t) const { return {t, problem().q.layout, true}; }
  /// A tensor with contiguous rows, one head after another.
  Tensor placed(void* at, DType type, std::int64_t entries, std::int64_t heads, std::int64_t rows,
                std::int64_t width) const;
  Tensor placed_numbers(void* at, DType type, std::int64_t heads, std::int64_t rows) const;
  /// Some heads of a tensor.
  static Tensor heads_of(const Rows& of, std::int64_t first, std::int64_t count);

  /// Ranks compare what they are about to do, once for each kind of call.
  void agree(const ir::Digest& digest) const;

 private:
  const detail::Ranks& ranks_;
  const Call& of_;
  int me_;
  const Layer& layer_;
  std::vector<std::int64_t> kv_local_, q_local_;
};

}  // namespace attune::runtime::ranks
