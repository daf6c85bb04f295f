// runtime/engines/cuda/forward.cpp — a forward on a device: its kernel, its memory, its launches
#include <algorithm>
#include <limits>
#include <numeric>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/ceil_div.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/cuda/contract/schedule.cuh"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/cuda/kernels/keys.h"
#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/platform/memory.h"

namespace attune::runtime::cuda {
namespace {

using codegen::ArgsKind, codegen::Tile, compiler::Problem;

/// A row of a tensor that a preceding kernel writes for TMA: 128 bytes.
int chunk_of(DType type) { return codegen::gpu_element(type).chunk(); }
/// Rows of transposed values of a tile, with 128 keys each. In a tile with more keys, the rows of the next 128 keys
/// follow.
int transposed_rows(const Tile& tile) { return ceil_div(tile.n, chunk_of(DType::e4m3)) * tile.dv; }
/// Rows in one part of a tile of split keys that are `width` wide; or of its transposed values.
int split_rows(const Tile& tile, int width) { return tile.n * width / chunk_of(DType::f32); }

/// The largest useful number of parts (split-KV) of a tile of queries: each part has at least `least_keys` keys.
std::int64_t worthwhile_parts(const Problem& p) {
  constexpr std::int64_t least_keys = 64;
  return std::max<std::int64_t>(p.kv.length / least_keys, 1);
}

/// A forward with its kernel. A family of kernels has a function: what it takes of the workspace, then its launches.
class ForwardRun {
 public:
  ForwardRun(const Facts& on, const Call& call_of, const Means& with);
  const LoadedKernel& kernel() const { return *kernel_; }
  /// Lays the call out in this workspace, and enqueues it; without `out` it only returns the bytes that it takes.
  std::size_t run(std::span<std::byte> memory = {}, Launches* out = nullptr);

 private:
  void tiles();
  void decode();
  void mla();

  /// Null if there are no elements.
  template <class T>
  T* take(std::int64_t count) {
    return count > 0 ? space_.take<T>(count) : nullptr;
  }
  /// A tensor in the workspace.
  Tensor take_tensor(DType type, std::initializer_list<std::int64_t> shape) {
    Tensor out(nullptr, type, shape);
    out.data = take<std::byte>(out.size() * static_cast<std::int64_t>(size_of(type)));
    return out;
  }
  Tensor take_split(int width);
  KeyParts take_key_parts(int count);
  float* take_parts(std::int64_t rows, std::int64_t blocks);
  /// Takes the memory that every family of kernels takes last. True if launches follow.
  bool begin();

  int known_parts(std::int64_t tiles, std::int64_t sharers) const;
  template <class Args>
  Args& make_args(const KeyParts& parts = {});
  template <class Args>
  Args& make_decode_args(float* parts, std::int64_t sets, std::int64_t sets_of_group);
  void put_lists(unsigned* next);
  void put(const codegen::Companion& what, void* args) { out_->companion(*kernel_, what, launch_call(0), args); }
  /// Enqueues the kernel and all that was added before it.
  void finish(void* args, const codegen::LaunchCall& launch, bool early, unsigned cluster = 1);

  const codegen::KernelPlan& plan() const { return kernel_->choice.plan; }
  /// The number of blocks of a persistent kernel.
  int most_blocks() const {
    const int most = device_.sms * kernel_->choice.blocks_of_sm;
    return means_.blocks ? std::min(means_.blocks, most) : most;
  }
  codegen::LaunchCall launch_call(std::int64_t blocks, bool shares_tiles = true) const {
    return {.problem = p_, .plan = plan(), .sms = device_.sms, .blocks = blocks, .shares_tiles = shares_tiles};
  }
  Entries entries() const {
    Entries out = entries_of(p_, starts_.q, starts_.kv);
    out.kv_lens = numbers(call_.kv_len);
    out.q_offsets = numbers(call_.q_offsets);
    out.page_table = page_table(call_.page_table, call_.k);
    lists_.put(out);
    return out;
  }

