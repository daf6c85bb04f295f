// include/attune/append.h — new keys and values, put to their places in a cache
#pragma once

#include <attune/attention.h>

namespace attune {

/// A cache as forward calls read it, and what its entries get. New rows go to the ends of their entries: of the
/// kv_len[b] keys that entry b then has, the last ones are new.
struct Append {
  Tensor k_new{}, v_new{};  ///< [B, Hkv, n, D] and [B, Hkv, n, Dv], packed [T, Hkv, D] and [T, Hkv, Dv]
  Tensor k{}, v{};          ///< the cache, of any float types: [B, Hkv, S, D], or pages [pages, Hkv, page_size, D]
  Tensor page_table{}, kv_len{};    ///< as Forward has them; kv_len counts the new keys too
  Tensor cu_seqlens{};              ///< packed: the starts of the new rows, i32 [B + 1]
  double k_scale = 1, v_scale = 1;  ///< what is stored is a new element divided by this, rounded to the cache's type
};
/// Of the resources it uses the executor on the host, and the stream on a device. There it is one kernel, which a graph
/// may capture once another call has loaded it, and which stores the same bits; it reads kv_len, page_table and
/// cu_seqlens where k_new is and can refuse nothing, so it leaves out new rows that have no place: those beyond the
/// room of their entry, and those of pages that do not exist.
void append(const Append& call, const Resources& with = {}, Line at = Line::here());

}  // namespace attune
