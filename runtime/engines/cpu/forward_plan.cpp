// runtime/engines/cpu/forward_plan.cpp — the tiling, the packed operands and the workspace of a forward
#include "runtime/engines/cpu/forward_plan.h"

#include <algorithm>

namespace attune::runtime::cpu {
namespace {

using compiler::Problem;

/// `alone`: true if an entry's results must not depend on other entries. Otherwise the shapes decide the tile size, so
/// that results do not depend on the number of threads. Wide tiles read keys and values less often: 256 rows were 2 to
/// 10 % faster than 64 when there were enough tasks. Narrow tiles make more tasks.
Cut cut_for(const codegen::Tiling& t, const Problem& problem, bool alone) {
  const auto tiles_of = [&](std::int64_t rows) {
    std::int64_t count = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) count += ceil_div(sequence(problem, b).q_len, rows);
    return count * problem.q_heads;
  };
  const std::int64_t rows = alone ? 64 : tiles_of(256) >= 128 ? 256 : tiles_of(128) >= 32 ? 128 : 64;
  return {.tile_q = static_cast<std::int32_t>(round_up(rows, whole_rows(t.mr))),
          .tile_kv = static_cast<std::int32_t>(round_up(256, t.nr)),
          .group = t.mr,
          .panel = t.nr};
}

/// Rows of f32 already are panels of columns. If rows are less than a page apart, products read them as fast as packed
/// rows (Zen 4), and packing is unnecessary. If they are further apart, each key costs an access to another page.
bool reads_in_place(const Tensor& v, const Problem& problem, const Widths& pv) {
  const MatrixLayout at = matrix(v, problem.kv.layout, 0, 0, 0);
  constexpr std::int64_t page = 4096 / sizeof(float);
  return !problem.kv.paged() && !problem.held() && v.dtype == DType::f32 && at.column == 1 && at.row > 0 &&
         at.row <= page && pv.columns == pv.as_n;
}

std::int64_t tiles_of(std::span<const KVEntry> entries) {
  return entries.empty() ? 0 : entries.back().first_tile + entries.back().tiles - entries.front().first_tile;
}

/// All entries at once if they take up to a gigabyte, else as many as fit; at least one.
std::vector<std::span<const KVEntry>> rounds_of(std::span<const KVEntry> entries, std::int64_t tile_units) {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t bytes = std::max(most, tiles_of(entries) * tile_units * 4);
  const auto at_once = std::max<std::size_t>(1, entries.size() * static_cast<std::size_t>(most) /
                                                    static_cast<std::size_t>(bytes));
  std::vector<std::span<const KVEntry>> out;
  for (std::size_t first = 0; first < entries.size(); first += at_once)
    out.push_back(entries.subspan(first, std::min(at_once, entries.size() - first)));
  return out;
}

}  // namespace

ForwardPlan::ForwardPlan(const Call& of, const Means& means, const Among& some)
    : call(of), problem(of.problem), among(some), kernels(of, means), unit(unit_for(kernels.isa, of.forward().k.dtype)),
      kit(cpu::kit(kernels, unit, of.forward().k.dtype)), kernel(forward_kernel(of.mod, kernels, unit)),
      cut(cut_for(kit->tiling, problem, of.forward().fixed_split_size != 0)), qk(problem.d, kit->tiling, unit),
      pv(problem.dv, kit->tiling, unit), inputs(kit), queries(kernels, unit, of.forward().q.dtype),
      v_in_place(reads_in_place(of.forward().v, problem, pv)),
      entries(problem.batch ? kv_entries(problem, cut.tile_kv, among) : std::vector<KVEntry>()),
      rounds(rounds_of(entries, k_tile() + v_tile())), workers(most_workers(means.executor)) {
  Workspace count;
  ForwardMemory(count, *this);
  workspace = count.used();
}

std::int64_t ForwardPlan::most_tiles() const {
  std::int64_t most = 0;
  for (const auto& round : rounds) most = std::max(most, tiles_of(round));
  return most;
}

ForwardScratch::ForwardScratch(Workspace& memory, const ForwardPlan& plan)
    : fields(memory, plan.kernel->parts, plan.cut) {
  const Cut& cut = plan.cut;
  q = memory.take<std::uint32_t>(cut.tile_q * plan.qk.as_k);
  p = s = memory.take<float>(cut.tile_q * cut.tile_kv);
  if (plan.unit == Unit::bf16) p = memory.take<bf16>(cut.tile_q * cut.tile_kv);
  o = memory.take<float>(cut.tile_q * plan.pv.as_n);
  for (float** line : {&m, &l, &alpha, &ones}) *line = memory.take<float>(cut.tile_q);
  rows = memory.take<std::byte>(cut.panel * 4 * std::max(plan.qk_row(), plan.pv.as_n));
}

ForwardMemory::ForwardMemory(Workspace& memory, const ForwardPlan& plan) {
  const std::int64_t tiles = plan.most_tiles();
  k = memory.take<std::uint32_t>(tiles * plan.k_tile());
  v = memory.take<std::uint32_t>(tiles * plan.v_tile());
  bad = memory.take<bool>(tiles);
  for (int w = 0; w < plan.workers; ++w) scratch.emplace_back(memory, plan);
}

}  // namespace attune::runtime::cpu
