// runtime/engines/cuda/forward.cpp — a forward call on a device: its kernel, its memory, its launches
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/ceil_div.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/layout/equal_parts.cuh"
#include "codegen/gpu_element.h"
#include "codegen/reads.h"
#include "runtime/engines/captures.h"
#include "runtime/engines/cuda/consider.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/maps.h"
#include "runtime/engines/cuda/memory.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {
namespace {

using compiler::Args, compiler::LoweredMod, compiler::Problem;

void check_outputs(const Forward& call) {
  require_writable("o", call.o);
  require_f32_rows("lse", call.lse);
  require_f32_rows("max", call.max);
  if (call.o_before.given() && call.o_before.dtype == DType::f64)
    throw Error("engine-type", "the CUDA engine does not read o_before as f64", {}, "it computes in f32",
                "give it elements of f32");
  require_f32_rows("lse_before", call.lse_before);
}

/// Are values a view of keys' rows, from their first columns on? codegen::is_latent compares the widths.
bool values_within_keys(const Forward& call) {
  const Tensor &k = call.k, &v = call.v;
  if (v.data != k.data || v.dtype != k.dtype || v.rank != k.rank) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(k.rank); ++i)
    if (v.strides[i] != k.strides[i] && k.shape[i] > 1) return false;
  return true;
}

/// KernelSpec::page_rows of a table's pool.
int page_rows(const Forward& call, const Problem& p) {
  return p.kv.paged() ? static_cast<int>(std::gcd(call.k.shape[2], std::int64_t{64})) : 0;
}

bool is_empty(const Problem& p) { return p.batch == 0 || p.q_heads == 0 || p.q.length == 0; }

/// Does the call say more of its keys than its queries do?
bool tells_apart(const Forward& call, const Problem& p) {
  return p.q.layout != p.kv.layout || p.kv_offset != 0 || call.kv_len.given() || call.q_offsets.given();
}

KernelKey key_of(const Facts& device, const LoweredMod& lowered, const Args& args, const Forward& call,
                 const Problem& p, const Means& means) {
  const bool latent = codegen::is_latent(p.d, p.dv, values_within_keys(call));
  const Problem& whole = means.whole ? *means.whole : p;
  // Of latent heads the copy engine moves q and k alone.
  const bool boxes = has_boxes(call.q) && has_boxes(call.k) && (latent || (has_boxes(call.v) && has_boxes(call.o)));
  KernelKey key{.device = device.index,
                .spec = {.arch = device.arch(),
                         .dtype = call.q.dtype,
                         .out = call.o.dtype,
                         .d = p.d,
                         .dv = p.dv,
                         .max = call.max.given(),
                         .packed = p.q.packed(),
                         .apart = tells_apart(call, p) || latent,
                         .paged = p.kv.paged(),
                         .narrow = call.k.dtype != call.q.dtype,
                         .before = call.o_before.given(),
                         .pieces = call.piece != 0,
                         .latent = latent,
                         .page_rows = latent ? page_rows(call, p) : 0,
                         .pairs = latent && whole.q.length * p.group > codegen::latent_rows,
                         .heads = latent ? codegen::latent_heads_to_share(p.group)
                                         : codegen::heads_to_share(whole.q.length, p.group),
                         .few = !latent && codegen::few_rows(whole.q.length, p.group),
                         .boxes = boxes,
                         .load = copied_bytes({&call.q, &call.k, &call.v}),
                         .store = stored_bytes(call.o),
                         .scale_positive = static_cast<float>(p.scale) > 0,
                         .exact = codegen::is_exact(means.exact, call.q.dtype),
                         .wide = codegen::reach_far(args.captures)},
                .mod = lowered.digest,
                .length = codegen::length_of(whole.q.length, whole.kv.length)};
  if (means.preference) key.preference = *means.preference;
  return key;
}

QueryTiling tiling_of(const codegen::KernelChoice& choice) {
  const codegen::KernelDescriptor& kernel = *choice.plan.kernel;
  return {.queries = choice.plan.queries(),
          .heads = choice.plan.heads,
          .persistent = kernel.persistent && !kernel.cuts_keys};
}

