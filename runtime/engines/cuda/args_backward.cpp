// runtime/engines/cuda/args_backward.cpp — the arguments of backward kernels: BackwardArgs
#include <algorithm>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/cuda/layout/section.cuh"
#include "runtime/engines/cuda/backward.h"
#include "runtime/engines/cuda/maps.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/cuda/order.h"

namespace attune::runtime::cuda {
namespace {

Gradient gradient(const Tensor& t, compiler::Layout layout) {
  return t.given() ? Gradient{strided(t, layout), stored(t.dtype)} : Gradient{};
}

/// The tensor of f16 that a split tensor is written to; memory may be null, as in WorkspaceLayout.
Tensor split_tensor(const SplitRows& of, std::int64_t columns) {
  return {of.to, DType::f16, {of.batch, of.heads, of.length, columns}};
}
Strided factors_of(const SplitRows& of) {
  return {.data = of.factors, .batch = std::int64_t{of.heads} * of.lines, .head = of.lines, .position = 1};
}

std::int64_t element_bytes(const Backward& call) { return static_cast<std::int64_t>(size_of(call.q.dtype)); }

/// The number of key heads whose queries together fill half of the L2 cache.
int keys_section(const Backward& call, const compiler::Problem& p, std::int64_t sets, std::int64_t cache_bytes) {
  const std::int64_t queries = p.q.packed() ? p.q.total : p.q.length;
  const std::int64_t head = std::max<std::int64_t>(queries * p.group * (p.d + p.dv) * element_bytes(call), 1);
  return static_cast<int>(std::clamp<std::int64_t>(cache_bytes / 2 / head, 1, std::max<std::int64_t>(sets, 1)));
}

[[noreturn]] void refuse_tiles(std::int64_t count, const char* limit) {
  throw Error("too-long", "the call has too many tiles for one launch", {},
              fmt::format("they are {}, and {}", count, limit), "split the call");
}

}  // namespace

void BackwardRun::put_maps(BackwardArgs& args, const BackwardWalk& of) const {
  const auto& boxes = of.kernel->choice.boxes;
  if (!boxes) return;
  if (!splits(of)) {
    args.q_map = boxes_of(call_.q, boxes->q);
    args.k_map = boxes_of(call_.k, boxes->k);
    args.v_map = boxes_of(call_.v, boxes->v);
    args.grad_o_map = boxes_of(call_.grad_o, boxes->o);
    return;
  }
  const codegen::Tile& tile = of.plan().tile;
  const SplitRowsArgs& split = split_rows_;
  args.q_map = boxes_of(split_tensor(split.q, tile.parts * tile.d), boxes->q);
  args.k_map = boxes_of(split_tensor(split.k, tile.parts * tile.d), boxes->k);
  args.v_map = boxes_of(split_tensor(split.v, tile.parts * tile.dv), boxes->v);
  args.grad_o_map = boxes_of(split_tensor(split.grad_o, tile.parts * tile.dv), boxes->o);
  args.q = factors_of(split.q);
  args.k = factors_of(split.k);
  args.v = factors_of(split.v);
  args.grad_o = factors_of(split.grad_o);
}

void BackwardRun::take_split() {
  if (!splits(queries_) && !splits(keys_)) return;
  const codegen::Tile& tile = (splits(queries_) ? queries_ : keys_).plan().tile;
  const SplitRowsArgs split = split_args(nullptr);
  const auto take = [&](std::size_t nth, const SplitRows& of, int columns) {
    const std::int64_t sets = std::int64_t{of.batch} * of.heads;
    split_[nth] = space_.take<unsigned short>(sets * of.length * tile.parts * columns);
    factors_[nth] = space_.take<float>(sets * of.lines);
  };
  take(0, split.q, tile.d);
  take(1, split.k, tile.d);
  take(2, split.v, tile.dv);
  take(3, split.grad_o, tile.dv);
}

SplitRowsArgs BackwardRun::split_args(std::byte* memory) const {
  const auto rows = [&](std::size_t nth, const Tensor& t, const compiler::Positions& of, std::int64_t batch) {
    const std::int64_t heads = nth == 1 || nth == 2 ? p_.kv_heads : p_.q_heads;
    return SplitRows{.from = strided(t, of.layout),
                     .to = split_[nth].in(memory),
                     .factors = factors_[nth].in(memory),
                     .batch = static_cast<int>(batch),
                     .heads = static_cast<int>(heads),
                     .length = static_cast<int>(of.length),
                     .width = static_cast<int>(nth < 2 ? p_.d : p_.dv),
                     .lines = static_cast<int>(round_up(of.length, std::int64_t{split_lines}))};
  };
  const std::int64_t kv_batch = p_.kv_shared ? 1 : p_.batch;
  return {.q = rows(0, call_.q, p_.q, p_.batch),
          .k = rows(1, call_.k, p_.kv, kv_batch),
          .v = rows(2, call_.v, p_.kv, kv_batch),
          .grad_o = rows(3, call_.grad_o, p_.q, p_.batch),
          .non_finite = counters_.in(memory)};
}

Tensor rows_of(const Backward& call, const compiler::Problem& p, void* at) {
  if (p.q.packed()) return {at, DType::f32, {p.q_heads, p.q.total}, {}, call.q.device};
  return {at, DType::f32, {p.batch, p.q_heads, p.q.length}, {}, call.q.device};
}

std::int64_t BackwardRun::places(const compiler::Positions& of, int positions) const {
  return of.packed() ? packed_places(of.total, p_.batch, positions) : ceil_div(of.length, positions);
}

std::int64_t BackwardRun::diagonals() const {
  if (!whole_.kernel->has(codegen::spread_diagonals)) return 0;
  const codegen::Tile& tile = whole_.plan().tile;
  return sets_of_q() * kv_places() * (round_up(p_.q.length, tile.m) + tile.n);
}

BackwardArgs BackwardRun::args_of_call(std::byte* memory, const Starts& starts) const {
  BackwardArgs args{};
  static_cast<Entries&>(args) = entries_of(p_, starts.q, starts.kv);
  args.q = strided(call_.q, p_.q.layout);
  args.k = strided(call_.k, p_.kv.layout);
  args.v = strided(call_.v, p_.kv.layout);
  const Forward first = call_.o.given() ? Forward{.o = call_.o, .lse = call_.lse} : forward_call(memory);
  args.o = strided(first.o, p_.q.layout);
  args.grad_o = strided(call_.grad_o, p_.q.layout);
  args.lse = cuda::rows(first.lse, p_.q.layout);
  args.grad_lse = cuda::rows(call_.grad_lse, p_.q.layout);
  args.delta = cuda::rows(rows_of(call_, p_, delta_.in(memory)), p_.q.layout);
  args.grad_q = gradient(call_.dq, p_.q.layout);
  args.grad_k = gradient(call_.dk, p_.kv.layout);
  args.grad_v = gradient(call_.dv, p_.kv.layout);
  args.scale = static_cast<float>(p_.scale);
  args.q_heads = static_cast<int>(p_.q_heads);
  args.kv_heads = static_cast<int>(p_.kv_heads);
  args.d = static_cast<int>(p_.d);
  args.dv = static_cast<int>(p_.dv);
  args.non_finite = counters_.in(memory);
  return args;
}

void BackwardRun::fill_whole(BackwardArgs& args, std::byte* memory) const {
  const codegen::Tile& tile = whole_.plan().tile;
  const std::int64_t most = std::max(q_tiles(), sets_of_kv() * kv_places());
  if (most > std::numeric_limits<int>::max()) refuse_tiles(most, "there may be fewer than 2^31");
  unsigned* const counters = counters_.in(memory);
  put_maps(args, whole_);
  args.sums = added_.in(memory);
  args.next = counters + next_item;
  args.visited = counters + visits;
  args.added = counters + added_tiles;
  // Without a mask, every tile of queries visits all tiles of keys.
  const bool all = !whole_.kernel->skips && !p_.q.packed() && !p_.kv.packed() && !stores_ds();
  args.complete_at = all && whole_.plan().variant.of("ordered") != 0 ? static_cast<unsigned>(kv_places()) : 0;
  args.q_places = static_cast<int>(q_places());
  args.kv_places = static_cast<int>(kv_places() - first_tile());
  // Several heads are visited on the way back: a tile of dq then has two steps to pass on, as a tile of 64 queries.
  const bool two_steps = tile.returns && p_.group > 1;
  // Twice the sets halve the time in which the first items of a set wait for one another: 2 to 7 % of a call of 80
  // queries and up to 112 columns. At 128 columns a section then takes 34 MB of the L2 cache: without a mask it gained
  // 1 to 4 % at 8192 positions, nothing at 4096 and 16384, and lost 2 % at 2048; under a causal mask it lost up to 4 %.
  // With shared keys it takes several times as much, and a third of the rate was lost.
  const bool fits = tile.d < 128 || (!whole_.kernel->skips && p_.kv.length > 4096);
  const std::int64_t times = tile.m == 80 && fits && p_.group == 1 ? 2 : 1,
                     apart = times * items_apart(two_steps ? 64 : tile.m, whole_.kernel->skips),
                     tiles = stores_ds() ? dense_.tiles : ceil_div(p_.kv.length, tile.n);
  args.section = static_cast<int>(std::max<std::int64_t>(1, apart / std::max<std::int64_t>(1, tiles)));
}

Walk BackwardRun::walk_of(const BackwardWalk& of, std::int64_t blocks) const {
  if (blocks > std::numeric_limits<int>::max()) refuse_tiles(blocks, "a grid has fewer than 2^31 blocks");
  return {.kernel = *of.kernel,
          .call = {.problem = p_, .plan = of.plan(), .sms = device_.sms, .blocks = blocks},
          .gives_dq = call_.dq.given()};
}

Walk BackwardRun::walk_whole() const {
  const std::int64_t most = means_.blocks ? std::min(means_.blocks, device_.sms) : device_.sms;
  Walk walk = walk_of(whole_, std::min(sets_of_kv() * (kv_places() - first_tile()), most));
  walk.early = true;
  return walk;
}

Walk BackwardRun::walk_queries() {
  const QueryTiles tiles({.queries = queries_.plan().tile.m}, p_);
  BackwardArgs& args = queries_.arguments = whole_.arguments;
  args.section = section_of(tiles, p_, device_.l2_bytes, element_bytes(call_));
  put_maps(args, queries_);
  return walk_of(queries_, tiles.count);
}

Walk BackwardRun::walk_keys() {
  const std::int64_t sets = p_.kv_heads * (p_.kv_shared ? 1 : p_.batch);
  BackwardArgs& args = keys_.arguments = whole_.arguments;
  args.section = keys_section(call_, p_, sets, static_cast<std::int64_t>(device_.l2_bytes));
  put_maps(args, keys_);
  return walk_of(keys_, sets * ceil_div(p_.kv.length, keys_.plan().tile.n));
}

SumsArgs sums_args(const Captured& one, std::byte* memory) {
  const Tensor& to = *one.into;
  SumsArgs out{.sums = one.sums.in(memory),
               .to = to.data,
               .type = stored(to.dtype),
               .count = to.size(),
               .extent = {1, 1, 1, 1},
               .stride = {}};
  for (int d = 0; d < to.rank; ++d) {
    const int last = SumsArgs::most_rank - to.rank + d;
    out.extent[last] = to.shape[static_cast<std::size_t>(d)];
    out.stride[last] = to.strides[static_cast<std::size_t>(d)];
  }
  return out;
}

}  // namespace attune::runtime::cuda