  const Call& of_;
  const Forward& call_;
  const Problem& p_;
  const Means& means_;
  const Facts& device_;
  const cu::Stream stream_;
  Held<LoadedKernel> kernel_;
  QueryTiling tiling_;
  QueryTiles tiles_;
  Starts starts_;
  CoverLists lists_{};
  bool writes_lists_ = false;
  int split_steps_ = 0, splits_ = 0;  ///< as in Further
  std::byte* own_ = nullptr;          ///< workspace of a kernel that has its own struct
  Workspace space_;
  Launches* out_ = nullptr;
};

ForwardRun::ForwardRun(const Facts& on, const Call& call_of, const Means& with)
    : of_(call_of), call_(of_.forward()), p_(of_.problem), means_(with), device_(on),
      stream_(static_cast<cu::Stream>(with.stream)),
      kernel_(loaded_kernel(forward_key(on, of_, with), of_.mod, stream_, of_.purpose)),
      tiling_{.queries = plan().tile.queries(),
              .heads = plan().tile.heads,
              .persistent = plan().kernel->persistent && !codegen::cuts_keys(*plan().kernel)},
      tiles_(tiling_, p_) {
  if (call_.fixed_split_size != 0 && !codegen::cuts_keys(*plan().kernel))
    throw Error("engine-call", "the CUDA engine does not support fixed_split_size in this call", {},
                !kernel_->story.empty()
                    ? fmt::format("{}", fmt::join(kernel_->story, "; "))
                    : "it needs a decode call: at most 16 rows (queries times the heads that share keys)",
                "give each call fewer queries, leave fixed_split_size out, or compute on the host");
  if (means_.cover) {
    require_fit(*means_.cover, device_, *kernel_, of_.mod, of_.args, p_);
    lists_ = means_.cover->lists;
  } else if (kernel_->writes_lists()) {
    lists_ = CoverLists(plan(), of_.mod.cover, p_);
    writes_lists_ = lists_.ints() > 0;
  }
}

std::size_t ForwardRun::run(std::span<std::byte> memory, Launches* out) {
  space_ = Workspace(memory);
  out_ = out;
  if (p_.q.packed())
    starts_ = starts_of(space_, out, stream_, p_, tiles_, tiling_.queries, kernel_->skips, call_.cu_seqlens_q,
                        call_.cu_seqlens_kv);
  switch (plan().kernel->args) {
    case ArgsKind::forward: tiles(); break;
    case ArgsKind::decode: decode(); break;
    case ArgsKind::mla: mla(); break;
    case ArgsKind::backward: throw Bug("a forward has the kernel of a backward");
  }
  return space_.used();
}

bool ForwardRun::begin() {
  if (writes_lists_) lists_.at = take<int>(lists_.ints());
  if (const codegen::OwnArgs* const its = plan().kernel->own; its && its->workspace)
    own_ = take<std::byte>(its->workspace(launch_call(0)));
  if (out_) kernel_->used_on(stream_);
  return out_ != nullptr;
}

template <class Args>
Args& ForwardRun::make_args(const KeyParts& parts) {
  Args* args = nullptr;
  if (plan().further()) {
    auto& all = out_->make<InParts<Args>>();
    all.split_steps = split_steps_;
    all.splits = splits_;
    all.parts = parts;
    if (call_.o_before.given()) {
      all.o_before = strided(call_.o_before, p_.q.layout);
      all.lse_before = rows(call_.lse_before, p_.q.layout);
      all.o_before_type = stored(call_.o_before.dtype);
    }
    args = &all;
  } else {
    args = &out_->make<Args>(plan().kernel->own ? plan().kernel->own->bytes : sizeof(Args));
  }
  set_entries(*args, entries());
  args->q = strided(call_.q, p_.q.layout);
  args->k = strided(call_.k, p_.kv.layout);
  args->v = strided(call_.v, p_.kv.layout);
  args->o = strided(call_.o, p_.q.layout);
  args->lse = rows(call_.lse, p_.q.layout);
  args->max = rows(call_.max, p_.q.layout);
  return *args;
}

void ForwardRun::put_lists(unsigned* next) {
  if (writes_lists_) put_cover(*out_, *kernel_, lists_, entries(), next);
}

void ForwardRun::finish(void* args, const codegen::LaunchCall& launch, bool early, unsigned cluster) {
  if (plan().kernel->own) plan().kernel->own->fill(args, launch, own_);
  out_->before(*kernel_, launch, args);
  out_->kernel(*kernel_, launch, args, early, cluster);
  out_->after(*kernel_, launch, args);
  std::vector<std::byte> user = user_of(of_, *kernel_);
  out_->put(stream_, user);
}

// ---- a block for a tile of queries, or persistent blocks: ForwardArgs

Tensor ForwardRun::take_split(int width) {
  const Tile& tile = plan().tile;
  const std::int64_t rows = codegen::transposed_tiles(p_, plan()) * tile.parts * split_rows(tile, width);
  return take_tensor(DType::f32, {codegen::transposed_batch(p_), p_.kv_heads, rows, chunk_of(DType::f32)});
}

KeyParts ForwardRun::take_key_parts(int count) {
  constexpr int sums_of_row = 2, rests_of_row = 2;
  const std::int64_t rows = codegen::all_rows(p_), of_sums = count * rows * p_.dv;
  auto* const o = take<float>(rows * (count * (p_.dv + sums_of_row) + rests_of_row));
  return {.count = count,
          .positions = static_cast<int>(p_.q.packed() ? p_.q.total : p_.q.length),
          .rows = rows,
          .o = o,
          .sums = o ? o + of_sums : nullptr,
          .rests = o ? o + of_sums + count * rows * sums_of_row : nullptr,
          .o_type = stored(call_.o.dtype)};
}

void ForwardRun::tiles() {
  const Tile& tile = plan().tile;
  const codegen::KernelDescriptor& kernel = *plan().kernel;
  KeyParts parts{};
  parts.count = 1;
  if (tile.in_parts) {
    const Problem& whole = of_.whole ? *of_.whole : p_;
    parts = take_key_parts(
        codegen::parts_of_keys(QueryTiles(tiling_, whole).count, most_blocks(), ceil_div(whole.kv.length, tile.n)));
  }
  // Of persistent kernels, an item is some of a tile's keys.
  const std::int64_t items = tiles_.count * parts.count,
                     blocks = kernel.persistent ? std::min<std::int64_t>(items, most_blocks()) : tiles_.count;
  if (blocks > std::numeric_limits<int>::max())
    throw Error(
        "too-long", "the call has too many tiles of queries for one launch", {},
        fmt::format("there are {} of {} queries each, and a grid has fewer than 2^31 blocks", blocks, tiling_.queries),
        "split the call");
  unsigned* const next = take<unsigned>(items > most_blocks() && kernel_->choice.counts_tiles ? 1 : 0);
  // As the kernel reads them: where a kernel before it prepares them, from the workspace.
  Tensor k = call_.k, v = call_.v;
  const bool splits = tile.parts > 0, transposes = tile.transposed && !splits;
  if (splits) {
    k = take_split(tile.d);
    v = take_split(tile.dv);
  } else if (tile.gathered) {
    for (Tensor* one : {&k, &v}) *one = take_tensor(one->dtype, {p_.batch, p_.kv_heads, p_.kv.length, one->shape[3]});
  } else if (tile.transposed) {
    const std::int64_t rows = codegen::transposed_tiles(p_, plan()) * transposed_rows(tile);
    v = take_tensor(DType::e4m3, {codegen::transposed_batch(p_), p_.kv_heads, rows, chunk_of(DType::e4m3)});
  }
  if (!begin()) return;

  if (next && !writes_lists_) out_->clear(next);
  auto& args = make_args<ForwardArgs>(parts);
  if (splits) {
    auto& split = out_->make<SplitArgs>();
    set_entries(split, args);
    split.k = args.k;
    split.v = args.v;
    split.k_to = static_cast<float*>(k.data);
    split.v_to = static_cast<float*>(v.data);
    split.heads = static_cast<int>(p_.kv_heads);
    split.tiles = static_cast<int>(codegen::transposed_tiles(p_, plan()));
    split.d = static_cast<int>(p_.d);
    split.dv = static_cast<int>(p_.dv);
    put(codegen::split_keys, &split);
  }
  if (transposes) {
    auto& transpose = out_->make<TransposeArgs>();
    transpose = {.from = boxes_of(call_.v, tile.n),
                 .to = boxes_of(v, tile.dv > chunk_of(DType::e4m3) ? transposed_box_rows : transposed_rows(tile)),
                 .heads = static_cast<int>(p_.kv_heads),
                 .tiles = static_cast<int>(codegen::transposed_tiles(p_, plan())),
                 .batch = static_cast<int>(p_.batch),
                 .starts = starts_.kv};
    put(codegen::transpose_v, &transpose);
  }
  put_lists(next);
  if (tile.gathered) {
    const auto units = [](const Tensor& t) {
      return static_cast<int>(t.shape[3] * static_cast<std::int64_t>(size_of(t.dtype)) / 16);
    };
    auto& gather = out_->make<GatherArgs>();
    set_entries(gather, args);
    gather.k = args.k;
    gather.v = args.v;
    gather.k_to = k.data;
    gather.v_to = v.data;
    gather.element = static_cast<int>(size_of(k.dtype));
    gather.k_units = units(k);
    gather.v_units = units(v);
    put(codegen::gather_pages, &gather);
    args.k = strided(k, p_.kv.layout);
    args.v = strided(v, p_.kv.layout);
    args.page_table = {};
  }
  if (const auto& boxes = kernel_->choice.boxes) {
    args.q_map = query_boxes(call_.q, boxes->q, tile.heads, p_.group);
    args.o_map = query_boxes(call_.o, boxes->o, tile.heads, p_.group);
    args.k_map = boxes_of(k, splits ? split_rows(tile, tile.d) : boxes->k);
    args.v_map = boxes_of(v, splits ? split_rows(tile, tile.dv) : transposes ? transposed_rows(tile) : boxes->v);
  }
  args.q_heads = static_cast<int>(p_.q_heads);
  args.d = static_cast<int>(p_.d);
  args.dv = static_cast<int>(p_.dv);
  args.order = starts_.order;
  args.order_count = static_cast<int>(tiles_.order);
  args.section = section_of(tiles_, p_, device_.l2_bytes, static_cast<std::int64_t>(size_of(call_.k.dtype)));
  args.next = next;
  finish(&args, launch_call(blocks), (writes_lists_ || transposes || splits || tile.gathered) && kernel.waits);
}

// ---- split-KV, whose blocks share the keys of a tile of queries: DecodeArgs, MlaArgs

/// The number of equal parts into which the blocks cut each of these tiles of queries; 0 if only the device knows it.
/// Tiles with one part need no counters and no merge.
int ForwardRun::known_parts(std::int64_t tiles, std::int64_t sharers) const {
  if (kernel_->skips || p_.q.packed() || p_.kv.packed() || call_.kv_len.given() || plan().spec.fixed_split) return 0;
  return equal_parts(static_cast<int>(tiles), static_cast<int>(sharers),
                     static_cast<int>(ceil_div(p_.kv.length, plan().tile.n)), 1);
}

/// Takes workspace for the partial results of tiles that blocks share; a tile has `rows` rows.
float* ForwardRun::take_parts(std::int64_t rows, std::int64_t blocks) {
  const Tile& tile = plan().tile;
  std::int64_t parts = 2 * blocks;
  if (plan().spec.fixed_split) {
    // All warps have the same number of iterations in a split, so that no iteration of a warp is in two splits. If one
    // split has all keys, the size of a split does not matter.
    const std::int64_t warps = tile.warps, steps = ceil_div(p_.kv.length, tile.n),
                       least = call_.fixed_split_size / tile.n,
                       whole = round_up(std::max<std::int64_t>(steps, 1), warps);
    split_steps_ = static_cast<int>(std::min(std::lcm(std::min(least, whole * warps), warps), whole));
    splits_ = static_cast<int>(ceil_div(steps, split_steps_));
    parts = splits_ > 1 ? p_.batch * tiles_.sets * splits_ : 0;
  }
  return take<float>(parts * rows * (tile.dv + part_floats));
}

template <class Args>
Args& ForwardRun::make_decode_args(float* parts, std::int64_t sets, std::int64_t sets_of_group) {
  auto& args = make_args<Args>();
  args.sets = static_cast<int>(sets);
  args.sets_of_group = static_cast<int>(sets_of_group);
  args.parts = parts;
  return args;
}

void ForwardRun::decode() {
  const Tile& tile = plan().tile;
  const std::int64_t tiles = p_.batch * tiles_.sets,
                     blocks = std::min<std::int64_t>(tiles_.count * worthwhile_parts(p_), most_blocks()),
                     counters = plan().spec.fixed_split ? tiles : blocks;
  float* const parts = take_parts(p_.q.length * tile.heads, blocks);
  auto* const arrivals = take<unsigned>(counters);
  if (!begin()) return;

  const bool clears = kernel_->has(codegen::clear_arrivals);
  const int known = known_parts(tiles, blocks);
  // Two blocks that share a tile are a cluster.
  const bool clusters = clears && known == 2 && tile.clusters && tile.warps >= cluster_warps,
             shares = known != 1 && !clusters;
  auto& args = make_decode_args<DecodeArgs>(parts, tiles_.sets, tiles_.group_sets);
  args.arrivals = arrivals;
  args.paired = clusters;
  put_lists(nullptr);
  if (!clears) {
    out_->clear(arrivals, static_cast<std::size_t>(counters));
  } else if (shares) {
    auto& clear = out_->make<ClearArgs>();
    clear = {arrivals, static_cast<int>(counters)};
    put(codegen::clear_arrivals, &clear);
  }
  finish(&args, launch_call(clusters ? 2 * tiles : blocks, shares), clears, clusters ? 2 : 1);
}

void ForwardRun::mla() {
  const std::int64_t cluster = plan().tile.cluster;
  // A set is as many tiles of the head's queries as a cluster has blocks.
  const std::int64_t of_group = ceil_div(tiles_.group_sets * ceil_div(p_.q.length, tiling_.queries), cluster),
                     sets = p_.kv_heads * of_group;
  const std::int64_t clusters = std::min<std::int64_t>(p_.batch * sets * worthwhile_parts(p_),
                                                       std::max<std::int64_t>(most_blocks() / cluster, 1));
  float* const parts = take_parts(plan().tile.m, clusters * cluster);
  auto* const cut = take<CutTile>(clusters);
  if (!begin()) return;

  const codegen::BoxRows& boxes = *kernel_->choice.boxes;
  auto& args = make_decode_args<MlaArgs>(parts, sets, of_group);
  args.q_map = query_boxes(call_.q, boxes.q, plan().tile.heads, p_.group);
  args.k_map = boxes_of(call_.k, boxes.k);
  args.cut = cut;
  args.cuts = static_cast<int>(clusters);
  finish(&args, launch_call(clusters * cluster, known_parts(p_.batch * sets, clusters) != 1), true);
}

}  // namespace

std::size_t forward_workspace(const Call& call, const Means& means) {
  check_outputs(call.forward());
  if (is_empty(call.problem)) return 0;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  return ForwardRun(device, call, means).run();
}

void forward(const Call& call, const Means& means) {
  check_outputs(call.forward());
  if (is_empty(call.problem)) return;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  ForwardRun run(device, call, means);
  const std::size_t bytes = run.run();
  if (means.used)
    *means.used = {target_name(device.arch()), codegen::variant_of(run.kernel().choice.plan).text(), bytes};
  const Pooled own(device, means.workspace.empty() ? bytes : 0, static_cast<cu::Stream>(means.stream));
  Launches launches;
  run.run(means.workspace.empty() ? own.bytes() : checked_workspace(means.workspace, bytes), &launches);
}

}  // namespace attune::runtime::cuda
