// runtime/engines/cuda/starts.cpp — where packed sequences start, as kernels read it: the caller's, or sent from the
// host
#include "runtime/engines/cuda/starts.h"

#include <utility>
#include <vector>

#include <attune/error.h>

#include "runtime/engines/cuda/order.h"

namespace attune::runtime::cuda {

using compiler::Problem;

StartsRoom::StartsRoom(WorkspaceLayout& space, const Problem& p, const QueryTiles& tiles) {
  if (!p.q.packed() || p.q.starts_on_device()) return;
  const std::int64_t count = 2 * (p.batch + 1), order = tiles.ordered ? 2 * tiles.order : 0;
  // One copy sends both, so the order lies right behind the starts.
  starts_ = space.take<int>(count + order);
  order_ = {starts_.offset + static_cast<std::size_t>(count) * sizeof(int), order};
}

void StartsRoom::require_no_capture(cu::Stream stream) const {
  if (starts_.count > 0 && capturing(stream))
    throw Error("stream-capture", "a packed call whose starts are on the host cannot be captured into a graph", {},
                "the graph would not have them any more when it runs",
                "pass cu_seqlens where q is, with .max_q_len and .max_kv_len; or call it without a graph");
}

Starts StartsRoom::send(Launches& launches, std::byte* memory, const Problem& p, const QueryTiling& tiling, bool masked,
                        const Tensor& cu_q, const Tensor& cu_kv) const {
  if (!p.q.packed()) return {};
  if (starts_.count == 0) return {static_cast<const int*>(cu_q.data), static_cast<const int*>(cu_kv.data), nullptr};
  std::vector<int> sent(p.q.starts.begin(), p.q.starts.end());
  sent.insert(sent.end(), p.kv.starts.begin(), p.kv.starts.end());
  if (order_.count > 0) {
    const std::vector<int> order = packed_order(p.q.starts, p.kv.starts, tiling.queries, masked);
    sent.insert(sent.end(), order.begin(), order.end());
  }
  int* const there = starts_.in(memory);
  launches.send(there, std::move(sent));
  return {there, p.kv.packed() ? there + p.batch + 1 : nullptr, order_.in(memory)};
}

}  // namespace attune::runtime::cuda
