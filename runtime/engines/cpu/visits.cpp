// runtime/engines/cpu/visits.cpp — the keys and values of a call: which queries read each entry, and which of its
// panels each group of their rows needs
#include "runtime/engines/cpu/visits.h"

#include <algorithm>

#include "runtime/engines/layout.h"

namespace attune::runtime::cpu {

std::vector<KVEntry> kv_entries(const compiler::Problem& problem, std::int32_t tile_kv, const Among& among) {
  std::vector<KVEntry> out;
  std::int64_t first_tile = 0;
  const compiler::Held* held = problem.held();
  const std::int64_t first = held ? held->first_head : 0, last = held ? held->last_head : problem.kv_heads;
  for (std::int64_t b = 0; b < (problem.kv_shared ? 1 : problem.batch); ++b)
    for (std::int64_t h = first; h < last; ++h) {
      // If the whole batch shares one entry of keys, it has the keys of the longest entry.
      const Sequence seq = problem.batch == 0 || (problem.kv_shared && !held) ? Sequence{.kv_len = problem.kv.length}
                                                                              : sequence(problem, b);
      if (!problem.kv_shared && !among.has(seq)) continue;
      const auto tiles = static_cast<std::int32_t>((seq.kv_len + tile_kv - 1) / tile_kv);
      out.push_back({b, h, seq.kv_start, seq.kv_len, tiles, first_tile});
      first_tile += tiles;
    }
  return out;
}

std::int64_t readers_per_entry(const compiler::Problem& problem) {
  return problem.group * (problem.kv_shared ? problem.batch : 1);
}

Reader reader_of(const compiler::Problem& problem, const KVEntry& entry, std::int64_t i) {
  return {problem.kv_shared ? i / problem.group : entry.b, entry.head * problem.group + i % problem.group};
}

namespace {

std::int32_t tiles_in(std::int64_t length, std::int32_t tile) {
  return static_cast<std::int32_t>((length + tile - 1) / tile);
}

}  // namespace

Visits::Visits(const Call& call, const Cut& cut, const Executor& executor, const Among& among) : cut_(cut) {
  const compiler::Problem& problem = call.problem;
  const compiler::Cover& cover = call.mod.cover;
  by_batch_ = problem.q.packed() || problem.has_kv_lens() || problem.has_q_offsets() || cover.by_batch;
  heads_ = cover.by_head ? problem.q_heads : 1;
  struct Place {
    std::int64_t b, h;
    std::int32_t tile_q;
  };
  std::vector<Place> places;
  for (std::int64_t b = 0; b < (by_batch_ ? problem.batch : std::min<std::int64_t>(problem.batch, 1)); ++b) {
    starts_.push_back(static_cast<std::int64_t>(places.size()));
    const Sequence seq = sequence(problem, b);
    const std::int32_t count = among.has(seq) ? tiles_in(seq.q_len, cut.tile_q) : 0;
    for (std::int64_t h = 0; h < heads_; ++h)
      for (std::int32_t t = 0; t < count; ++t) places.push_back({b, h, t});
  }
  starts_.push_back(static_cast<std::int64_t>(places.size()));

  std::optional<Tiles> tiles;
  if (call.mod.removes()) tiles.emplace(call.mod, call.args);
  rows_.resize(places.size());
  // Waking a thread costs more than some thousands of rows of tiles, so a task takes a run of them.
  constexpr std::int64_t chunk = 64;
  const auto count = static_cast<std::int64_t>(places.size());
  run_tasks((count + chunk - 1) / chunk,
            [&](std::int64_t task, int) {
              for (std::int64_t i = task * chunk; i < std::min(count, (task + 1) * chunk); ++i) {
                const Place& at = places[static_cast<std::size_t>(i)];
                rows_[static_cast<std::size_t>(i)] = ask(problem, tiles ? &*tiles : nullptr, at.b, at.h, at.tile_q);
              }
            },
            executor);
}

Visits::Row Visits::ask(const compiler::Problem& problem, const Tiles* tiles, std::int64_t b, std::int64_t h,
                        std::int32_t tile_q) const {
  const Sequence seq = sequence(problem, b);
  const auto keys = static_cast<std::int32_t>(seq.kv_len);
  const std::int32_t first = tile_q * cut_.groups(),
                     groups = std::min(cut_.groups(), tiles_in(seq.q_len, cut_.group) - first);
  Row row;
  if (!any_query(problem, seq, std::int64_t{tile_q} * cut_.tile_q, cut_.tile_q)) return row;
  const auto bi = static_cast<std::int32_t>(b), hi = static_cast<std::int32_t>(h);
  const auto all_groups = [&](const std::vector<Run>& runs) {
    row = {};
    for (std::int32_t g = 0; g < groups; ++g) {
      row.runs.insert(row.runs.end(), runs.begin(), runs.end());
      row.offsets.push_back(static_cast<std::int32_t>(row.runs.size()));
    }
  };
  if (!tiles) {
    all_groups(keys > 0 ? std::vector{Run{0, keys, Keep::All}} : std::vector<Run>());
  } else if (!tiles->rows_by_bands(extent_of(problem, seq, cut_.group, 1), bi, hi, first, first + groups, row.runs,
                                   row.offsets)) {
    // Intervals would have to be evaluated for every key; instead all groups take the runs of whole tiles.
    std::vector<Run> runs;
    tiles->row(extent_of(problem, seq, cut_.tile_q, cut_.tile_kv), bi, hi, tile_q, runs);
    for (Run& r : runs) r = {r.begin * cut_.tile_kv, std::min(r.end * cut_.tile_kv, keys), r.keep};
    all_groups(runs);
  }
  if (!row.runs.empty()) row.begin = keys;
  for (const Run& r : row.runs) {
    row.begin = std::min(row.begin, r.begin);
    row.end = std::max(row.end, r.end);
  }
  if (problem.held()) keep_held(row, problem, cut_, b, first);
  for (const Run& r : row.runs) row.keys += r.end - r.begin;
  return row;
}

void Visits::keep_held(Row& row, const compiler::Problem& problem, const Cut& cut, std::int64_t b, std::int32_t first) {
  Row kept;
  kept.begin = row.begin;
  kept.end = row.end;
  const Sequence seq = sequence(problem, b);
  for (std::size_t g = 0; g + 1 < row.offsets.size(); ++g) {
    if (any_query(problem, seq, (first + static_cast<std::int64_t>(g)) * cut.group, cut.group))
      kept.runs.insert(kept.runs.end(), row.runs.begin() + row.offsets[g], row.runs.begin() + row.offsets[g + 1]);
    kept.offsets.push_back(static_cast<std::int32_t>(kept.runs.size()));
  }
  row = std::move(kept);
}

const Visits::Row& Visits::row(std::int64_t b, std::int64_t h, std::int32_t tile_q) const {
  const auto at = static_cast<std::size_t>(by_batch_ ? b : 0);
  const std::int64_t per_head = (starts_[at + 1] - starts_[at]) / heads_;
  return rows_[static_cast<std::size_t>(starts_[at] + (heads_ > 1 ? h : 0) * per_head + tile_q)];
}

std::pair<std::int32_t, std::int32_t> Visits::panels(std::int64_t b, std::int64_t h, std::int32_t tile_q) const {
  const Row& r = row(b, h, tile_q);
  return {r.begin / cut_.panel, tiles_in(r.end, cut_.panel)};
}

std::int64_t Visits::cost(std::int64_t b, std::int64_t h, std::int32_t tile_q) const { return row(b, h, tile_q).keys; }

VisitedColumns Visits::visit(std::int64_t b, std::int64_t h, std::int32_t tile_q, std::int32_t group,
                             std::int32_t panel) const {
  const Row& r = row(b, h, tile_q);
  if (group + 1 >= static_cast<std::int32_t>(r.offsets.size())) return {};
  const std::int32_t low = panel * cut_.panel, high = low + cut_.tile_kv;
  const auto runs = std::span(r.runs).subspan(static_cast<std::size_t>(r.offsets[static_cast<std::size_t>(group)]),
                                              static_cast<std::size_t>(r.offsets[static_cast<std::size_t>(group) + 1] -
                                                                       r.offsets[static_cast<std::size_t>(group)]));
  auto at = std::partition_point(runs.begin(), runs.end(), [&](const Run& run) { return run.end <= low; });
  if (at == runs.end() || at->begin >= high) return {};
  VisitedColumns out;
  out.begin = std::max(at->begin, low);
  out.all = true;
  for (std::int32_t reached = out.begin; at != runs.end() && at->begin < high; ++at) {
    out.all = out.all && at->keep == Keep::All && at->begin <= reached;
    reached = out.end = std::min(at->end, high);
  }
  out.first = out.begin / cut_.panel * cut_.panel - low;
  out.last = tiles_in(out.end, cut_.panel) * cut_.panel - low;
  out.begin -= low;
  out.end -= low;
  out.all = out.all && out.first == out.begin && out.last == out.end;
  return out;
}

}  // namespace attune::runtime::cpu
