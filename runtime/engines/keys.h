// runtime/engines/keys.h — the layout of the keys and values of one (batch entry, head): strided, paged, or as ranks
// receive them
#pragma once

#include <algorithm>

#include "runtime/engines/layout.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {

/// Maps keys to rows of host memory. No other code uses rows of memory; everything else counts keys from the first key
/// of the entry.
class KeyRows {
 public:
  /// `page_table`: the call's page table, or an empty tensor. The object refers to it and to the problem.
  KeyRows(const compiler::Problem& problem, const Tensor& page_table, const Sequence& seq, std::int64_t head)
      : kv_(problem.kv), held_(problem.held()), page_size_(problem.per_entry ? problem.per_entry->page_size : 0),
        page_table_(page_table), seq_(seq), head_(head) {}

  /// Keys whose rows have a constant stride.
  struct Range {
    std::int64_t count;
    bool there;  ///< false: their page does not exist, and their elements count as 0
    MatrixLayout at;
  };
  /// The longest range of k or v that begins with key `first` and ends before `last`.
  Range range(const Tensor& t, std::int64_t first, std::int64_t last) const {
    if (held_) return held_range(t, seq_.kv_start + first, seq_.kv_start + last);
    if (!kv_.paged()) {
      const MatrixLayout at = matrix(t, kv_.layout, seq_.kv_b, head_, seq_.kv_start);
      return {last - first, true, {at.origin + first * at.row, at.row, at.column}};
    }
    const std::int64_t row = first % page_size_;
    Range out{std::min(last - first, page_size_ - row), false, {}};
    const std::int64_t page = entry(first / page_size_);
    if (!exists(t, page)) return out;
    out.there = true;
    out.at = matrix(t, kv_.layout, page, head_, 0);
    out.at.origin += row * out.at.row;
    // Pages that are also adjacent in memory are one range.
    for (std::int64_t next = first + out.count; next < last; next = first + out.count) {
      const std::int64_t following = entry(next / page_size_);
      if (!exists(t, following) ||
          matrix(t, kv_.layout, following, head_, 0).origin != out.at.origin + out.count * out.at.row)
        break;
      out.count += std::min(last - next, page_size_);
    }
    return out;
  }

 private:
  /// Over ranks, all keys that this rank has are in one matrix. No query needs the other keys.
  Range held_range(const Tensor& t, std::int64_t first, std::int64_t last) const {
    const auto& runs = held_->keys(seq_.kv_b, head_);
    const auto run = std::partition_point(runs.begin(), runs.end(),
                                          [&](const compiler::Held::Rows& r) { return r.last <= first; });
    if (run == runs.end()) return {last - first, false, {}};
    if (run->first > first) return {std::min(last, run->first) - first, false, {}};
    MatrixLayout at = matrix(t, compiler::Layout::dense, 0, 0, 0);
    at.origin += (run->row + first - run->first) * at.row;
    return {std::min(last, run->last) - first, true, at};
  }
  std::int64_t entry(std::int64_t i) const {
    return static_cast<const std::int32_t*>(page_table_.data)[offset(page_table_, seq_.b, i)];
  }
  static bool exists(const Tensor& t, std::int64_t page) { return page >= 0 && page < t.shape[0]; }

  const compiler::Positions& kv_;
  const compiler::Held* held_;
  std::int64_t page_size_;
  const Tensor& page_table_;
  Sequence seq_;
  std::int64_t head_;
};

}  // namespace attune::runtime
