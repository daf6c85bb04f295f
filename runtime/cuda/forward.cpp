// runtime/cuda/forward.cpp — a forward call on a device: its kernel, its arguments, its launch
#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <set>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cuda/args.cuh"
#include "codegen/reads.h"
#include "runtime/captures.h"
#include "runtime/cuda/consider.h"
#include "runtime/cuda/engine.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/lists.h"
#include "runtime/cuda/maps.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/order.h"
#include "runtime/workspace.h"

namespace attune::runtime::cuda {
namespace {

using compiler::Problem;

void check_types(const Forward& call) {
  const auto refuse = [](std::string problem, std::string why, std::string fix) {
    return Error("engine-type", std::move(problem), {}, std::move(why), std::move(fix));
  };
  if (call.o.dtype == DType::f64)
    throw refuse("the CUDA engine does not write o as f64", "it computes in f32", "give it elements of f32");
  for (const auto& [name, t] : {std::pair{"lse", &call.lse}, {"max", &call.max}})
    if (t->given() && t->dtype != DType::f32)
      throw refuse(fmt::format("the CUDA engine writes {} as f32", name),
                   fmt::format("{} holds {}", name, name_of(t->dtype)), "give it elements of f32");
}

bool is_empty(const Problem& p) { return p.batch == 0 || p.q_heads == 0 || p.q_len == 0; }

/// Bytes that all rows of these may be copied by: 16, 8 or 4, and 0 where elements have to be copied one by one.
int piece(std::initializer_list<const Tensor*> tensors) {
  std::uint64_t bits = 16;
  for (const Tensor* t : tensors) {
    const auto last = static_cast<std::size_t>(t->rank) - 1;
    if (t->shape[last] > 1 && t->strides[last] != 1) return 0;
    bits |= reinterpret_cast<std::uintptr_t>(t->data);
    for (std::size_t i = 0; i < last; ++i)
      if (t->shape[i] > 1) bits |= static_cast<std::uint64_t>(t->strides[i]) * size_of(t->dtype);
  }
  const auto most = static_cast<int>(bits & -bits);
  return most >= 4 ? most : 0;
}

/// Of o, a piece divides a row.
int piece_of_rows(const Tensor& t) {
  const int most = piece({&t});
  const auto row = static_cast<int>(t.shape[static_cast<std::size_t>(t.rank) - 1]) * static_cast<int>(size_of(t.dtype));
  const int divides = row & -row;
  return std::min(most, divides) >= 4 ? std::min(most, divides) : 0;
}

/// The same for as long as the process lives.
const codegen::Preference* lasting(const codegen::Preference* preference) {
  static std::mutex mutex;
  static std::set<codegen::Preference>& kept = *new std::set<codegen::Preference>;
  if (!preference) return nullptr;
  const std::lock_guard lock(mutex);
  return &*kept.insert(*preference).first;
}

ForwardKey key_of(const compiler::LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  const bool boxes = std::ranges::all_of(std::array{&call.q, &call.k, &call.v, &call.o},
                                         [](const Tensor* t) { return has_boxes(*t); });
  return {.device = call.q.device.index,
          .spec = {.arch = facts(call.q.device.index).arch(),
                   .dtype = call.q.dtype,
                   .out = call.o.dtype,
                   .d = p.d,
                   .dv = p.dv,
                   .max = call.max.given(),
                   .packed = p.packed,
                   .heads = codegen::heads_to_share(p.q_len, p.group),
                   .boxes = boxes,
                   .load = piece({&call.q, &call.k, &call.v}),
                   .store = piece_of_rows(call.o),
                   .scale_positive = static_cast<float>(p.scale) > 0,
                   .exact = codegen::is_exact(means.exact, call.q.dtype),
                   .wide = codegen::reach_far(lowered.slots.captures)},
          .mod = lowered.digest,
          .length = codegen::length_of(p.q_len, p.kv_len),
          .preference = lasting(means.preference)};
}

/// Blocks that stay take the tiles of packed sequences in an order that the host makes, if it knows the starts; others
/// have a block for each of the longest sequence, of all.
bool has_order(const codegen::ForwardChoice& choice, const Problem& p) {
  return p.packed && choice.persistent && !p.starts_on_device();
}

/// Sets of heads that share tiles, of a batch entry.
std::int64_t sets_of(const codegen::ForwardPlan& plan, const Problem& p) {
  return p.q_heads / p.group * tiles(p.group, plan.heads);
}

/// What a launch works in: always taken in the same order.
struct Scratch {
  std::int64_t tiles = 0;  ///< of queries, of all sets of heads: what blocks share, without a counter each has one
  int* starts = nullptr;   ///< of q's sequences, then of k's and v's, from the host; then the order of their tiles
  std::int64_t starts_count = 0, order_count = 0;
  unsigned* next = nullptr;  ///< the counter that tiles are taken from, where there are more than blocks
  CoverLists lists;

