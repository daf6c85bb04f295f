// include/attune/append.h — appends new keys and values to a KV cache
#pragma once

#include <attune/attention.h>

namespace attune {

/// A KV cache as forward calls read it, and the new rows of its entries. New rows go to the ends of their entries: the
/// last of the kv_len[b] keys that entry b has after the call are new. Or `slots` has the place of each new row, as
/// servers count places: k and v are then pools of pages, and slot s is row s % page_size of page s / page_size.
struct Append {
  Tensor k_new{}, v_new{};  ///< [B, Hkv, n, D] and [B, Hkv, n, Dv], packed [T, Hkv, D] and [T, Hkv, Dv]
  Tensor k{}, v{};          ///< the cache, of any float types: [B, Hkv, S, D], or pages [pages, Hkv, page_size, D]
  Tensor page_table{}, kv_len{};  ///< as in Forward; kv_len includes the new keys
  Tensor cu_seqlens{};            ///< packed: the starts of the new rows, i32 [B + 1]
  Tensor slots{};  ///< instead of the other three: i32 or i64 [T], one for each row of packed k_new; -1 leaves it out
  double k_scale = 1, v_scale = 1;  ///< each new element is divided by this, then rounded to the cache's type
};
/// Uses the executor of the resources on the host, and their stream on a device. On a device `append` is one kernel,
/// which stores the same bits as the host; a graph may capture it once another call has loaded it. The kernel reads
/// kv_len, page_table, cu_seqlens and slots on k_new's device and cannot refuse a call. It therefore drops new rows
/// that have no place: rows beyond the room of their entry, rows of pages that do not exist, and slots that the pool
/// does not have. ATTUNE_CHECK=range refuses them before the launch, for which it waits for the stream. Of several rows
/// with the same slot, the host stores the last. A device does not order them: each element there is that of one of
/// these rows.
void append(const Append& call, const Resources& with = {}, Line at = Line::here());

}  // namespace attune
