// runtime/ranks/plan/assignment.h — positions in blocks, the work and the keys that a mask requires of each, and their
// assignment to ranks
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

/// Positions [first, last) of a packed sequence, or of every entry of a dense batch. One rank gets the whole block.
struct Block {
  std::int64_t entry = 0, first = 0, last = 0;
  std::int64_t row = 0;  ///< the row of the first position among all tokens
  std::int64_t rows() const { return last - first; }
  bool operator==(const Block&) const = default;
};

/// The positions of queries, or of keys. A new block starts with each sequence, so a new tile does too.
struct Axis {
  Axis(const compiler::Positions& positions, std::int64_t batch, std::int64_t block);

  std::vector<Block> blocks;
  std::vector<std::int64_t> firsts;  ///< by entry: its first block; has entries + 1 elements
  std::int64_t rows = 0;
  bool operator==(const Axis&) const = default;
};

/// Blocks [begin, end).
struct Span {
  std::int32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

/// The work and the keys that one mask requires of each block of queries.
struct Work {
  std::int64_t entries = 1;              ///< number of entries with separate tables in a dense batch; 1: all are alike
  std::int64_t heads = 1;                ///< number of key heads with separate tables; 1: all are alike
  std::vector<double> pairs;             ///< by block of queries: pairs in its tiles, over all entries and heads
  std::vector<std::vector<Span>> needs;  ///< by (entry, head, block of queries): blocks of keys, in order

  const std::vector<Span>& need(std::int64_t entry, std::int64_t head, std::size_t block) const {
    return needs[static_cast<std::size_t>((entries > 1 ? entry : 0) * heads + (heads > 1 ? head : 0)) * pairs.size() +
                 block];
  }
};
/// The cost of a pair in a partial tile, relative to a pair in a full tile.
inline constexpr double partial_cost = 1.15;

/// Calls task(i) once for each i in [0, count), in any order and possibly concurrently.
using Tasks = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& task)>;

/// A mask, the tensors and parameters that it reads, and the positions in blocks.
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
  /// The number of blocks of this set that are not in `other`.
  std::int64_t beyond(const BlockSet& other) const;

 private:
  std::vector<std::uint64_t> words_;
};

/// The rank that owns each block.
struct Owners {
  std::vector<int> q, kv;
  bool operator==(const Owners&) const = default;
};

/// The first row of each block in the tensors of its owner.
std::vector<std::int64_t> local_rows(const Axis& axis, std::span<const int> owners);

/// One run of rows per rank, as balanced as blocks allow.
std::vector<int> contiguous(const Axis& axis, int ranks);
std::vector<int> zigzag(const Axis& axis, int ranks, bool packed);
/// `together`: true if keys are sharded with queries, so that a rank already holds the keys at its own positions.
/// `keys_weight`: the cost of lacking all keys, relative to the cost of a whole share of the work.
std::vector<int> greedy(const Axis& q, const Axis& kv, std::span<const Work> layers, int ranks, bool together,
                        double keys_weight);

}  // namespace attune::runtime::ranks