std::vector<std::byte> user_of(const LoweredMod& lowered, const Args& args, const LoadedKernel& kernel,
                               const Problem& p) {
  return codegen::user_bytes(lowered.mod, args.captures, args.params, static_cast<float>(p.scale),
                             kernel.choice.plan.wide);
}

/// A call with its kernel. Its memory is laid out here, once; `put` fills it in and puts the launches on a stream.
class ForwardCall {
 public:
  ForwardCall(const Facts& device, const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means)
      : lowered_(lowered), args_(args_of(lowered, call)), call_(call), p_(p), means_(means), device_(device),
        kernel_(loaded_kernel(key_of(device, lowered, args_, call, p, means), lowered,
                              static_cast<cu::Stream>(means.stream), means.purpose)),
        tiling_(tiling_of(kernel_->choice)), tiles_(tiling_, p), starts_(space_, p, tiles_) {
    if (call.piece != 0 && !cuts_keys()) refuse_piece();
    if (means.cover) require_fit(*means.cover, device_, *kernel_, lowered, args_, p);
    if (tiles_.count > most_blocks() && kernel_->choice.counts_tiles) next_ = space_.take<unsigned>(1);
    if (turns()) turned_ = space_.take<std::byte>(turned(nullptr).size());
    if (cuts_keys()) {
      const codegen::KernelPlan& plan = kernel_->choice.plan;
      const std::int64_t rows = latent() ? plan.m : p.q.length * plan.heads;
      if (plan.pieces) deal_pieces();
      const std::int64_t tiles = p.batch * tiles_.sets, parts = !plan.pieces  ? 2 * std::int64_t{blocks()}
                                                                : pieces_ > 1 ? tiles * pieces_
                                                                              : 0;
      parts_ = space_.take<float>(parts * rows * (plan.dv + part_floats));
      if (latent())
        cut_ = space_.take<CutTile>(blocks() / cluster());
      else
        arrivals_ = space_.take<unsigned>(plan.pieces ? tiles : std::int64_t{blocks()});
    }
    if (means.cover) {
      lists_ = means.cover->lists;
    } else if (kernel_->cover_kernel) {
      lists_ = CoverLists(kernel_->choice.plan, lowered.cover, p);
      own_lists_ = space_.take<int>(lists_.ints());
    }
  }

  const LoadedKernel& kernel() const { return *kernel_; }
  std::size_t bytes() const { return space_.bytes(); }

  void put(std::byte* memory) {
    const auto stream = static_cast<cu::Stream>(means_.stream);
    starts_.require_no_capture(stream);
    Launches launches;
    const bool masked = !ir::is_literal(lowered_.cover.may_drop, 0);
    const Starts starts = starts_.send(launches, memory, p_, tiling_, masked, call_.cu_seqlens_q, call_.cu_seqlens_kv);
    const bool writes_lists = own_lists_.count > 0;
    if (writes_lists) lists_.at = own_lists_.in(memory);
    unsigned* const next = next_.in(memory);
    if (next && !writes_lists) launches.clear(next);
    TurnArgs turn{};
    if (turns()) {
      turn = turn_arguments(starts, memory);
      launches.launch({.kernel = kernel_->turn.get(),
                       .grid = {static_cast<unsigned>(turned_batch() * p_.kv_heads * turned_tiles()), 1, 1},
                       .threads = turn_threads,
                       .arguments = &turn});
    }
    CoverArgs cover{};
    if (writes_lists) {
      cover = cover_arguments(lists_, p_, starts, next);
      launches.launch(cover_launch(kernel_->cover_kernel->kernel, lists_, cover));
    }
    const int parts = cuts_keys() ? known_parts() : 0;
    const bool pairs = kernel_->clear && parts == 2 && may_pair();
    const auto launch = [&](auto&& given) {
      launches.launch(
          {.kernel = &kernel_->kernel,
           .grid = {pairs ? static_cast<unsigned>(2 * p_.batch * tiles_.sets) : blocks(), 1, 1},
           .threads = kernel_->choice.threads,
           .shared_bytes = kernel_->choice.shared_bytes,
           .arguments = &given,
           .cluster = pairs ? 2u : 1u,
           .early = ((writes_lists || turns()) && kernel_->choice.plan.kernel->waits) || kernel_->clear != nullptr});
      std::vector<std::byte> user = user_of(lowered_, args_, *kernel_, p_);
      launches.put(stream, user);
    };
    const auto launch_all = [&](auto&& given) {
      kernel_->choice.plan.further() ? launch(further(given)) : launch(given);
    };
    if (takes_apart()) return launch_all(apart_arguments(starts, memory));
    if (!cuts_keys()) return launch_all(arguments(starts, memory));
    if (latent()) return put_latent(launches, starts, memory, parts);
    DecodeArgs args = decode_arguments(starts, memory, pairs);
    if (kernel_->clear && (parts == 1 || pairs)) return launch_all(args);
    // A call's first kernel may start before the previous kernel has ended, and waits for it itself.
    ClearArgs arrivals{arrivals_.in(memory), static_cast<int>(arrivals_.count)};
    if (kernel_->clear)
      launches.launch(
          {.kernel = kernel_->clear.get(), .threads = clear_threads, .arguments = &arrivals, .early = true});
    else
      launches.clear(arrivals.first, static_cast<std::size_t>(arrivals.count));
    launch_all(args);
  }

