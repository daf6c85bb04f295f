// runtime/engines/cuda/lists.cpp — lists of tiles on a device: their sizes, the launch that writes them, the calls they
// fit
#include "runtime/engines/cuda/lists.h"

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "ir/print.h"
#include "runtime/engines/cuda/operands.h"

namespace attune::runtime::cuda {

using compiler::Problem;

CoverLists::CoverLists(const codegen::KernelPlan& plan, const compiler::Cover& cover, const Problem& p, CoverForm lists)
    : what(lists), m(plan.tile.queries()), n(plan.tile.n) {
  const std::int64_t q_tiles = ceil_div(p.q.length, m), kv_tiles = ceil_div(p.kv.length, n);
  rows = what == CoverForm::of_queries ? q_tiles : kv_tiles;
  blocks = what == CoverForm::of_keys ? kv_tiles : q_tiles;
  if (cover.by_batch || p.q.packed() || plan.spec.cache.per_entry) batches = static_cast<int>(p.batch);
  if (cover.by_head) heads = static_cast<int>(p.q_heads);
  // A row of lists also has scratch space, and two more ints, because kernels read ahead of the tile that they visit.
  stride = static_cast<int>(what == CoverForm::visits ? q_tiles
                                                      : 4 + 2 * (what == CoverForm::of_keys ? q_tiles : kv_tiles));
}

void put_cover(Launches& launches, const LoadedKernel& kernel, const CoverLists& lists, const Entries& of,
               unsigned* next, unsigned* visited) {
  const LoadedCompanion& writer = *kernel.lists();
  auto& args = launches.make<CoverArgs>();
  set_entries(args, of);
  args.tile_stride = lists.stride;
  args.into = lists.at;
  args.m = lists.m;
  args.n = lists.n;
  args.next = next;
  args.visited = visited;
  launches.launch({.kernel = &writer.kernel,
                   .grid = {static_cast<unsigned>(lists.blocks), static_cast<unsigned>(lists.heads),
                            static_cast<unsigned>(lists.batches)},
                   .threads = cover_threads,
                   .arguments = &args,
                   .early = writer.what->early});
}

namespace {

std::string text_of(const compiler::LoweredMod& lowered) {
  return ir::print(lowered.cover.mask, lowered.mod.signature());
}

/// The reason why these are not the lists of the call; empty if they are.
std::string difference(const detail::DeviceCover& made, const Facts& device, const LoadedKernel& kernel,
                       const compiler::LoweredMod& lowered, const compiler::Args& args, const Problem& p) {
  const compiler::Mod& mod = lowered.mod;
  if (p.q.packed()) return "it is for dense tensors, and the sequences of this call are packed";
  if (kernel.choice.plan.spec.cache.per_entry)
    return "it is for entries that are alike, and those of this call have their own lengths, positions or pages";
  if (made.device != device.index)
    return fmt::format("its lists are on cuda:{}, and q is on cuda:{}", made.device, device.index);
  if (!kernel.writes_lists())
    return fmt::format("it is for `{}`, and `{}` needs no lists", made.text, text_of(lowered));
  const compiler::CoverOf& of = kernel.cover_of;
  if (made.mask != of.mask)
    return fmt::format("it is for `{}`, and the mask of this call is `{}`", made.text, text_of(lowered));
  for (std::size_t i = 0; i < of.captures.size(); ++i) {
    const Tensor &then = made.captures[i], &now = args.captures[of.captures[i]];
    if (then == now) continue;
    const std::string &name = mod.captures[of.captures[i]].name, before = then.describe(), after = now.describe();
    return before != after ? fmt::format("its `{}` is {}, and this call's is {}", name, before, after)
                           : fmt::format("its `{}` is at another address than this call's", name);
  }
  for (std::size_t i = 0; i < of.params.size(); ++i)
    if (const double now = args.params[of.params[i]]; made.params[i] != now)
      return fmt::format("`{}` was {}, and is {}", mod.params[of.params[i]].name, made.params[i], now);
  if (made.q_len != p.q.length || made.kv_len != p.kv.length)
    return fmt::format("it is for {} queries and {} keys, and this call has {} and {}", made.q_len, made.kv_len,
                       p.q.length, p.kv.length);
  if (made.q_offset != p.q_offset)
    return fmt::format("it is for a q_offset of {}, and this call's is {}", made.q_offset, p.q_offset);
  const CoverLists& lists = made.lists;
  if (lowered.cover.by_batch && lists.batches != p.batch)
    return fmt::format("its mask varies with the batch: it is for {} entries, and this call has {}", lists.batches,
                       p.batch);
  if (lowered.cover.by_head && lists.heads != p.q_heads)
    return fmt::format("its mask varies with the head: it is for {} heads, and this call has {}", lists.heads,
                       p.q_heads);
  const codegen::KernelPlan& plan = kernel.choice.plan;
  if (lists.m != plan.tile.queries() || lists.n != plan.tile.n)
    return fmt::format("its tiles are {} queries by {} keys, and this call's kernel, {}, has tiles of {} by {}",
                       lists.m, lists.n, plan.kernel->name, plan.tile.queries(), plan.tile.n);
  return {};
}

}  // namespace

void require_fit(const detail::DeviceCover& made, const Facts& device, const LoadedKernel& kernel,
                 const compiler::LoweredMod& lowered, const compiler::Args& args, const Problem& p) {
  const std::string why = difference(made, device, kernel, lowered, args, p);
  if (why.empty()) return;
  throw Error("cover-other", "the cover does not match this call", {}, why,
              "make one for this call: Attention::cover; or leave it out, and the call lists its own tiles");
}

}  // namespace attune::runtime::cuda

namespace attune::detail {

DeviceCover::DeviceCover(const cuda::Facts& on, const cuda::LoadedKernel& kernel, const compiler::LoweredMod& lowered,
                         const compiler::Args& args, const compiler::Problem& p)
    : device(on.index), mask(kernel.cover_of.mask), text(cuda::text_of(lowered)), q_len(p.q.length),
      kv_len(p.kv.length), q_offset(p.q_offset) {
  for (const std::uint32_t slot : kernel.cover_of.captures) captures.push_back(args.captures[slot]);
  for (const std::uint32_t slot : kernel.cover_of.params) params.push_back(args.params[slot]);
}

std::span<std::byte> DeviceCover::take(const cuda::Facts& on, const cuda::Current& current, std::size_t bytes,
                                       cuda::cu::Stream stream) {
  if (cuda::capturing(stream))
    throw Error("stream-capture", "a cover cannot allocate memory during a capture", {},
                "memory from the stream's pool would belong to the graph",
                "pass device memory as .workspace, of Attention::cover_bytes bytes");
  context_ = current.context();
  memory_.emplace(on, bytes, stream);
  return memory_->bytes();
}

// Results of the driver are ignored: at process exit the driver may already be unloaded, and the memory is then gone
// too.
DeviceCover::~DeviceCover() {
  if (!memory_) return;
  const cuda::Driver& d = cuda::driver();
  cuda::cu::Context popped = nullptr;
  if (d.cuCtxPushCurrent.raw(context_) != cuda::cu::Result::success) return;
  memory_.reset();
  d.cuCtxPopCurrent.raw(&popped);
}

}  // namespace attune::detail
