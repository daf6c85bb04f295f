// runtime/engines/cuda/starts.cpp — the starts of packed sequences for kernels: the caller's, or sent from the host
#include "runtime/engines/cuda/starts.h"

#include <utility>
#include <vector>

#include <attune/error.h>

#include "runtime/engines/cuda/order.h"

namespace attune::runtime::cuda {

using compiler::Problem;

void StartsRoom::take(WorkspaceLayout& space, const Problem& p, const QueryTiles& tiles) {
  const std::int64_t count = 2 * (p.batch + 1), order = tiles.ordered ? 2 * tiles.order : 0;
  // One copy sends both, so the order lies right after the starts.
  starts_ = space.take<int>(count + order);
  order_ = {starts_.offset + static_cast<std::size_t>(count) * sizeof(int), order};
}

void StartsRoom::refuse_capture() {
  throw Error("stream-capture", "a packed call whose starts are on the host cannot be captured into a graph", {},
              "they may be gone when the graph runs",
              "pass cu_seqlens on q's device, with .max_q_len and .max_kv_len; or call it without a graph");
}

Starts StartsRoom::send_known(Launches& launches, std::byte* memory, const Problem& p, const QueryTiling& tiling,
                              bool masked) const {
  std::vector<int> sent(p.q.starts.begin(), p.q.starts.end());
  sent.insert(sent.end(), p.kv.starts.begin(), p.kv.starts.end());
  sent.resize(2 * p.q.starts.size());  // keys need not be packed
  if (order_.count > 0) {
    const std::vector<int> order = packed_order(p.q.starts, p.kv.starts, tiling.queries, masked);
    sent.insert(sent.end(), order.begin(), order.end());
  }
  int* const there = starts_.in(memory);
  launches.send(there, std::move(sent));
  return {there, p.kv.packed() ? there + p.batch + 1 : nullptr, order_.in(memory)};
}

}  // namespace attune::runtime::cuda