 private:
  bool cuts_keys() const { return kernel_->choice.plan.kernel->cuts_keys; }
  /// Does the kernel find entries' lengths, positions and pages, though its blocks share no keys?
  bool takes_apart() const { return codegen::trait(kernel_->choice.plan, "apart") != 0; }
  bool turns() const { return kernel_->turn != nullptr; }
  bool latent() const { return kernel_->choice.plan.kernel->latent; }
  /// Blocks that work on the same keys.
  unsigned cluster() const { return static_cast<unsigned>(codegen::trait(kernel_->choice.plan, "cluster")); }

  /// The number of equal parts into which blocks cut each tile of queries; 0 where only the device knows. Whole tiles,
  /// one part each, need no counters and no merge.
  int known_parts() const {
    if (kernel_->skips || p_.q.packed() || p_.kv.packed() || call_.kv_len.given() || kernel_->choice.plan.pieces)
      return 0;
    const std::int64_t tiles = p_.batch * (latent() ? latent_sets() : tiles_.sets),
                       sharers = blocks() / (latent() ? cluster() : 1);
    return equal_parts(static_cast<int>(tiles), static_cast<int>(sharers),
                       static_cast<int>(ceil_div(p_.kv.length, kernel_->choice.plan.n)), 1);
  }
  /// May two blocks that share a tile be a cluster?
  bool may_pair() const {
    const codegen::KernelPlan& plan = kernel_->choice.plan;
    return codegen::trait(plan, "pairs") != 0 && codegen::trait(plan, "warps") >= cluster_warps;
  }

  /// Only kernels that cut keys sum them in pieces.
  [[noreturn]] void refuse_piece() const {
    throw Error("engine-call", "the CUDA engine does not take piece in such a call", {},
                !kernel_->story.empty() ? fmt::format("{}", fmt::join(kernel_->story, "; "))
                                        : "it is for a few queries, times the heads that share keys: 16 in all",
                "give each call fewer queries, leave piece out, or compute on the host");
  }

  /// All warps have as many steps of a piece, so that no step of a warp is in two.
  void deal_pieces() {
    const codegen::KernelPlan& plan = kernel_->choice.plan;
    const std::int64_t warps = codegen::trait(plan, "warps"), steps = ceil_div(p_.kv.length, plan.n),
                       least = call_.piece / plan.n, whole = round_up(std::max<std::int64_t>(steps, 1), warps);
    // Where a piece has all keys, how many it could have does not matter.
    piece_ = static_cast<int>(std::min(std::lcm(std::min(least, whole * warps), warps), whole));
    pieces_ = static_cast<int>(ceil_div(steps, piece_));
  }
  /// Blocks of a kernel whose blocks stay.
  int most_blocks() const { return means_.blocks ? std::min(means_.blocks, device_.sms) : device_.sms; }