  /// `made` may be null: a call that needs lists then has its own.
  Scratch(Workspace& space, int blocks, const ForwardKernel& kernel, const compiler::Cover& cover, const Problem& p,
          const detail::DeviceCover* made) {
    const bool ordered = has_order(kernel.choice, p);
    const codegen::ForwardPlan& plan = kernel.choice.plan;
    const bool by_place = p.packed && kernel.choice.persistent;
    if (ordered)
      order_count = packed_tiles(p.q_starts, plan.queries());
    else if (by_place)
      order_count = packed_places(p.q_total, p.batch, plan.queries());
    tiles = sets_of(plan, p) * (by_place ? order_count : cuda::tiles(p.q_len, plan.queries()) * p.batch);
    if (p.packed && !p.starts_on_device()) {
      starts_count = 2 * (p.batch + 1);
      starts = space.take<int>(starts_count + (ordered ? 2 * order_count : 0));
    }
    if (tiles > blocks && codegen::trait(plan, "dynamic")) next = space.take<unsigned>(1);
    if (made)
      lists = made->lists;
    else if (kernel.cover_kernel)
      lists = CoverLists(space, kernel, cover, p);
  }
};

/// Blocks of a kernel whose blocks stay.
int blocks_of(const Facts& device, const Means& means) {
  return means.blocks ? std::min(means.blocks, device.sms) : device.sms;
}

std::size_t bytes_for(int blocks, const ForwardKernel& kernel, const compiler::Cover& cover, const Problem& p,
                      const detail::DeviceCover* made) {
  Workspace counting;
  Scratch(counting, blocks, kernel, cover, p, made);
  return counting.used();
}

Strided strided(const Tensor& t, bool packed) {
  const auto& s = t.strides;
  return packed ? Strided{t.data, 0, s[1], s[0], s[2]} : Strided{t.data, s[0], s[1], s[2], s[3]};
}
Rows rows(const Tensor& t, bool packed) {
  if (!t.given()) return {};
  const auto& s = t.strides;
  auto* data = static_cast<float*>(t.data);
  return packed ? Rows{data, 0, s[0], s[1]} : Rows{data, s[0], s[1], s[2]};
}

/// Sets of heads whose keys and values fill half of the cache.
int section_of(const Facts& device, const codegen::ForwardPlan& plan, const Forward& call, const Problem& p) {
  const std::int64_t keys = p.packed ? p.kv_total : p.kv_len, of_group = tiles(p.group, plan.heads),
                     sets = sets_of(plan, p) * (p.packed ? 1 : p.batch);
  const std::int64_t head = std::max<std::int64_t>(
      keys * (p.d + p.dv) * static_cast<std::int64_t>(size_of(call.k.dtype)), 1);
  return static_cast<int>(std::clamp(device.l2_bytes / 2 / head * of_group, of_group, sets));
}

ForwardArgs arguments(const Facts& device, const ForwardKernel& kernel, const Forward& call, const Problem& p,
                      const Scratch& scratch) {
  const codegen::ForwardPlan& plan = kernel.choice.plan;
  ForwardArgs args{};
  if (kernel.choice.copy_engine) {
    const auto boxes = [&](const Tensor& t, int rows) {
      return plan.heads == 1 ? boxes_of(t, rows) : boxes_of_heads(t, rows, plan.heads, p.group);
    };
    args.q_map = boxes(call.q, plan.m);
    args.k_map = boxes_of(call.k, plan.n);
    args.v_map = boxes_of(call.v, plan.n);
    args.o_map = boxes(call.o, 16);
  }
  args.q = strided(call.q, p.packed);
  args.k = strided(call.k, p.packed);
  args.v = strided(call.v, p.packed);
  args.o = strided(call.o, p.packed);
  args.lse = rows(call.lse, p.packed);
  args.max = rows(call.max, p.packed);
  args.batch = static_cast<int>(p.batch);
  args.q_heads = static_cast<int>(p.q_heads);
  args.group = static_cast<int>(p.group);
  args.q_len = static_cast<int>(p.q_len);
  args.kv_len = static_cast<int>(p.kv_len);
  args.d = static_cast<int>(p.d);
  args.dv = static_cast<int>(p.dv);
  args.q_offset = p.q_offset;
  args.kv_shared = p.kv_shared;
  if (p.starts_on_device()) {
    args.q_starts = static_cast<const int*>(call.cu_seqlens_q.data);
    args.kv_starts = static_cast<const int*>(call.cu_seqlens_kv.data);
  } else if (p.packed) {
    args.q_starts = scratch.starts;
    args.kv_starts = scratch.starts + p.batch + 1;
    args.order = scratch.starts + scratch.starts_count;
  }
  args.order_count = static_cast<int>(scratch.order_count);
  args.tiles = scratch.lists.at;
  args.tile_stride = scratch.lists.stride;
  args.tile_batches = scratch.lists.batches;
  args.tile_heads = scratch.lists.heads;
  args.section = section_of(device, plan, call, p);
  args.next = scratch.next;
  return args;
}

/// The driver takes a copy of the host's memory before it returns, so what is sent need not stay. A graph would not.
void send_starts(const ForwardKernel& kernel, bool masked, const Problem& p, const Scratch& scratch,
                 cu::Stream stream) {
  if (!scratch.starts) return;
  if (capturing(stream))
    throw Error("stream-capture", "a packed call whose starts are on the host cannot be captured into a graph", {},
                "the graph would not have them any more when it runs",
                "pass cu_seqlens where q is, with .max_q_len and .max_kv_len; or call it without a graph");
  std::vector<int> sent(p.q_starts.begin(), p.q_starts.end());
  sent.insert(sent.end(), p.kv_starts.begin(), p.kv_starts.end());
  if (has_order(kernel.choice, p)) {
    const std::vector<int> order = packed_order(p.q_starts, p.kv_starts, kernel.choice.plan.queries(), masked);
    sent.insert(sent.end(), order.begin(), order.end());
  }
  driver().cuMemcpyAsync(reinterpret_cast<cu::Address>(scratch.starts), reinterpret_cast<cu::Address>(sent.data()),
                         sent.size() * sizeof(int), stream);
}

std::vector<std::byte> user_of(const compiler::LoweredMod& lowered, std::span<const double> params,
                               const ForwardKernel& kernel, const Problem& p) {
  return codegen::user_bytes(lowered.mod, lowered.slots.captures, params, static_cast<float>(p.scale),
                             kernel.choice.plan.wide);
}

/// On at most so many blocks, if they stay. `lists_first`: the launch that writes its lists was the last on the stream,
/// and it cleared the counter.
void launch(int most, const ForwardKernel& kernel, std::int64_t tiles, ForwardArgs& args, std::vector<std::byte>& user,
            bool lists_first, cu::Stream stream) {
  const codegen::ForwardPlan& plan = kernel.choice.plan;
  if (args.next && !lists_first) driver().cuMemsetD32Async(reinterpret_cast<cu::Address>(args.next), 0, 1, stream);
  std::array<void*, 2> pointers{&args, user.data()};
  const std::int64_t blocks = kernel.choice.persistent ? std::min<std::int64_t>(tiles, most) : tiles;
  if (blocks > std::numeric_limits<int>::max())
    throw Error(
        "too-long", "the call has too many tiles of queries for one launch", {},
        fmt::format("they are {}, {} queries each, and a grid has fewer than 2^31 blocks", blocks, plan.queries()),
        "split the call");
  kernel.kernel.launch({static_cast<unsigned>(blocks), 1, 1}, kernel.choice.threads, kernel.choice.shared_bytes, stream,
                       pointers, lists_first && kernel.choice.copy_engine);
}

}  // namespace

std::size_t forward_workspace(const compiler::LoweredMod& lowered, const Forward& call, const Problem& p,
                              const Means& means) {
  check_types(call);
  if (is_empty(p)) return 0;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  const auto kernel = forward_kernel(key_of(lowered, call, p, means), lowered, nullptr);
  if (means.cover) require_fit(*means.cover, device, *kernel, lowered, p, values(lowered.slots.params));
  return bytes_for(blocks_of(device, means), *kernel, lowered.cover, p, means.cover);
}

void forward(const compiler::LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_types(call);
  if (is_empty(p)) return;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  const auto kernel = forward_kernel(key_of(lowered, call, p, means), lowered, stream);
  const std::vector<double> params = values(lowered.slots.params);
  if (means.cover) require_fit(*means.cover, device, *kernel, lowered, p, params);
  const std::size_t bytes = bytes_for(blocks_of(device, means), *kernel, lowered.cover, p, means.cover);
  if (means.used) *means.used = {target_name(device.arch()), codegen::variant_of(kernel->choice.plan).text(), bytes};
  const Pooled own(device, means.workspace.empty() ? bytes : 0, stream);
  Workspace space = means.workspace.empty() ? Workspace(own.bytes()) : workspace_of(means.workspace, {}, bytes);
  const Scratch scratch(space, blocks_of(device, means), *kernel, lowered.cover, p, means.cover);
  send_starts(*kernel, !ir::is_literal(lowered.cover.may_drop, 0), p, scratch, stream);
  ForwardArgs args = arguments(device, *kernel, call, p, scratch);
  std::vector<std::byte> user = user_of(lowered, params, *kernel, p);
  const bool lists_first = kernel->cover_kernel && !means.cover;
  if (lists_first)
    write_lists(kernel->cover_kernel->kernel, scratch.lists, p, {args.q_starts, args.kv_starts}, args.next, user,
                stream);
  launch(blocks_of(device, means), *kernel, scratch.tiles, args, user, lists_first, stream);
}

std::size_t cover_bytes(const compiler::LoweredMod& lowered, const Forward& call, const Problem& p,
                        const Means& means) {
  check_types(call);
  if (is_empty(p) || p.packed) return 0;
  const Current current(call.q.device.index);
  const auto kernel = forward_kernel(key_of(lowered, call, p, means), lowered, nullptr);
  return kernel->cover_kernel ? CoverLists::bytes(*kernel, lowered.cover, p) : 0;
}

std::shared_ptr<const detail::DeviceCover> cover(const compiler::LoweredMod& lowered, const Forward& call,
                                                 const Problem& p, const Means& means) {
  check_types(call);
  // The starts of packed sequences come with each call, and its lists with them.
  if (is_empty(p) || p.packed) return nullptr;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  const auto kernel = forward_kernel(key_of(lowered, call, p, means), lowered, stream);
  if (!kernel->cover_kernel) return nullptr;
  const std::vector<double> params = values(lowered.slots.params);
  auto made = std::make_shared<detail::DeviceCover>(device, *kernel, lowered, p, params);
  const std::size_t bytes = CoverLists::bytes(*kernel, lowered.cover, p);
  Workspace space = means.workspace.empty()
                        ? Workspace(made->take(device, current, bytes, stream))
                        : workspace_of(means.workspace, {}, bytes, "Attention::cover_bytes for the call");
  made->lists = CoverLists(space, *kernel, lowered.cover, p);
  std::vector<std::byte> user = user_of(lowered, params, *kernel, p);
  write_lists(kernel->cover_kernel->kernel, made->lists, p, {}, nullptr, user, stream);
  return made;
}

ForwardStory forward_story(const compiler::LoweredMod& lowered, const Forward& call, const Problem& p,
                           const Means& means) {
  check_types(call);
  const Current current(call.q.device.index);
  const auto kernel = forward_kernel(key_of(lowered, call, p, means), lowered, nullptr);
  const codegen::ForwardChoice& choice = kernel->choice;
  ForwardStory out{.variant = codegen::variant_of(choice.plan),
                   .kernel = {},
                   .notes = kernel->story,
                   .registers = kernel->kernel.registers,
                   .spilled = kernel->kernel.spilled,
                   .shared_bytes = choice.shared_bytes,
                   .flaw = kernel->flaw};
  out.kernel = fmt::format("{}, {} threads, {} registers, {} bytes of shared memory", out.variant.text(),
                           choice.threads, out.registers, out.shared_bytes);
  if (choice.plan.heads > 1) out.kernel += fmt::format(", {} heads share a tile", choice.plan.heads);
  if (out.spilled) out.kernel += fmt::format(", {} bytes spilled", out.spilled);
  return out;
}

ForwardWants forward_wants(const compiler::LoweredMod& lowered, const Forward& call, const Problem& p,
                           std::optional<bool> exact) {
  check_types(call);
  const ForwardKey key = key_of(lowered, call, p, {.exact = exact});
  const compiler::Mod& mod = lowered.mod;
  const codegen::ForwardFacts facts = codegen::forward_facts(mod, lowered.cover, key.spec.scale_positive);
  const codegen::ForwardKind kind = codegen::forward_kind(mod, lowered.cover, facts, key.length);
  return {key.spec, facts, kind, tuned_key(key, kind)};
}

}  // namespace attune::runtime::cuda
