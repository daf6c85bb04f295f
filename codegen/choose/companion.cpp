// codegen/choose/companion.cpp — the further kernels of a call, each with its source and its launch
#include "codegen/choose/companion.h"

#include <algorithm>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/cuda/contract/args.cuh"

namespace attune::codegen {
namespace {

using When = Companion::When;

template <CoverForm form>
Source lists_source(const GpuParts& parts, const KernelPlan& plan) {
  return cover_source(*parts.of, plan.spec.strides.offsets64, plan.spec.arch, form);
}
bool is_listed(const GpuParts& parts, const KernelPlan&) { return parts.facts.listed; }

Grid gather_grid(const LaunchCall& call) {
  const compiler::Problem& p = call.problem;
  return {static_cast<unsigned>(ceil_div(p.kv.length, std::int64_t{gather_rows})), static_cast<unsigned>(p.kv_heads),
          static_cast<unsigned>(p.batch)};
}

Grid transpose_grid(const LaunchCall& call) {
  const compiler::Problem& p = call.problem;
  const int chunks = ceil_div(call.plan.tile.dv, gpu_element(DType::e4m3).chunk());
  return {static_cast<unsigned>(chunks * transposed_batch(p) * p.kv_heads * transposed_tiles(p, call.plan)), 1, 1};
}

/// Blocks for the rows of the largest of q, k, v and grad_o; blockIdx.y says which of them a block splits.
Grid split_rows_grid(const LaunchCall& call) {
  const compiler::Problem& p = call.problem;
  const auto lines = [&](std::int64_t sets, std::int64_t length) {
    return sets * round_up(length, std::int64_t{split_lines});
  };
  const std::int64_t most = std::max(lines(p.batch * p.q_heads, p.q.length),
                                     lines(transposed_batch(p) * p.kv_heads, p.kv.length));
  return {static_cast<unsigned>(ceil_div(most, std::int64_t{split_rows_each * split_threads / 32})), 4, 1};
}

/// A launch can overlap only the launch right before it, and tile lists are written there.
bool may_clear(const GpuParts& parts, const KernelPlan& plan) { return !parts.facts.listed && plan.spec.arch >= 90; }

Grid end_grid(const LaunchCall& call) {
  const compiler::Problem& p = call.problem;
  const std::int64_t queries = std::int64_t{call.plan.tile.m} * (call.plan.tile.completes ? cleared_tiles : 1);
  return {static_cast<unsigned>(call.gives_dq ? ceil_div(p.q.length, queries) : 0), static_cast<unsigned>(p.q_heads),
          static_cast<unsigned>(p.batch)};
}

/// True if masked-out pairs, or a packed sequence's neighbours, may have made a gradient non-finite; or operands that
/// are not finite, if they are split.
bool may_be_non_finite(const GpuParts& parts, const KernelPlan& plan) {
  return parts.gradient->removes || plan.spec.packed || plan.tile.parts > 0;
}

/// Blocks return at once unless an earlier kernel found a non-finite gradient.
Grid repair_grid(const LaunchCall& call) { return {static_cast<unsigned>(4 * call.sms), 2, 1}; }

Grid spread_grid(const LaunchCall& call) {
  const compiler::Problem& p = call.problem;
  return {static_cast<unsigned>(ceil_div(p.q.length + p.kv.length + 3, std::int64_t{4} * diagonals_threads)),
          static_cast<unsigned>(p.q_heads), static_cast<unsigned>(p.batch)};
}

Grid sum_sinks_grid(const LaunchCall& call) {
  const compiler::Problem& p = call.problem;
  return {static_cast<unsigned>(ceil_div(p.q.length, std::int64_t{sum_sinks_rows})), static_cast<unsigned>(p.q_heads),
          static_cast<unsigned>(p.batch)};
}

Grid sum_ds_grid(const LaunchCall& call) { return {static_cast<unsigned>(sum_ds_blocks * call.sms), 1, 1}; }

Source repair_source(const GpuParts& parts, const KernelPlan& plan) {
  KernelPlan exact = plan;
  Tile& tile = exact.tile;
  tile.m = tile.n = 64;
  tile.stages = 1;
  tile.own = {{"warps", repair_threads / 32},
              {"width", static_cast<int>(plan.spec.d)},
              {"width_v", static_cast<int>(plan.spec.dv)},
              {"vector", 0},
              {"exact", plan.spec.exact},
              {"passes", 1}};
  return source_beside(parts, exact, "repair_sm80");
}

/// Queries of a tile that takes at most 48 KB of shared memory: a kernel has to request more.
constexpr int once_more_queries = 64;

/// The plan of a kernel that computes S and dP of a tile once more, and sums some of it.
KernelPlan once_more(const GpuParts& parts, const KernelPlan& plan) {
  KernelPlan out = plan;
  Tile& tile = out.tile;
  tile.m = once_more_queries;
  tile.n = tile.d > 64 || tile.dv > 64 ? 32 : 64;
  tile.stages = 1;
  tile.own = {{"warps", once_more_queries / 16},
              {"width", static_cast<int>(plan.spec.d)},
              {"width_v", static_cast<int>(plan.spec.dv)},
              {"vector", plan.spec.strides.load},
              {"exact", plan.spec.exact},
              {"holds_queries", 1}};
  if (parts.facts.listed) tile.own.insert(tile.own.end(), {{"visits_m", plan.tile.m}, {"visits_n", plan.tile.n}});
  return out;
}
Grid once_more_grid(const LaunchCall& call) {
  const compiler::Problem& p = call.problem;
  return {static_cast<unsigned>(ceil_div(p.q.length, std::int64_t{once_more_queries}) * p.q_heads * p.batch), 1, 1};
}

constexpr Companion repair(bool early) {
  return {.when = When::after,
          .role = "repair",
          .name = "repair_sm80",
          .source = repair_source,
          .needed = may_be_non_finite,
          .grid = repair_grid,
          .threads = repair_threads,
          .early = early};
}

constexpr Companion lists(std::string_view role, Source (*source)(const GpuParts&, const KernelPlan&), bool early) {
  return {.role = role,
          .name = "cover",
          .source = source,
          .needed = is_listed,
          .threads = cover_threads,
          .early = early,
          .own_struct = true};
}

}  // namespace

constinit const Companion lists_along_kv = lists("lists along kv", lists_source<CoverForm::of_queries>, false),
                          lists_along_q = lists("lists along q", lists_source<CoverForm::of_keys>, false),
                          table_of_visits = lists("table of visits", lists_source<CoverForm::visits>, true);

constinit const Companion gather_pages{
    .role = "pages gathered",
    .name = "gather_pages",
    .needed = [](const GpuParts&, const KernelPlan& plan) { return plan.tile.gathered; },
    .grid = gather_grid,
    .threads = gather_threads,
    .of_any_mod = true,
    .own_struct = true,
};

constinit const Companion transpose_v{
    .role = "values transposed",
    .name = "transpose_v_sm90",
    .source = [](const GpuParts&, const KernelPlan& plan) { return transpose_source(plan); },
    .needed = [](const GpuParts&, const KernelPlan& plan) { return plan.tile.transposed; },
    .grid = transpose_grid,
    .threads = transpose_threads,
    .of_any_mod = true,
    .own_struct = true,
};

constinit const Companion split_keys{
    .role = "keys and values split",
    .name = "split_keys_sm90",
    .source = [](const GpuParts&, const KernelPlan& plan) { return split_source(plan); },
    .grid = transpose_grid,
    .threads = split_threads,
    .of_any_mod = true,
    .own_struct = true,
};

constinit const Companion split_rows{
    .role = "operands split",
    .name = "split_rows_sm90",
    .source = [](const GpuParts&, const KernelPlan& plan) { return split_rows_source(plan); },
    .grid = split_rows_grid,
    .threads = split_threads,
    .of_any_mod = true,
    .own_struct = true,
};

// The first kernel of a call may start before the kernel of another call has ended, and waits for that itself.
constinit const Companion clear_arrivals{
    .role = "counters",
    .name = "clear",
    .needed = may_clear,
    .threads = clear_threads,
    .early = true,
    .of_any_mod = true,
    .own_struct = true,
};

constinit const Companion combine_mla{
    .when = When::after,
    .role = "parts",
    .name = "combine_mla_sm90",
    .grid =
        [](const LaunchCall& call) {
          return Grid{static_cast<unsigned>(call.shares_tiles ? call.blocks * combine_mla_blocks : 0), 1, 1};
        },
    .threads = combine_mla_threads,
    .early = true,
};

constinit const Companion combine_parts{
    .when = When::after,
    .role = "parts",
    .name = "combine_parts",
    .needed = [](const GpuParts&, const KernelPlan& plan) { return plan.tile.in_parts; },
    .grid =
        [](const LaunchCall& call) {
          return Grid{static_cast<unsigned>(ceil_div(all_rows(call.problem), std::int64_t{rows_of_copy})), 1, 1};
        },
    .threads = 32 * rows_of_copy,
    .early = true,
    .of_any_mod = true,
};

constinit const Companion end_queries{
    .when = When::after,
    .role = "dq",
    .name = "end_queries_sm90",
    .source = [](const GpuParts&, const KernelPlan& plan) { return end_source(plan); },
    .needed = [](const GpuParts&, const KernelPlan& plan) { return !plan.tile.alone; },
    .grid = end_grid,
    .threads = end_threads,
    .early = true,
    .of_any_mod = true,
};

constinit const Companion repair_whole = repair(true), repair_part = repair(false);

constinit const Companion spread_diagonals{
    .when = When::after,
    .role = "sums along diagonals",
    .name = "spread_diagonals",
    .needed = leaves_diagonals,
    .grid = spread_grid,
    .threads = diagonals_threads,
    .early = true,
};

constinit const Companion sum_sinks{
    .when = When::after,
    .role = "sink",
    .name = "sum_sinks",
    .needed = [](const GpuParts& parts,
                 const KernelPlan&) { return !parts.gradient->of_sink.empty() || parts.gradient->asks(by_sum_sinks); },
    .grid = sum_sinks_grid,
    .threads = sum_sinks_threads,
    .early = true,
};

constinit const Companion sum_pairs{
    .when = When::after,
    .role = "pairs",
    .name = "sum_pairs_sm80",
    .source = [](const GpuParts& parts,
                 const KernelPlan& plan) { return source_beside(parts, once_more(parts, plan), "sum_pairs_sm80"); },
    .needed = [](const GpuParts& parts, const KernelPlan&) { return parts.gradient->asks(by_sum_pairs); },
    .grid = once_more_grid,
    .threads = 2 * once_more_queries,
    .early = true,
};

constinit const Companion sum_deltas{
    .role = "delta",
    .name = "sum_deltas_sm80",
    .source = [](const GpuParts& parts,
                 const KernelPlan& plan) { return source_beside(parts, once_more(parts, plan), "sum_deltas_sm80"); },
    .needed = [](const GpuParts& parts, const KernelPlan&) { return parts.gradient->delta_degree == 0; },
    .grid = once_more_grid,
    .threads = 2 * once_more_queries,
    .early = true,
};

constinit const Companion sum_ds{
    .when = When::after,
    .role = "dense gradient",
    .name = "sum_ds",
    .needed = leaves_ds,
    .grid = sum_ds_grid,
    .threads = sum_ds_threads,
    .early = true,
};

// ---- of a call, whichever kernels compute it ------------------------------------------------------------------------

constinit const Companion append_rows{
    .role = "new keys",
    .name = "append",
    // The keys and values of such calls are a cache.
    .needed = [](const GpuParts& parts,
                 const KernelPlan& plan) { return !parts.gradient && plan.spec.cache.per_entry; },
    .threads = append_threads,
    .of_any_mod = true,
    .own_struct = true,
};

constinit const Companion delta_rows{
    .role = "rows",
    .name = "rows",
    .source = [](const GpuParts& parts,
                 const KernelPlan& plan) { return rows_source(rows_spec(plan.spec, parts.gradient->delta_degree)); },
    .needed = [](const GpuParts& parts, const KernelPlan&) { return parts.gradient.has_value(); },
    .grid =
        [](const LaunchCall& call) {
          const compiler::Problem& p = call.problem;
          const std::int64_t rows = rows_of_block(static_cast<int>(p.dv));
          return Grid{static_cast<unsigned>(p.q_heads * p.batch * ceil_div(p.q.length, rows)), 1, 1};
        },
    .threads = rows_threads,
    .of_any_mod = true,
};

constinit const Companion captured_sums{
    .when = When::after,
    .role = "captured gradients",
    .name = "store_sums",
    .needed =
        [](const GpuParts& parts, const KernelPlan&) {
          return parts.gradient && std::ranges::find(parts.gradient->wanted, true) != parts.gradient->wanted.end();
        },
    .threads = sums_threads,
    .of_any_mod = true,
    .own_struct = true,
};

std::span<const Companion* const> companions_of_calls() {
  static constexpr const Companion* all[] = {&append_rows, &delta_rows, &captured_sums};
  return all;
}

Source Companion::source_of(const GpuParts& parts, const KernelPlan& plan) const {
  if (source) return source(parts, plan);
  return of_any_mod ? plain_source(name, plan.spec.arch) : source_beside(parts, plan, std::string(name));
}

std::vector<const Companion*> companions_of(const GpuParts& parts, const KernelPlan& plan) {
  std::vector<const Companion*> out;
  for (const Companion* one : plan.kernel->companions)
    if (one->is_needed(parts, plan)) out.push_back(one);
  return out;
}

std::string words_of(const Companion& companion) {
  return fmt::format("{} {}", companion.role, companion.when == When::before ? "before" : "after");
}

std::int64_t transposed_tiles(const compiler::Problem& p, const KernelPlan& plan) {
  const std::int64_t n = plan.tile.n;
  return p.kv.packed() ? p.kv.total / n + p.batch : ceil_div(p.kv.length, n);
}
std::int64_t transposed_batch(const compiler::Problem& p) {
  // Each entry has a copy of its own, because rows after its last key are cleared.
  return p.kv.packed() || (p.kv_shared && !p.per_entry) ? 1 : p.batch;
}

}  // namespace attune::codegen
