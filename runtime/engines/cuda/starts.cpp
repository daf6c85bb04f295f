// runtime/engines/cuda/starts.cpp — the starts of packed sequences for kernels: the caller's, or sent from the host
#include "runtime/engines/cuda/starts.h"

#include <utility>
#include <vector>

#include <attune/error.h>

namespace attune::runtime::cuda {

Starts starts_of(Workspace& space, Launches* out, cu::Stream stream, const compiler::Problem& p,
                 const QueryTiles& tiles, int queries, bool masked, const Tensor& cu_q, const Tensor& cu_kv) {
  if (!p.q.packed()) return {};
  if (p.q.starts_on_device()) return {static_cast<const int*>(cu_q.data), static_cast<const int*>(cu_kv.data), nullptr};
  // One copy sends the starts of q, those of keys, which need not be packed, and the order.
  const std::int64_t starts = p.batch + 1, order = tiles.ordered ? 2 * tiles.order : 0;
  int* const there = space.take<int>(2 * starts + order);
  if (!out) return {};
  if (capturing(stream))
    throw Error("stream-capture", "a packed call whose starts are on the host cannot be captured into a graph", {},
                "they may be gone when the graph runs",
                "pass cu_seqlens on q's device, with .max_q_len and .max_kv_len; or call it without a graph");
  std::vector<int> sent(p.q.starts.begin(), p.q.starts.end());
  sent.insert(sent.end(), p.kv.starts.begin(), p.kv.starts.end());
  sent.resize(2 * p.q.starts.size());
  if (order > 0) {
    const std::vector<int> tiles_in_order = packed_order(p.q.starts, p.kv.starts, queries, masked);
    sent.insert(sent.end(), tiles_in_order.begin(), tiles_in_order.end());
  }
  out->send(there, std::move(sent));
  return {there, p.kv.packed() ? there + starts : nullptr, order > 0 ? there + 2 * starts : nullptr};
}

}  // namespace attune::runtime::cuda