  unsigned blocks() const {
    if (cuts_keys()) {
      // A part of a tile is worth a block where it has some keys.
      constexpr int least_keys = 64;
      const std::int64_t parts = std::max<std::int64_t>(p_.kv.length / least_keys, 1);
      if (latent())
        return cluster() *
               static_cast<unsigned>(std::min<std::int64_t>(
                   p_.batch * latent_sets() * parts, std::max(static_cast<unsigned>(most_blocks()) / cluster(), 1u)));
      return static_cast<unsigned>(std::min<std::int64_t>(tiles_.count * parts, most_blocks()));
    }
    const std::int64_t blocks = kernel_->choice.plan.kernel->persistent
                                    ? std::min<std::int64_t>(tiles_.count, most_blocks())
                                    : tiles_.count;
    if (blocks > std::numeric_limits<int>::max())
      throw Error(
          "too-long", "the call has too many tiles of queries for one launch", {},
          fmt::format("they are {}, {} queries each, and a grid has fewer than 2^31 blocks", blocks, tiling_.queries),
          "split the call");
    return static_cast<unsigned>(blocks);
  }

  /// Boxes of q or o, where heads may share a tile.
  auto query_boxes(const Tensor& t, int positions) const {
    const int heads = kernel_->choice.plan.heads;
    return heads == 1 ? boxes_of(t, positions) : boxes_of_heads(t, positions, heads, p_.group);
  }

  // ---- values turned round ----

  /// Tiles of keys of a head; packed: places for those of all sequences, as place_of of tile_scheduler_sm90.cuh counts
  /// them.
  std::int64_t turned_tiles() const {
    const std::int64_t n = kernel_->choice.plan.n;
    return p_.kv.packed() ? p_.kv.total / n + p_.batch : ceil_div(p_.kv.length, n);
  }
  std::int64_t turned_batch() const { return p_.kv.packed() || p_.kv_shared ? 1 : p_.batch; }
  /// Rows of a tile, 128 keys each: where it has more keys, rows of the next 128 follow.
  int turned_rows() const {
    return ceil_div(kernel_->choice.plan.n, codegen::gpu_element(DType::e4m3).chunk()) * kernel_->choice.plan.dv;
  }
  /// All of them; as WorkspaceLayout has it, memory may be null.
  Tensor turned(const std::byte* memory) const {
    return {memory,
            DType::e4m3,
            {turned_batch(), p_.kv_heads, turned_tiles() * turned_rows(), codegen::gpu_element(DType::e4m3).chunk()}};
  }
  TurnArgs turn_arguments(const Starts& starts, std::byte* memory) const {
    return {.from = boxes_of(call_.v, kernel_->choice.plan.n),
            .to = boxes_of(turned(turned_.in(memory)), turned_rows()),
            .heads = static_cast<int>(p_.kv_heads),
            .tiles = static_cast<int>(turned_tiles()),
            .batch = static_cast<int>(p_.batch),
            .starts = starts.kv};
  }

  ForwardArgs arguments(const Starts& starts, std::byte* memory) const {
    ForwardArgs args{};
    if (const auto& rows = kernel_->choice.boxes) {
      args.q_map = query_boxes(call_.q, rows->q);
      args.k_map = boxes_of(call_.k, rows->k);
      args.v_map = turns() ? boxes_of(turned(turned_.in(memory)), turned_rows()) : boxes_of(call_.v, rows->v);
      args.o_map = query_boxes(call_.o, rows->o);
    }
    args.q = strided(call_.q, p_.q.layout);
    args.k = strided(call_.k, p_.kv.layout);
    args.v = strided(call_.v, p_.kv.layout);
    args.o = strided(call_.o, p_.q.layout);
    args.lse = rows(call_.lse, p_.q.layout);
    args.max = rows(call_.max, p_.q.layout);
    args.batch = static_cast<int>(p_.batch);
    args.q_heads = static_cast<int>(p_.q_heads);
    args.group = static_cast<int>(p_.group);
    args.q_len = static_cast<int>(p_.q.length);
    args.kv_len = static_cast<int>(p_.kv.length);
    args.d = static_cast<int>(p_.d);
    args.dv = static_cast<int>(p_.dv);
    args.q_offset = p_.q_offset;
    args.kv_shared = p_.kv_shared;
    args.q_starts = starts.q;
    args.kv_starts = starts.kv;
    args.order = starts.order;
    args.order_count = static_cast<int>(tiles_.order);
    args.tiles = lists_.at;
    args.tile_stride = lists_.stride;
    args.tile_batches = lists_.batches;
    args.tile_heads = lists_.heads;
    args.section = section_of(tiles_, p_, device_.l2_bytes, static_cast<std::int64_t>(size_of(call_.k.dtype)));
    args.next = next_.in(memory);
    return args;
  }

