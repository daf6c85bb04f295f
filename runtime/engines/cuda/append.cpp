// runtime/engines/cuda/append.cpp — appends new keys and values to a cache on a device: one launch
#include <algorithm>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/cuda/contract/args.cuh"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels.h"
#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/operands.h"

namespace attune::runtime::cuda {
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
