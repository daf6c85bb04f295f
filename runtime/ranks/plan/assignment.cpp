// runtime/ranks/plan/assignment.cpp — positions in blocks, the work and the keys that a mask requires of each, and
// their assignment to ranks
#include "runtime/ranks/plan/assignment.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/layout.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime::ranks {
namespace {

using compiler::Problem;

/// The number of runs that a greedy assignment gives to each rank.
constexpr std::int64_t greedy_runs = 16;

/// The index of the one of `parts` equal parts of [0, whole) that contains the middle of [first, last).
std::int64_t part_of(std::int64_t first, std::int64_t last, std::int64_t whole, std::int64_t parts) {
  return std::min(parts - 1, (first + last) * parts / (2 * whole));
}

/// The rank of a part in a zigzag assignment: 0 1 2 2 1 0.
int zig(std::int64_t part, int ranks) {
  return static_cast<int>(part < ranks ? part : 2 * std::int64_t{ranks} - 1 - part);
}

/// Adds a run to sorted runs, one of which may already contain it.
void append(std::vector<Span>& into, Span span) {
  if (!into.empty() && span.begin <= into.back().end)
    into.back().end = std::max(into.back().end, span.end);
  else
    into.push_back(span);
}

std::vector<Span> merged(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> out;
  for (const Span& s : spans) append(out, s);
  return out;
}

/// Asks a cover about one block of queries.
struct Asked {
  const Tiles* tiles;  ///< null: the mask keeps all pairs
  const Problem& problem;
  const Axis &q, &kv;
  std::int64_t block, tile;

  /// Adds the blocks of keys that the block of queries needs, and returns the number of pairs in its tiles.
  double operator()(std::int64_t b, std::int64_t h, const Block& of, std::vector<Span>& into) const {
    const bool packed = problem.q.packed();
    const Sequence seq = sequence(problem, packed ? of.entry : b);
    const std::int64_t first = kv.firsts[as_size(packed ? of.entry : 0)];
    const auto rows = static_cast<double>(of.rows());
    if (!tiles) {
      if (seq.kv_len > 0)
        append(into,
               {static_cast<std::int32_t>(first), static_cast<std::int32_t>(first + (seq.kv_len + block - 1) / block)});
      return rows * static_cast<double>(seq.kv_len);
    }
    const Extent extent = extent_of(problem, seq, tile, tile);
    double pairs = 0;
    std::vector<Run> runs;
    std::vector<Span> needs;
    for (std::int64_t at = of.first; at < of.last; at += tile) {
      runs.clear();
      tiles->row(extent, static_cast<std::int32_t>(seq.b), static_cast<std::int32_t>(h),
                 static_cast<std::int32_t>(at / tile), runs);
      for (const Run& run : runs) {
        const std::int64_t begin = run.begin * tile, end = std::min(run.end * tile, seq.kv_len);
        pairs += static_cast<double>(std::min(tile, of.last - at) * (end - begin)) *
                 (run.keep == Keep::All ? 1 : partial_cost);
        needs.push_back({static_cast<std::int32_t>(first + begin / block),
                         static_cast<std::int32_t>(first + (end + block - 1) / block)});
      }
    }
    into.insert(into.end(), needs.begin(), needs.end());
    return pairs;
  }
};

}  // namespace

Axis::Axis(const compiler::Positions& positions, std::int64_t batch, std::int64_t block) {
  const bool packed = positions.packed();
  for (std::int64_t e = 0; e < (packed ? batch : 1); ++e) {
    firsts.push_back(std::ssize(blocks));
    const std::int64_t start = packed ? positions.starts[as_size(e)] : 0;
    const std::int64_t length = packed ? positions.starts[as_size(e) + 1] - start : positions.length;
    for (std::int64_t at = 0; at < length; at += block)
      blocks.push_back({e, at, std::min(length, at + block), start + at});
    rows = start + length;
  }
  firsts.push_back(std::ssize(blocks));
}

