// compiler/problem.h — the sizes of one call, derived from its tensors after checking that they agree
#pragma once

#include <optional>
#include <vector>

#include <attune/append.h>
#include <attune/attention.h>

#include "compiler/trace.h"

namespace attune::compiler {

/// How positions lie in a tensor: dense [B, H, S, D], packed [T, H, D] with sequences one after another, or paged
/// [pages, H, page_size, D] that a table lists for each entry.
enum class Layout : std::uint8_t { dense, packed, paged };

/// The positions of q and what is shaped like it, or those of k and v: which rows there are.
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

/// Of a call that several ranks compute: what one of them has of it, and which part it computes. Sizes stay those of
/// the whole call, so that each row of queries meets the same tiles of keys as on one rank. Results are the same bits.
struct Held {
  /// Positions [first, last) of an entry are rows of memory from `row` on.
  struct Rows {
    std::int64_t first = 0, last = 0, row = 0;
  };
  std::vector<std::vector<Rows>> q{};          ///< by packed sequence; one for all entries of a dense batch
  std::vector<std::vector<Rows>> kv{};         ///< by (packed sequence or entry of keys, head of those computed)
  std::int64_t first_head = 0, last_head = 0;  ///< of keys: those that are computed
  bool in_order = true;  ///< are rows of the caller's k and v contiguous? It decides how calls are computed
  /// By packed sequence, or one for all: the only keys that this call is of, as positions of the entry. None: all.
  std::vector<std::pair<std::int64_t, std::int64_t>> part{};

  template <class T>
  static const T& of_entry(const std::vector<T>& all, std::int64_t entry) {
    return all[all.size() > 1 ? static_cast<std::size_t>(entry) : 0];
  }
  /// `entry`: of keys.
  const std::vector<Rows>& keys(std::int64_t entry, std::int64_t head) const {
    return kv[static_cast<std::size_t>(entry * (last_head - first_head) + head - first_head)];
  }
};

/// Per-entry settings that most calls do not have; empty then, and cheap to copy and compare.
struct PerEntry {
  std::vector<std::int64_t> kv_lens{};    ///< keys of each entry, of which kv.length is the greatest; none: not told
  std::vector<std::int32_t> q_offsets{};  ///< of each entry, in place of q_offset; none: all have that
  std::int64_t page_size = 0;             ///< rows of each, where keys are paged
  const Held* held = nullptr;             ///< over ranks
  bool operator==(const PerEntry&) const = default;
};

struct Problem {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, group = 1;
  Positions q, kv;
  std::int64_t d = 0, dv = 0;
  bool kv_shared = false;  ///< all batch entries share one k and v
  double scale = 1;
  // What expressions see as the positions of the first query and of the first key.
  std::int32_t q_offset = 0, kv_offset = 0;
  std::optional<PerEntry> per_entry{};
  bool operator==(const Problem&) const = default;
  PerEntry& entries() { return per_entry ? *per_entry : per_entry.emplace(); }
  bool has_kv_lens() const { return per_entry && !per_entry->kv_lens.empty(); }
  const Held* held() const { return per_entry ? per_entry->held : nullptr; }
  bool has_q_offsets() const { return per_entry && !per_entry->q_offsets.empty(); }
};

/// The Error of query heads that do not share KV heads evenly. `told`: what says how many there are, if that has to be
/// said.
Error uneven_heads(std::int64_t q_heads, std::int64_t kv_heads, Place where, const std::string& told, std::string fix);
/// Are values a view of the keys' rows, from their first columns on? A stride that is never stepped along may be
/// anything, as that of the one key head of MLA. It is asked of a call's tensors, not kept in its Problem: over ranks
/// that is the whole call's, whose tensors may have no memory.
bool values_within_keys(const Tensor& k, const Tensor& v);

/// Checks shapes, types, devices, lengths, captures and gradients of a call; throws an Error. Of all tensors it reads
/// the data of cu_seqlens, kv_len and q_offsets alone, where they are on the host.
Problem check(const BoundMod& bound, const Forward& call, std::optional<double> scale);
Problem check(const BoundMod& bound, const Backward& call, std::optional<double> scale);
/// Throws an Error if the scale is no finite f32.
void check_scale(std::optional<double> scale);
/// As of a forward whose queries are the new rows, with as many heads as the keys.
Problem check(const Append& call);

}  // namespace attune::compiler
