// runtime/engines/cuda/call.cpp — a forward on a device: its kernel, its memory, its launches
#include "runtime/engines/cuda/call.h"

#include <numeric>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/ceil_div.h"
#include "codegen/cuda/layout/equal_parts.cuh"
#include "runtime/engines/cuda/consider.h"
#include "runtime/engines/cuda/keys.h"
#include "runtime/engines/cuda/memory.h"

namespace attune::runtime::cuda {
namespace {

using codegen::ArgsKind, compiler::Problem;

QueryTiling tiling_of(const codegen::KernelPlan& plan) {
  return {.queries = plan.tile.queries(),
          .heads = plan.tile.heads,
          .persistent = plan.kernel->persistent && !codegen::cuts_keys(*plan.kernel)};
}

/// Only split-KV kernels take a fixed split size.
[[noreturn]] void refuse_piece(const LoadedKernel& kernel) {
  throw Error("engine-call", "the CUDA engine does not support fixed_split_size in this call", {},
              !kernel.story.empty()
                  ? fmt::format("{}", fmt::join(kernel.story, "; "))
                  : "it needs a decode call: at most 16 rows (queries times the heads that share keys)",
              "give each call fewer queries, leave fixed_split_size out, or compute on the host");
}

/// All warps have the same number of iterations in a split, so that no iteration of a warp is in two splits.
void plan_splits(ForwardRun& run) {
  const codegen::Tile& tile = run.plan().tile;
  const std::int64_t warps = tile.warps, steps = ceil_div(run.p.kv.length, tile.n),
                     least = run.call.fixed_split_size / tile.n,
                     whole = round_up(std::max<std::int64_t>(steps, 1), warps);
  // If one split has all keys, the size of a split does not matter.
  run.split_steps = static_cast<int>(std::min(std::lcm(std::min(least, whole * warps), warps), whole));
  run.splits = static_cast<int>(ceil_div(steps, run.split_steps));
}

void take(ForwardRun& run) {
  switch (run.plan().kernel->args) {
    case ArgsKind::forward: return take_forward(run);
    case ArgsKind::decode: return take_decode(run);
    case ArgsKind::mla: return take_mla(run);
    case ArgsKind::backward: break;
  }
  throw Bug("a forward has the kernel of a backward");
}

}  // namespace

ForwardRun::ForwardRun(const Facts& on, const Call& call_of, const Means& with)
    : of(call_of), call(of.forward()), p(of.problem), means(with), device(on),
      kernel(loaded_kernel(forward_key(on, of, with), of.mod, static_cast<cu::Stream>(with.stream), of.purpose)),
      tiling(tiling_of(plan())), tiles(tiling, p), starts(space, p, tiles) {
  if (call.fixed_split_size != 0 && !codegen::cuts_keys(*plan().kernel)) refuse_piece(*kernel);
  if (means.cover) require_fit(*means.cover, device, *kernel, of.mod, of.args, p);
  take(*this);
  if (means.cover) {
    lists = means.cover->lists;
  } else if (kernel->writes_lists()) {
    lists = CoverLists(plan(), of.mod.cover, p);
    own_lists = space.take<int>(lists.ints());
  }
  if (const codegen::OwnArgs* const its = plan().kernel->own; its && its->workspace)
    own = space.take<std::byte>(its->workspace(walk_of(0).call));
}

void ForwardRun::put(std::byte* memory) {
  const auto stream = static_cast<cu::Stream>(means.stream);
  starts.require_no_capture(stream);
  kernel->used_on(stream);
  Launches launches;
  const Placed at{memory,
                  starts.send(launches, memory, p, tiling, kernel->skips, call.cu_seqlens_q, call.cu_seqlens_kv)};
  if (own_lists.count > 0) lists.at = own_lists.in(memory);
  switch (plan().kernel->args) {
    case ArgsKind::decode: return put_decode(*this, launches, at);
    case ArgsKind::mla: return put_mla(*this, launches, at);
    default: return put_forward(*this, launches, at);
  }
}

int known_parts(const ForwardRun& run, std::int64_t tiles, std::int64_t sharers) {
  const Problem& p = run.p;
  if (run.kernel->skips || p.q.packed() || p.kv.packed() || run.call.kv_len.given() || run.plan().spec.fixed_split)
    return 0;
  return equal_parts(static_cast<int>(tiles), static_cast<int>(sharers),
                     static_cast<int>(ceil_div(p.kv.length, run.plan().tile.n)), 1);
}

void take_parts(ForwardRun& run, std::int64_t rows, std::int64_t blocks) {
  const codegen::KernelPlan& plan = run.plan();
  if (plan.spec.fixed_split) plan_splits(run);
  const std::int64_t tiles = run.p.batch * run.tiles.sets, parts = !plan.spec.fixed_split ? 2 * blocks
                                                                   : run.splits > 1       ? tiles * run.splits
                                                                                          : 0;
  run.parts = run.space.take<float>(parts * rows * (plan.tile.dv + part_floats));
}

void check_outputs(const Forward& call) {
  require_writable("o", call.o);
  require_f32_rows("lse", call.lse);
  require_f32_rows("max", call.max);
  if (call.o_before.given() && call.o_before.dtype == DType::f64)
    throw Error("engine-type", "the CUDA engine does not read o_before as f64", {}, "it computes in f32",
                "give it elements of f32");
  require_f32_rows("lse_before", call.lse_before);
}

std::size_t forward_workspace(const Call& call, const Means& means) {
  check_outputs(call.forward());
  if (is_empty(call.problem)) return 0;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  return ForwardRun(device, call, means).bytes();
}

void forward(const Call& call, const Means& means) {
  check_outputs(call.forward());
  if (is_empty(call.problem)) return;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  ForwardRun run(device, call, means);
  const std::size_t bytes = run.bytes();
  if (means.used)
    *means.used = {target_name(device.arch()), codegen::variant_of(run.kernel->choice.plan).text(), bytes};
  if (!means.workspace.empty()) return run.put(checked_workspace(means.workspace, bytes).data());
  const Pooled own(device, bytes, static_cast<cu::Stream>(means.stream));
  run.put(own.bytes().data());
}

}  // namespace attune::runtime::cuda