Work work_of(const MaskedCall& call, const Tasks& tasks) {
  const compiler::LoweredMod& lowered = call.lowered;
  const Problem& problem = call.problem;
  const Axis& q = call.q;
  const std::int64_t block = call.block;
  Work out;
  const bool packed = problem.q.packed();
  out.entries = !packed && lowered.cover.by_batch ? problem.batch : 1;
  out.heads = lowered.cover.by_head ? problem.kv_heads : 1;
  const std::int64_t group = lowered.cover.by_head ? problem.group : 1;
  const auto count = std::ssize(q.blocks);
  out.needs.resize(as_size(out.entries * out.heads * count));
  std::vector<double> pairs(out.needs.size());
  std::optional<Tiles> tiles;
  if (lowered.removes()) tiles.emplace(lowered, call.args);
  // Tiles have the size that kernels use; a block of another size is one tile.
  const Asked ask{tiles ? &*tiles : nullptr, problem, q, call.kv, block, block % 128 == 0 ? 128 : block};
  if (problem.batch > 0 && problem.q_heads > 0)
    tasks(std::ssize(out.needs), [&](std::int64_t i) {
      const std::int64_t table = i / count;
      std::vector<Span> needs;
      for (std::int64_t g = 0; g < group; ++g)
        pairs[as_size(i)] += ask(table / out.heads, table % out.heads * group + g, q.blocks[as_size(i % count)], needs);
      out.needs[as_size(i)] = merged(std::move(needs));
    });
  // A table counts once for each entry and head that share it.
  const double each = static_cast<double>((packed ? 1 : problem.batch) * problem.q_heads) /
                      static_cast<double>(std::max<std::int64_t>(1, out.entries * out.heads * group));
  out.pairs.resize(as_size(count));
  for (std::size_t i = 0; i < pairs.size(); ++i) out.pairs[i % as_size(count)] += pairs[i] * each;
  return out;
}

void BlockSet::add(const Span& span) {
  for (auto i = static_cast<std::size_t>(span.begin); i < static_cast<std::size_t>(span.end);) {
    const std::size_t bit = i % 64, n = std::min<std::size_t>(64 - bit, static_cast<std::size_t>(span.end) - i);
    words_[i / 64] |= (n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1) << bit;
    i += n;
  }
}

void BlockSet::add(const BlockSet& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

std::int64_t BlockSet::beyond(const BlockSet& other) const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < words_.size(); ++i) count += std::popcount(words_[i] & ~other.words_[i]);
  return count;
}

std::vector<std::int64_t> local_rows(const Axis& axis, std::span<const int> owners) {
  std::vector<std::int64_t> rows, next;
  for (std::size_t g = 0; g < owners.size(); ++g) {
    const auto owner = static_cast<std::size_t>(owners[g]);
    if (next.size() <= owner) next.resize(owner + 1);
    rows.push_back(next[owner]);
    next[owner] += axis.blocks[g].rows();
  }
  return rows;
}

std::vector<int> contiguous(const Axis& axis, int ranks) {
  std::vector<int> out;
  for (const Block& g : axis.blocks)
    out.push_back(static_cast<int>(part_of(g.row, g.row + g.rows(), axis.rows, ranks)));
  return out;
}

std::vector<int> zigzag(const Axis& axis, int ranks, bool packed) {
  std::vector<int> out;
  if (!packed) {
    for (const Block& g : axis.blocks) out.push_back(zig(part_of(g.first, g.last, axis.rows, 2 * ranks), ranks));
    return out;
  }
  // A sequence that is too short for two runs per rank continues at the rank where the previous sequence ended.
  std::int64_t next = 0;
  for (std::size_t e = 0; e + 1 < axis.firsts.size(); ++e) {
    const std::int64_t first = axis.firsts[e], count = axis.firsts[e + 1] - first;
    for (std::int64_t i = 0; i < count; ++i) {
      const Block &g = axis.blocks[as_size(first + i)], &last = axis.blocks[as_size(first + count - 1)];
      out.push_back(
          zig(count >= 2 * ranks ? part_of(g.first, g.last, last.last, 2 * ranks) : next++ % (2 * ranks), ranks));
    }
  }
  return out;
}

