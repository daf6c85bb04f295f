// runtime/ranks/carry/queries.cpp — splits a rank's queries into launches, each of which is a part of the whole call
#include "runtime/ranks/carry/queries.h"

#include <algorithm>

namespace attune::runtime::ranks {
namespace {

using HeldRows = compiler::Held::Rows;

std::int64_t length_of(const Rank& rank, std::int64_t sequence) {
  const std::vector<std::int64_t>& starts = rank.problem().q.starts;
  return starts[as_size(sequence) + 1] - starts[as_size(sequence)];
}
bool is_whole(const Rank& rank, const std::vector<HeldRows>& rows, std::int64_t sequence) {
  const std::int64_t length = length_of(rank, sequence);
  return length == 0 || (rows.size() == 1 && rows[0].first == 0 && rows[0].last == length);
}
bool is_whole(const Rank& rank, const QuerySlice& of) {
  return of.last - of.first > 1 || (of.q_first == 0 && of.q_last == length_of(rank, of.first));
}

}  // namespace

std::vector<QuerySlice> slices_of(const Rank& rank) {
  const Rank::Queries by_sequence = rank.own_queries();
  std::vector<QuerySlice> out;
  for (std::size_t s = 0; s < by_sequence.size(); ++s) {
    const auto number = static_cast<std::int64_t>(s);
    const bool whole = rank.packed() && is_whole(rank, by_sequence[s], number);
    if (whole && !out.empty() && out.back().last == number && is_whole(rank, out.back())) {
      out.back().last = number + 1;
      continue;
    }
    if (whole && by_sequence[s].empty()) continue;  // a sequence without queries is part of no launch
    for (const HeldRows& rows : by_sequence[s]) out.push_back({number, number + 1, rows.first, rows.last, rows.row});
  }
  std::ranges::stable_sort(out, std::ranges::greater{}, &QuerySlice::q_last);
  return out;
}

compiler::Problem problem_of(const Rank& rank, const QuerySlice& of, const KeyHeads& heads) {
  const compiler::Problem& whole = rank.problem();
  compiler::Problem p = whole;
  p.kv_heads = heads.count();
  p.q_heads = heads.count() * whole.group;
  p.q_offset = static_cast<std::int32_t>(whole.q_offset + of.q_first);
  if (!rank.packed()) {
    p.q.length = of.q_last - of.q_first;
    return p;
  }
  p.batch = of.last - of.first;
  p.q.total = rank.q_rows();
  p.q.starts = {of.row};
  p.kv.starts.assign(whole.kv.starts.begin() + of.first, whole.kv.starts.begin() + of.last + 1);
  p.q.length = p.kv.length = 0;
  for (std::int64_t s = of.first; s < of.last; ++s) {
    const std::int64_t queries = is_whole(rank, of) ? length_of(rank, s) : of.q_last - of.q_first;
    p.q.starts.push_back(p.q.starts.back() + queries);
    p.q.length = std::max(p.q.length, queries);
    p.kv.length = std::max(p.kv.length, whole.kv.starts[as_size(s) + 1] - whole.kv.starts[as_size(s)]);
  }
  return p;
}

compiler::Slice slice_of(const Rank& rank, const QuerySlice& of, const KeyHeads& heads) {
  const compiler::Problem& whole = rank.problem();
  const std::int64_t queries = !rank.packed()       ? whole.q.length
                               : is_whole(rank, of) ? of.q_last - of.q_first
                                                    : length_of(rank, of.first);
  return {.first_batch = rank.packed() ? of.first : 0,
          .first_head = heads.first * whole.group,
          .more_queries = queries - (of.q_last - of.q_first)};
}

/// If sequences are packed, the problem already says where rows begin.
Tensor rows_of(const Rows& rows, const QuerySlice& of) {
  Tensor t = rows.tensor;
  if (!t.given() || rows.packed()) return t;
  t.shape[2] = of.q_last - of.q_first;
  t.data = static_cast<std::byte*>(t.data) + of.row * t.strides[2] * static_cast<std::int64_t>(size_of(t.dtype));
  return t;
}

}  // namespace attune::runtime::ranks
