// runtime/engines/layout.h — where rows of a call's tensors lie: of one (batch entry, head), dense, packed, paged, or
// as ranks receive keys
#pragma once

#include <algorithm>

#include "compiler/problem.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {

/// Offsets in elements: element (i, j) is at origin + i * row + j * column.
struct MatrixLayout {
  std::int64_t origin = 0, row = 0, column = 0;
};

/// q, k, v, o and their gradients: [B, H, S, D], packed [T, H, D]; `b` of pages [pages, H, page_size, D] is a page.
inline MatrixLayout matrix(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h,
                           std::int64_t start) {
  const auto& s = t.strides;
  return layout == compiler::Layout::packed ? MatrixLayout{start * s[0] + h * s[1], s[0], s[2]}
                                            : MatrixLayout{b * s[0] + h * s[1], s[2], s[3]};
}
/// lse and tensors that are shaped like it: [B, Hq, Sq], packed [Hq, T]. One column.
inline MatrixLayout column(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h,
                           std::int64_t start) {
  const auto& s = t.strides;
  return layout == compiler::Layout::packed ? MatrixLayout{h * s[0] + start * s[1], s[1], 0}
                                            : MatrixLayout{b * s[0] + h * s[1], s[2], 0};
}

/// One batch entry or packed sequence. kv_b: its entry in k and v, which may have one entry for all. The first four
/// lengths and starts are rows of memory; offsets turn them into the positions that expressions see.
struct Sequence {
  std::int64_t b = 0, kv_b = 0, q_start = 0, q_len = 0, kv_start = 0, kv_len = 0;
  std::int32_t q_offset = 0, kv_offset = 0;
  std::int32_t kv_after = 0;  ///< keys of the entry that come after the call's keys

  /// at.kv_len: the position after the last key.
  std::int32_t kv_end() const { return kv_offset + static_cast<std::int32_t>(kv_len) + kv_after; }
};

inline Sequence sequence(const compiler::Problem& p, std::int64_t b) {
  const auto i = static_cast<std::size_t>(b);
  Sequence out{.b = b,
               .kv_b = p.kv_shared ? 0 : b,
               .q_len = p.q.length,
               .kv_len = p.kv.length,
               .q_offset = p.has_q_offsets() ? p.per_entry->q_offsets[i] : p.q_offset,
               .kv_offset = p.kv_offset};
  if (p.q.packed()) {
    out.q_start = p.q.starts[i];
    out.q_len = p.q.starts[i + 1] - out.q_start;
  }
  if (p.kv.packed()) {
    out.kv_start = p.kv.starts[i];
    out.kv_len = p.kv.starts[i + 1] - out.kv_start;
  }
  if (p.has_kv_lens()) out.kv_len = p.per_entry->kv_lens[i];
  if (const compiler::Held* held = p.held()) {
    // Held gives the rows of memory.
    out.q_start = out.kv_start = 0;
    if (!held->part.empty()) {
      const auto [first, last] = compiler::Held::of_entry(held->part, b);
      out.kv_after = static_cast<std::int32_t>(out.kv_len - last);
      out.kv_offset += static_cast<std::int32_t>(first);
      out.kv_start = first;
      out.kv_len = last - first;
    }
  }
  return out;
}

/// Calls body(skip, count, row) for each run of memory that holds some of the queries [first, first + count) of an
/// entry. The run holds queries [first + skip, first + skip + count) at rows [row, row + count), counted from the
/// entry's q_start.
template <class Body>
void each_query_run(const compiler::Problem& p, const Sequence& seq, std::int64_t first, std::int64_t count,
                    const Body& body) {
  const compiler::Held* held = p.held();
  if (!held) return body(std::int64_t{0}, count, first);
  for (const compiler::Held::Rows& run : compiler::Held::of_entry(held->q, seq.b)) {
    const std::int64_t from = std::max(run.first, first), to = std::min(run.last, first + count);
    if (from < to) body(from - first, to - from, run.row + from - run.first);
  }
}
/// True if at least one of these queries is in memory.
inline bool any_query(const compiler::Problem& p, const Sequence& seq, std::int64_t first, std::int64_t count) {
  bool any = false;
  each_query_run(p, seq, first, count, [&](std::int64_t, std::int64_t n, std::int64_t) { any = any || n > 0; });
  return any;
}

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