namespace {

/// The places at which the blocks of queries are cut into runs. A cut is at most half a run away from an equal
/// division, at the block that needs the fewest earlier keys, e.g. at the beginning of a document.
std::vector<std::size_t> cuts_of(const Axis& q, std::span<const Work> layers, std::int64_t parts, bool together) {
  const auto count = std::ssize(q.blocks);
  // The number of earlier blocks of keys that this block needs.
  const auto crossing = [&](std::int64_t g) {
    std::int64_t out = 0;
    for (const Work& work : layers)
      for (std::int64_t table = 0; table < work.entries * work.heads; ++table)
        for (const Span& span : work.need(table / work.heads, table % work.heads, as_size(g)))
          out += std::max<std::int64_t>(std::min<std::int64_t>(span.end, g) - span.begin, 0);
    return out;
  };
  std::vector<std::size_t> out{0};
  for (std::int64_t i = 1; i < parts; ++i) {
    const std::int64_t usual = count * i / parts, reach = together ? count / parts / 2 : 0;
    std::int64_t best = usual, least = crossing(usual);
    for (std::int64_t d = 1; d < reach && least > 0; ++d)
      for (const std::int64_t g : {usual - d, usual + d})
        if (const std::int64_t here = crossing(g); 2 * here < least) best = g, least = here;
    out.push_back(as_size(best));
  }
  out.push_back(as_size(count));
  return out;
}

}  // namespace

namespace {

/// Neighbouring blocks of queries that are assigned to a rank together.
struct GreedyRun {
  std::size_t first, last;
  std::int64_t rows = 0;
  double pairs = 0;
  BlockSet needs;
};
/// The runs that a rank has been assigned so far.
struct Holder {
  double pairs = 0;
  std::int64_t rows = 0;
  BlockSet has;
};

std::vector<GreedyRun> runs_of(const Axis& q, const Axis& kv, std::span<const Work> layers, int ranks, bool together) {
  const std::int64_t parts = std::min(std::ssize(q.blocks), greedy_runs * ranks);
  const std::vector<std::size_t> cuts = cuts_of(q, layers, parts, together);
  std::vector<GreedyRun> out;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    GreedyRun run{cuts[i], cuts[i + 1], 0, 0, BlockSet(kv.blocks.size())};
    for (std::size_t g = run.first; g < run.last; ++g) {
      run.rows += q.blocks[g].rows();
      for (const Work& work : layers) {
        run.pairs += work.pairs[g];
        for (std::int64_t table = 0; table < work.entries * work.heads; ++table)
          for (const Span& span : work.need(table / work.heads, table % work.heads, g)) run.needs.add(span);
      }
    }
    out.push_back(std::move(run));
  }
  return out;
}

}  // namespace

std::vector<int> greedy(const Axis& q, const Axis& kv, std::span<const Work> layers, int ranks, bool together,
                        double keys_weight) {
  std::vector<GreedyRun> runs = runs_of(q, kv, layers, ranks, together);
  double all_pairs = 0;
  std::int64_t most_rows = 0;
  for (const GreedyRun& run : runs) all_pairs += run.pairs, most_rows = std::max(most_rows, run.rows);
  std::ranges::stable_sort(runs, std::ranges::greater{}, &GreedyRun::pairs);

  std::vector<Holder> all(static_cast<std::size_t>(ranks), {0, 0, BlockSet(kv.blocks.size())});
  std::vector<int> out(q.blocks.size());
  const double share = std::max(1.0, all_pairs / ranks);
  const auto keys = static_cast<double>(std::max<std::size_t>(1, kv.blocks.size()));
  for (const GreedyRun& run : runs) {
    std::size_t best = all.size(), emptiest = 0;
    double least = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].rows < all[emptiest].rows) emptiest = r;
      // Shares are nearly equal, as frameworks expect: a rank gets at most half a run more than its share.
      if ((all[r].rows + run.rows) * ranks > q.rows + most_rows * ranks / 2) continue;
      const double score = (all[r].pairs + run.pairs) / share +
                           keys_weight * static_cast<double>(run.needs.beyond(all[r].has)) / keys;
      if (best == all.size() || score < least) best = r, least = score;
    }
    Holder& holder = all[best == all.size() ? emptiest : best];
    holder.pairs += run.pairs;
    holder.rows += run.rows;
    holder.has.add(run.needs);
    for (std::size_t g = run.first; g < run.last; ++g) {
      out[g] = static_cast<int>(&holder - all.data());
      if (together) holder.has.add(g);
    }
  }
  return out;
}

}  // namespace attune::runtime::ranks
