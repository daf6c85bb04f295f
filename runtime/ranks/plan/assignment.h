// runtime/ranks/plan/assignment.h — positions in blocks, what a mask costs and needs of each, and who gets which
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <attune/ranks.h>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "compiler/problem.h"

namespace attune::runtime::ranks {

/// Positions [first, last) of a packed sequence, or of every entry of a dense batch. They are sharded as a whole.
struct Block {
  std::int64_t entry = 0, first = 0, last = 0;
  std::int64_t row = 0;  ///< of the first, in the row of all tokens
  std::int64_t rows() const { return last - first; }
  bool operator==(const Block&) const = default;
};

/// The positions of queries, or of keys. Blocks start anew with each sequence, so that tiles do.
struct Axis {
  Axis(const compiler::Positions& positions, std::int64_t batch, std::int64_t block);

  std::vector<Block> blocks;
  std::vector<std::int64_t> firsts;  ///< by entry: its first block; one more than there are entries
  std::int64_t rows = 0;
  bool operator==(const Axis&) const = default;
};

/// Blocks [begin, end).
struct Span {
  std::int32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

/// What one mask asks of each block of queries.
struct Work {
  std::int64_t entries = 1;              ///< tables for each entry of a dense batch, or 1: they are all alike
  std::int64_t heads = 1;                ///< tables for each head of keys, or 1
  std::vector<double> pairs;             ///< by block of queries: pairs in its tiles, over all entries and heads
  std::vector<std::vector<Span>> needs;  ///< by (entry, head, block of queries): blocks of keys, in order

  const std::vector<Span>& need(std::int64_t entry, std::int64_t head, std::size_t block) const {
    return needs[static_cast<std::size_t>((entries > 1 ? entry : 0) * heads + (heads > 1 ? head : 0)) * pairs.size() +
                 block];
  }
};
/// A pair of a partial tile costs this times as much as one of a full tile.
inline constexpr double partial_cost = 1.15;

/// Calls task(i) once for each i in [0, count), in any order, some at once.
using Tasks = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& task)>;

/// A mask with what it reads, on positions in blocks.
struct MaskedCall {
  const compiler::LoweredMod& lowered;
  const compiler::Args& args;
  const compiler::Problem& problem;
  const Axis &q, &kv;
  std::int64_t block;
};
Work work_of(const MaskedCall& call, const Tasks& tasks);

/// A set of blocks.
class BlockSet {
 public:
  explicit BlockSet(std::size_t count = 0) : words_((count + 63) / 64) {}
  bool has(std::size_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  void add(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
  void add(const Span& span);
  void add(const BlockSet& other);
  /// How many of these are not in `other`.
  std::int64_t beyond(const BlockSet& other) const;

 private:
  std::vector<std::uint64_t> words_;
};

/// Owners of blocks: ranks.
struct Owners {
  std::vector<int> q, kv;
  bool operator==(const Owners&) const = default;
};

/// Where the rows of each block lie in the tensors of its owner.
std::vector<std::int64_t> local_rows(const Axis& axis, std::span<const int> owners);

/// One run of rows a rank, as even as blocks allow.
std::vector<int> contiguous(const Axis& axis, int ranks);
std::vector<int> zigzag(const Axis& axis, int ranks, bool packed);
/// `together`: keys are sharded with queries, so that a rank needs nothing sent that it holds. `keys_weight`: what
/// lacking all keys counts beside having done a whole share of the work.
std::vector<int> greedy(const Axis& q, const Axis& kv, std::span<const Work> layers, int ranks, bool together,
                        double keys_weight);

}  // namespace attune::runtime::ranks
