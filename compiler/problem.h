// compiler/problem.h — the sizes of one call, derived from its tensors after checking that they agree
#pragma once

#include <optional>
#include <vector>

#include <attune/append.h>
#include <attune/attention.h>

#include "compiler/trace.h"

namespace attune::compiler {

/// How positions lie in a tensor: dense [B, H, S, D], packed [T, H, D] with sequences one after another, or paged:
/// pages [pages, H, page_size, D], which a page table lists for each entry.
enum class Layout : std::uint8_t { dense, packed, paged };

/// The positions, and so the rows, of q and of tensors shaped like q, or of k and v.
struct Positions {
  Layout layout = Layout::dense;
  std::int64_t length = 0;             ///< packed: of the longest sequence
  std::int64_t total = 0;              ///< packed: positions of all sequences
  std::vector<std::int64_t> starts{};  ///< packed: batch + 1 of them; none where a device has them
  bool operator==(const Positions&) const = default;
  bool packed() const { return layout == Layout::packed; }
  bool paged() const { return layout == Layout::paged; }
  bool starts_on_device() const { return packed() && starts.empty(); }
};

/// For a call that several ranks compute: the rows that one rank holds and the part that it computes. Sizes are those
/// of the whole call, so each row of queries meets the same tiles of keys as on one rank, and results have the same
/// bits.
struct Held {
  /// Positions [first, last) of an entry are at the rows of memory that begin at `row`.
  struct Rows {
    std::int64_t first = 0, last = 0, row = 0;
  };
  std::vector<std::vector<Rows>> q{};          ///< by packed sequence; one for all entries of a dense batch
  std::vector<std::vector<Rows>> kv{};         ///< by (packed sequence or entry of keys, head of those computed)
  std::int64_t first_head = 0, last_head = 0;  ///< the key heads [first_head, last_head) that are computed
  bool in_order = true;  ///< true if rows of the caller's k and v are contiguous; decides how calls are computed
  /// The keys that this call computes with, as positions of the entry: one range per packed sequence, or one for all
  /// entries. Empty: all keys.
  std::vector<std::pair<std::int64_t, std::int64_t>> part{};

  template <class T>
  static const T& of_entry(const std::vector<T>& all, std::int64_t entry) {
    return all[all.size() > 1 ? static_cast<std::size_t>(entry) : 0];
  }
  /// `entry`: an entry of keys.
  const std::vector<Rows>& keys(std::int64_t entry, std::int64_t head) const {
    return kv[static_cast<std::size_t>(entry * (last_head - first_head) + head - first_head)];
  }
};

/// Per-entry settings that most calls do not have; empty then, and cheap to copy and compare.
struct PerEntry {
  std::vector<std::int64_t> kv_lens{};    ///< keys of each entry; kv.length is their maximum; empty: not given
  std::vector<std::int32_t> q_offsets{};  ///< of each entry, instead of q_offset; empty: all entries have q_offset
  std::int64_t page_size = 0;             ///< rows of a page, if keys are paged
  const Held* held = nullptr;             ///< over ranks
  bool operator==(const PerEntry&) const = default;
};

struct Problem {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, group = 1;
  Positions q, kv;
  std::int64_t d = 0, dv = 0;
  bool kv_shared = false;  ///< all batch entries share one k and v
  double scale = 1;
  // The positions of the first query and of the first key, as expressions see them.
  std::int32_t q_offset = 0, kv_offset = 0;
  std::optional<PerEntry> per_entry{};
  bool operator==(const Problem&) const = default;
  PerEntry& entries() { return per_entry ? *per_entry : per_entry.emplace(); }
  bool has_kv_lens() const { return per_entry && !per_entry->kv_lens.empty(); }
  const Held* held() const { return per_entry ? per_entry->held : nullptr; }
  bool has_q_offsets() const { return per_entry && !per_entry->q_offsets.empty(); }
};

/// The Error for query heads that are not a multiple of KV heads. `numbers`: the source of the numbers of heads, if the
/// message has to name it.
Error uneven_heads(std::int64_t q_heads, std::int64_t kv_heads, Place where, const std::string& numbers,
                   std::string fix);
/// True if values are a view of the first columns of the keys' rows (MLA). The stride of a dimension of extent 1, e.g.
/// of MLA's one key head, is ignored. Computed from a call's tensors and not kept in its Problem: over ranks the
/// Problem describes the whole call, whose tensors may have no memory.
inline bool values_within_keys(const Tensor& k, const Tensor& v) {
  if (v.data != k.data || v.dtype != k.dtype || v.rank != k.rank) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(k.rank); ++i)
    if (v.strides[i] != k.strides[i] && k.shape[i] > 1) return false;
  return true;
}

/// Checks shapes, types, devices, lengths, captures and gradients of a call; throws an Error. The only data it reads is
/// that of cu_seqlens, kv_len, q_offsets and slots, if they are on the host.
Problem check(const BoundMod& bound, const Forward& call, std::optional<double> scale);
Problem check(const BoundMod& bound, const Backward& call, std::optional<double> scale);
/// Throws an Error unless the scale is a finite f32.
void check_scale(std::optional<double> scale);
/// The Problem of a forward whose queries are the new rows, with as many heads as the keys.
Problem check(const Append& call);

}  // namespace attune::compiler