  ApartArgs apart_arguments(const Starts& starts, std::byte* memory) const {
    return {arguments(starts, memory), numbers(call_.kv_len), numbers(call_.q_offsets), pages(call_.pages, call_.k),
            p_.kv_offset};
  }

  template <class Arguments>
  Further<Arguments> further(const Arguments& args) const {
    Further<Arguments> out{args, {}, {}, {}, piece_, pieces_};
    if (!call_.o_before.given()) return out;
    out.o_before = strided(call_.o_before, p_.q.layout);
    out.lse_before = rows(call_.lse_before, p_.q.layout);
    out.o_before_type = stored(call_.o_before.dtype);
    return out;
  }

  DecodeArgs decode_arguments(const Starts& starts, std::byte* memory, bool paired) const {
    return {.q = strided(call_.q, p_.q.layout),
            .k = strided(call_.k, p_.kv.layout),
            .v = strided(call_.v, p_.kv.layout),
            .o = strided(call_.o, p_.q.layout),
            .lse = rows(call_.lse, p_.q.layout),
            .max = rows(call_.max, p_.q.layout),
            .batch = static_cast<int>(p_.batch),
            .group = static_cast<int>(p_.group),
            .q_len = static_cast<int>(p_.q.length),
            .kv_len = static_cast<int>(p_.kv.length),
            .q_offset = p_.q_offset,
            .kv_shared = p_.kv_shared,
            .sets = static_cast<int>(tiles_.sets),
            .sets_of_group = static_cast<int>(tiles_.group_sets),
            .kv_offset = p_.kv_offset,
            .q_starts = starts.q,
            .kv_starts = starts.kv,
            .kv_lens = numbers(call_.kv_len),
            .q_offsets = numbers(call_.q_offsets),
            .pages = pages(call_.pages, call_.k),
            .tiles = lists_.at,
            .tile_stride = lists_.stride,
            .tile_batches = lists_.batches,
            .tile_heads = lists_.heads,
            .parts = parts_.in(memory),
            .arrivals = arrivals_.in(memory),
            .paired = paired};
  }

  /// What clusters of blocks take of a batch entry's heads: all queries of a key head, as many rows as these have.
  std::int64_t latent_sets_of_group() const {
    return ceil_div(tiles_.group_sets * ceil_div(p_.q.length, tiling_.queries), std::int64_t{cluster()});
  }
  std::int64_t latent_sets() const { return p_.kv_heads * latent_sets_of_group(); }

  LatentArgs latent_arguments(const Starts& starts, std::byte* memory) const {
    const codegen::KernelChoice& choice = kernel_->choice;
    LatentArgs args{decode_arguments(starts, memory, false), {}, {}, cut_.in(memory), static_cast<int>(cut_.count)};
    args.sets = static_cast<int>(latent_sets());
    args.sets_of_group = static_cast<int>(latent_sets_of_group());
    args.q_map = query_boxes(call_.q, choice.boxes->q);
    args.k_map = boxes_of(call_.k, choice.boxes->k);
    return args;
  }
  void put_latent(Launches& launches, const Starts& starts, std::byte* memory, int parts) {
    const auto both = [&](auto&& given) {
      launches.launch({.kernel = &kernel_->kernel,
                       .grid = {blocks(), 1, 1},
                       .threads = kernel_->choice.threads,
                       .shared_bytes = kernel_->choice.shared_bytes,
                       .arguments = &given,
                       .early = true});
      if (parts != 1)
        launches.launch({.kernel = kernel_->join.get(),
                         .grid = {blocks() * join_blocks, 1, 1},
                         .threads = join_threads,
                         .arguments = &given,
                         .early = true});
      std::vector<std::byte> user = user_of(lowered_, args_, *kernel_, p_);
      launches.put(static_cast<cu::Stream>(means_.stream), user);
    };
    const LatentArgs args = latent_arguments(starts, memory);
    kernel_->choice.plan.further() ? both(further(args)) : both(LatentArgs(args));
  }

