// runtime/engines/cuda/engine.cpp — tile lists that calls share, the kernels that forwards have, and new keys appended
// to a cache
#include "runtime/engines/cuda/engine.h"

#include <algorithm>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/cuda/contract/args.cuh"
#include "runtime/engines/cuda/kernels/kernels.h"
#include "runtime/engines/cuda/kernels/keys.h"
#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/platform/memory.h"

namespace attune::runtime::cuda {

using compiler::Problem;

std::size_t cover_bytes(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Problem& p = call.problem;
  if (is_empty(p) || p.q.packed()) return 0;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto kernel = loaded_kernel(forward_key(device, call, means), call.mod, nullptr, call.purpose);
  if (!kernel->writes_lists()) return 0;
  Workspace space;
  space.take<int>(CoverLists(kernel->choice.plan, call.mod.cover, p).ints());
  return space.used();
}

std::shared_ptr<const detail::DeviceCover> cover(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Problem& p = call.problem;
  // The starts of packed sequences come with each call, and their lists with them.
  if (is_empty(p) || p.q.packed()) return nullptr;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  const auto kernel = loaded_kernel(forward_key(device, call, means), call.mod, stream, call.purpose);
  if (!kernel->writes_lists()) return nullptr;
  auto made = std::make_shared<detail::DeviceCover>(device, *kernel, call.mod, call.args, p);
  made->lists = CoverLists(kernel->choice.plan, call.mod.cover, p);
  const std::size_t bytes = cover_bytes(call, means);
  made->lists.at = reinterpret_cast<int*>(
      (means.workspace.empty() ? made->take(device, current, bytes, stream)
                               : checked_workspace(means.workspace, bytes, "Attention::cover_bytes for the call"))
          .data());
  kernel->used_on(stream);
  Launches launches;
  put_cover(launches, *kernel, made->lists, entries_of(p, nullptr, nullptr), nullptr);
  std::vector<std::byte> user = user_of(call, *kernel);
  launches.put(stream, user);
  return made;
}

std::vector<KernelStory> forward_story(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  return {story_of(*loaded_kernel(forward_key(device, call, means), call.mod, nullptr, call.purpose))};
}

codegen::Variant forward_variant(const Call& call, const Means& means) {
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  return codegen::variant_of(
      loaded_kernel(forward_key(device, call, means), call.mod, stream, call.purpose)->choice.plan);
}

namespace {

using compiler::Layout, compiler::Problem;

Appended appended(const Tensor& from, const Tensor& into, const Problem& p, std::int64_t width, double scale) {
  const auto has_rows = [](const Tensor& t) { return t.strides[static_cast<std::size_t>(t.rank) - 1] == 1; };
  // The same condition as on the host, so that bits are the same.
  const bool as_they_are = from.dtype == into.dtype && scale == 1 && has_rows(from) && has_rows(into);
  const int size = static_cast<int>(size_of(into.dtype)), wide = std::min(stored_bytes(from), stored_bytes(into));
  return {.from = strided(from, p.q.layout),
          .into = strided(into, p.kv.layout),
          .from_type = stored(from.dtype),
          .into_type = stored(into.dtype),
          .width = static_cast<int>(width),
          .copy_bytes = as_they_are ? std::max(wide, size) : 0,
          .scale = scale};
}

Slots slots(const Tensor& t, const Tensor& pool) {
  if (!t.given()) return {};
  return {.at = t.data,
          .stride = t.strides[0],
          .wide = t.dtype == DType::i64,
          .rows = pool.shape[2],
          .pages = pool.shape[0]};
}

}  // namespace

void append(const Append& call, const Problem& p, void* stream) {
  const bool by_slot = call.slots.given();
  const std::int64_t rows = p.q.packed() ? p.q.total : p.batch * p.q.length;
  if (rows == 0 || p.kv_heads == 0) return;
  if (rows > std::numeric_limits<int>::max())
    throw Error("too-long", "the call has too many new rows for one launch", {},
                fmt::format("there are {}, and a grid has fewer than 2^31 blocks", rows), "split the call");
  const Facts& device = facts(call.k_new.device.index);
  const Current current(device.index);
  const auto on = static_cast<cu::Stream>(stream);
  const auto kernel = loaded_plain(device.index, codegen::append_rows.name, {.arch = device.arch()}, on);
  AppendArgs args{.k = appended(call.k_new, call.k, p, p.d, call.k_scale),
                  .v = appended(call.v_new, call.v, p, p.dv, call.v_scale),
                  .batch = static_cast<int>(p.batch),
                  .heads = static_cast<int>(p.kv_heads),
                  .new_rows = static_cast<int>(p.q.length),
                  .capacity = static_cast<int>(p.kv.length),
                  .starts = p.q.packed() && !by_slot ? static_cast<const int*>(call.cu_seqlens.data) : nullptr,
                  .kv_lens = numbers(call.kv_len),
                  .page_table = page_table(call.page_table, call.k),
                  .slots = slots(call.slots, call.k)};
  Launches launches;
  launches.launch({.kernel = kernel.get(),
                   .grid = {static_cast<unsigned>(rows), 1, 1},
                   .threads = append_threads,
                   .arguments = &args});
  launches.put(on, {});
}

}  // namespace attune::runtime::cuda
