// runtime/engines/layout.h — the layout of one (batch entry, head) in a tensor of a call, dense or packed
#pragma once

#include <algorithm>

#include "compiler/problem.h"

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

}  // namespace attune::runtime