  const LoweredMod& lowered_;
  Args args_;
  const Forward& call_;
  const Problem& p_;
  const Means& means_;
  const Facts& device_;
  std::shared_ptr<const LoadedKernel> kernel_;
  QueryTiling tiling_;
  QueryTiles tiles_;
  WorkspaceLayout space_;
  StartsRoom starts_;
  Room<unsigned> next_;  ///< the counter that tiles are taken from, where there are more of them than blocks
  Room<float> parts_;    ///< of tiles that blocks share, and how many of these have written theirs
  Room<unsigned> arrivals_;
  Room<CutTile> cut_;
  int piece_ = 0, pieces_ = 0;  ///< as Further has them
  Room<int> own_lists_;
  Room<std::byte> turned_;
  CoverLists lists_;
};

}  // namespace

std::size_t forward_workspace(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  if (is_empty(p)) return 0;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  return ForwardCall(device, lowered, call, p, means).bytes();
}

void forward(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  if (is_empty(p)) return;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  ForwardCall run(device, lowered, call, p, means);
  const std::size_t bytes = run.bytes();
  if (means.used)
    *means.used = {target_name(device.arch()), codegen::variant_of(run.kernel().choice.plan).text(), bytes};
  if (!means.workspace.empty()) return run.put(checked_workspace(means.workspace, bytes).data());
  const Pooled own(device, bytes, static_cast<cu::Stream>(means.stream));
  run.put(own.bytes().data());
}

std::size_t cover_bytes(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  if (is_empty(p) || p.q.packed()) return 0;
  const Current current(call.q.device.index);
  const auto kernel = loaded_kernel(key_of(facts(call.q.device.index), lowered, args_of(lowered, call), call, p, means),
                                    lowered, nullptr, means.purpose);
  if (!kernel->cover_kernel) return 0;
  WorkspaceLayout space;
  space.take<int>(CoverLists(kernel->choice.plan, lowered.cover, p).ints());
  return space.bytes();
}

std::shared_ptr<const detail::DeviceCover> cover(const LoweredMod& lowered, const Forward& call, const Problem& p,
                                                 const Means& means) {
  check_outputs(call);
  // The starts of packed sequences come with each call, and their lists with them.
  if (is_empty(p) || p.q.packed()) return nullptr;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  const Args args = args_of(lowered, call);
  const auto kernel = loaded_kernel(key_of(device, lowered, args, call, p, means), lowered, stream, means.purpose);
  if (!kernel->cover_kernel) return nullptr;
  auto made = std::make_shared<detail::DeviceCover>(device, *kernel, lowered, args, p);
  made->lists = CoverLists(kernel->choice.plan, lowered.cover, p);
  WorkspaceLayout space;
  const Room<int> room = space.take<int>(made->lists.ints());
  std::byte* const memory =
      means.workspace.empty()
          ? made->take(device, current, space.bytes(), stream).data()
          : checked_workspace(means.workspace, space.bytes(), "Attention::cover_bytes for the call").data();
  made->lists.at = room.in(memory);
  CoverArgs arguments = cover_arguments(made->lists, p, {}, nullptr);
  Launches launches;
  launches.launch(cover_launch(kernel->cover_kernel->kernel, made->lists, arguments));
  std::vector<std::byte> user = user_of(lowered, args, *kernel, p);
  launches.put(stream, user);
  return made;
}

KernelStory forward_story(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  const Current current(call.q.device.index);
  const auto kernel = loaded_kernel(key_of(facts(call.q.device.index), lowered, args_of(lowered, call), call, p, means),
                                    lowered, nullptr, means.purpose);
  return story_of(*kernel);
}

codegen::Variant forward_variant(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  const KernelKey key = key_of(device, lowered, args_of(lowered, call), call, p, means);
  return codegen::variant_of(
      loaded_kernel(key, lowered, static_cast<cu::Stream>(means.stream), means.purpose)->choice.plan);
}

KernelWants forward_wants(const LoweredMod& lowered, const Forward& call, const Problem& p, std::optional<bool> exact) {
  check_outputs(call);
  const KernelKey key = key_of(facts(call.q.device.index), lowered, args_of(lowered, call), call, p, {.exact = exact});
  const codegen::GpuParts parts = codegen::forward_parts(lowered, key.spec);
  const codegen::CallKind kind = codegen::call_kind(parts, key.length);
  return {key.spec, parts.facts, kind, tuned_key(key, kind)};
}

}  // namespace attune::runtime::cuda
