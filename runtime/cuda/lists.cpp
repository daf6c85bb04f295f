// runtime/cuda/lists.cpp — lists of tiles on a device: where they lie, who writes them, and which calls they are for
#include "runtime/cuda/lists.h"

#include <array>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/cuda/cover_args.cuh"
#include "ir/print.h"

namespace attune::runtime::cuda {

using compiler::Problem;

Lists::Lists(Workspace& space, const ForwardKernel& kernel, const compiler::Cover& cover, const Problem& p)
    : m(kernel.choice.plan.queries()), n(kernel.choice.plan.n) {
  if (cover.by_batch || p.packed) batches = static_cast<int>(p.batch);
  if (cover.by_head) heads = static_cast<int>(p.q_heads);
  // The lists, room to work in, and two more: kernels read ahead of what they visit.
  stride = static_cast<int>(4 + 2 * tiles(p.kv_len, n));
  at = space.take<int>(stride * tiles(p.q_len, m) * batches * heads);
}

std::size_t Lists::bytes(const ForwardKernel& kernel, const compiler::Cover& cover, const Problem& p) {
  Workspace counting;
  Lists(counting, kernel, cover, p);
  return counting.used();
}

void write_lists(const Kernel& kernel, const Lists& lists, const Problem& p, const Starts& starts, unsigned* next,
                 std::vector<std::byte>& user, cu::Stream stream) {
  CoverArgs args{.tiles = lists.at,
                 .tile_stride = lists.stride,
                 .q_len = static_cast<int>(p.q_len),
                 .kv_len = static_cast<int>(p.kv_len),
                 .q_offset = p.q_offset,
                 .m = lists.m,
                 .n = lists.n,
                 .q_starts = starts.q,
                 .kv_starts = starts.kv,
                 .next = next};
  std::array<void*, 2> pointers{&args, user.data()};
  kernel.launch({static_cast<unsigned>(tiles(p.q_len, lists.m)), static_cast<unsigned>(lists.heads),
                 static_cast<unsigned>(lists.batches)},
                cover_threads, 0, stream, pointers);
}

namespace {

std::string text_of(const Compiled& compiled) {
  return ir::print(compiled.cover.mask, compiled.traced.mod.signature());
}

/// Why these are not the lists of the call; empty where they are.
std::string difference(const detail::Listed& listed, const Facts& device, const ForwardKernel& kernel,
                       const Compiled& compiled, const Problem& p, std::span<const double> params) {
  const compiler::Mod& mod = compiled.traced.mod;
  if (p.packed) return "it is for dense tensors, and the sequences of this call are packed";
  if (listed.device != device.index)
    return fmt::format("its lists are on cuda:{}, and q is on cuda:{}", listed.device, device.index);
  if (!kernel.lister) return fmt::format("it is for `{}`, and `{}` needs no lists", listed.text, text_of(compiled));
  const compiler::CoverOf& of = kernel.lister->of;
  if (listed.mask != of.mask)
    return fmt::format("it is for `{}`, and the mask of this call is `{}`", listed.text, text_of(compiled));
  for (std::size_t i = 0; i < of.captures.size(); ++i) {
    const Tensor &then = listed.captures[i], &now = compiled.traced.captures[of.captures[i]];
    if (then == now) continue;
    const std::string &name = mod.captures[of.captures[i]].name, before = then.describe(), after = now.describe();
    return before != after ? fmt::format("its `{}` is {}, and that of this call {}", name, before, after)
                           : fmt::format("its `{}` lies elsewhere than that of this call", name);
  }
  for (std::size_t i = 0; i < of.params.size(); ++i)
    if (listed.params[i] != params[of.params[i]])
      return fmt::format("`{}` was {}, and is {}", mod.params[of.params[i]].name, listed.params[i],
                         params[of.params[i]]);
  if (listed.q_len != p.q_len || listed.kv_len != p.kv_len)
    return fmt::format("it is for {} queries and {} keys, and this call has {} and {}", listed.q_len, listed.kv_len,
                       p.q_len, p.kv_len);
  if (listed.q_offset != p.q_offset)
    return fmt::format("it is for a q_offset of {}, and that of this call is {}", listed.q_offset, p.q_offset);
  const Lists& lists = listed.lists;
  if (compiled.cover.by_batch && lists.batches != p.batch)
    return fmt::format("its mask varies with the batch: it is for {} entries, and this call has {}", lists.batches,
                       p.batch);
  if (compiled.cover.by_head && lists.heads != p.q_heads)
    return fmt::format("its mask varies with the head: it is for {} heads, and this call has {}", lists.heads,
                       p.q_heads);
  const codegen::ForwardPlan& plan = kernel.choice.plan;
  if (lists.m != plan.queries() || lists.n != plan.n)
    return fmt::format("its tiles are {} queries by {} keys, and those of this call's kernel, {}, {} by {}", lists.m,
                       lists.n, plan.kernel, plan.queries(), plan.n);
  return {};
}

}  // namespace

void require_fit(const detail::Listed& listed, const Facts& device, const ForwardKernel& kernel,
                 const Compiled& compiled, const Problem& p, std::span<const double> params) {
  const std::string why = difference(listed, device, kernel, compiled, p, params);
  if (why.empty()) return;
  throw Error("cover-other", "the cover was made for other calls", {}, why,
              "make one for this call: Attention::cover; or leave it out, and the call lists its own tiles");
}

}  // namespace attune::runtime::cuda

namespace attune::detail {

Listed::Listed(const cuda::Facts& on, const cuda::ForwardKernel& kernel, const cuda::Compiled& compiled,
               const compiler::Problem& p, std::span<const double> all_params)
    : device(on.index), mask(kernel.lister->of.mask), text(cuda::text_of(compiled)), q_len(p.q_len), kv_len(p.kv_len),
      q_offset(p.q_offset) {
  for (const std::uint32_t slot : kernel.lister->of.captures) captures.push_back(compiled.traced.captures[slot]);
  for (const std::uint32_t slot : kernel.lister->of.params) params.push_back(all_params[slot]);
}

std::span<std::byte> Listed::take(const cuda::Facts& on, const cuda::Current& current, std::size_t bytes,
                                  cuda::cu::Stream stream) {
  if (cuda::capturing(stream))
    throw Error("stream-capture", "a cover has no memory within a capture", {},
                "what is taken from the stream's pool would be the graph's alone",
                "hand in memory of the device: .workspace, as many bytes as Attention::cover_bytes says");
  context_ = current.context();
  memory_.emplace(on, bytes, stream);
  return memory_->bytes();
}

// What the driver says is not looked at: at the end of a process it may be gone, and the memory with it.
Listed::~Listed() {
  if (!memory_) return;
  const cuda::Driver& d = cuda::driver();
  cuda::cu::Context popped = nullptr;
  if (d.cuCtxPushCurrent.raw(context_) != cuda::cu::Result::success) return;
  memory_.reset();
  d.cuCtxPopCurrent.raw(&popped);
}

}  // namespace attune::detail
