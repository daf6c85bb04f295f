// runtime/engines/cuda/launches.cpp — the work that a call enqueues on its stream: copies, cleared counters and
// kernels, in order
#include "runtime/engines/cuda/launches.h"

#include <algorithm>
#include <utility>

#include <attune/error.h>

namespace attune::runtime::cuda {
namespace {

using codegen::Companion, codegen::LaunchCall;

void start(const Launch& one, cu::Stream stream, std::span<std::byte> user) {
  std::array<void*, 2> arguments{one.arguments, user.data()};
  std::array<cu::LaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (one.early) attributes[count++] = {.key = cu::LaunchAttributeKey::early, .value = {1}};
  if (one.cluster > 1)
    attributes[count++] = {.key = cu::LaunchAttributeKey::cluster, .value = {static_cast<int>(one.cluster), 1, 1}};
  const cu::LaunchConfig config{.grid = {one.grid[0], one.grid[1], one.grid[2]},
                                .block = {static_cast<unsigned>(one.threads), 1, 1},
                                .shared_bytes = static_cast<unsigned>(one.shared_bytes),
                                .stream = stream,
                                .attributes = attributes.data(),
                                .attribute_count = count};
  // The driver accepts a library's kernel where it expects a function.
  driver().cuLaunchKernelEx(&config, reinterpret_cast<cu::Function>(one.kernel->handle), arguments.data(), nullptr);
}

}  // namespace

void Launches::refuse_more() { throw Bug("a call has more steps than Launches holds"); }

void Launches::send(int* to, std::vector<int> from) {
  if (!sent_.empty()) throw Bug("a call sends twice");
  sent_ = std::move(from);
  add({.of = Step::Of::send, .to = to});
}

void Launches::put(cu::Stream stream, std::span<std::byte> user) {
  for (const Slot& slot : std::span(slots_).first(std::exchange(count_, 0))) {
    const Step& step = slot.step;
    switch (step.of) {
      case Step::Of::send:
        driver().cuMemcpyAsync(address(step.to), address(sent_.data()), sent_.size() * sizeof(int), stream);
        break;
      case Step::Of::clear: driver().cuMemsetD32Async(address(step.to), 0, step.count, stream); break;
      case Step::Of::launch: start(step.launch, stream, user); break;
    }
  }
}

void Launches::companion(const LoadedKernel& kernel, const Companion& what, const LaunchCall& call, void* arguments) {
  const auto one = std::ranges::find(kernel.companions, &what, &LoadedCompanion::what);
  if (one == kernel.companions.end()) throw Bug("a kernel lacks a companion of its call");
  launch({.kernel = &one->kernel,
          .grid = what.grid(call),
          .threads = what.threads,
          .arguments = arguments,
          .early = what.early});
}

void Launches::companions(const LoadedKernel& kernel, Companion::When when, const LaunchCall& call, void* arguments) {
  for (const LoadedCompanion& one : kernel.companions)
    if (one.what->when == when && !one.what->own_struct) companion(kernel, *one.what, call, arguments);
}

void Launches::before(const LoadedKernel& kernel, const LaunchCall& call, void* arguments) {
  companions(kernel, Companion::When::before, call, arguments);
}

void Launches::kernel(const LoadedKernel& kernel, const LaunchCall& call, void* arguments, bool early,
                      unsigned cluster) {
  launch({.kernel = &kernel.kernel,
          .grid = {static_cast<unsigned>(call.blocks), 1, 1},
          .threads = kernel.choice.threads,
          .shared_bytes = kernel.choice.shared_bytes,
          .arguments = arguments,
          .cluster = cluster,
          .early = early});
}

void Launches::after(const LoadedKernel& kernel, const LaunchCall& call, void* arguments) {
  companions(kernel, Companion::When::after, call, arguments);
}

std::vector<std::byte> user_of(const Call& of, const LoadedKernel& kernel) {
  return codegen::user_bytes(of.mod.mod, of.args.captures, of.args.params, static_cast<float>(of.problem.scale),
                             kernel.choice.plan.spec.strides.offsets64);
}

Starts starts_of(Workspace& space, Launches* out, cu::Stream stream, const compiler::Problem& p,
                 const QueryTiles& tiles, int queries, bool masked, const Tensor& cu_q, const Tensor& cu_kv) {
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
