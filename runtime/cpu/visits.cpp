// runtime/cpu/visits.cpp — which panels of keys each group of rows needs, for every tile of queries of a call
#include "runtime/cpu/visits.h"

#include <algorithm>

#include "runtime/layout.h"

namespace attune::runtime::cpu {
namespace {

std::int32_t tiles_in(std::int64_t length, std::int32_t tile) {
  return static_cast<std::int32_t>((length + tile - 1) / tile);
}

}  // namespace

Visits::Visits(const compiler::Problem& problem, const Cut& cut, const compiler::Traced& traced,
               const compiler::Cover* cover, const Executor& executor)
    : cut_(cut) {
  by_batch_ = problem.packed || (cover && cover->by_batch);
  heads_ = cover && cover->by_head ? problem.q_heads : 1;
  struct Place {
    std::int64_t b, h;
    std::int32_t tile_q;
  };
  std::vector<Place> places;
  for (std::int64_t b = 0; b < (by_batch_ ? problem.batch : std::min<std::int64_t>(problem.batch, 1)); ++b) {
    starts_.push_back(static_cast<std::int64_t>(places.size()));
    const std::int32_t count = tiles_in(sequence(problem, b).q_len, cut.tile_q);
    for (std::int64_t h = 0; h < heads_; ++h)
      for (std::int32_t t = 0; t < count; ++t) places.push_back({b, h, t});
  }
  starts_.push_back(static_cast<std::int64_t>(places.size()));

  std::optional<Tiles> tiles;
  if (cover) tiles.emplace(traced, *cover);
  const bool fine = !cover || cover->along_kv.exact();
  rows_.resize(places.size());
  // Some thousands of rows of tiles cost less than waking a thread; a task takes a run of them.
  constexpr std::int64_t chunk = 64;
  const auto count = static_cast<std::int64_t>(places.size());
  run_tasks((count + chunk - 1) / chunk,
            [&](std::int64_t task, int) {
              for (std::int64_t i = task * chunk; i < std::min(count, (task + 1) * chunk); ++i) {
                const Place& at = places[static_cast<std::size_t>(i)];
                rows_[static_cast<std::size_t>(i)] = ask(problem, tiles ? &*tiles : nullptr, fine, at.b, at.h,
                                                         at.tile_q);
              }
            },
            executor);
}

Visits::Row Visits::ask(const compiler::Problem& problem, const Tiles* tiles, bool fine, std::int64_t b, std::int64_t h,
                        std::int32_t tile_q) const {
  const Sequence seq = sequence(problem, b);
  Extent extent{.batch = static_cast<std::int32_t>(problem.batch),
                .heads = static_cast<std::int32_t>(problem.q_heads),
                .q_len = static_cast<std::int32_t>(seq.q_len),
                .kv_len = static_cast<std::int32_t>(seq.kv_len),
                .q_offset = problem.q_offset,
                .tile_q = fine ? cut_.group : cut_.tile_q,
                .tile_kv = fine ? cut_.panel : cut_.tile_kv};
  const std::int32_t panels = tiles_in(seq.kv_len, cut_.panel);
  const std::int32_t groups = std::min(cut_.groups(), tiles_in(seq.q_len, cut_.group) - tile_q * cut_.groups());
  Row row;
  std::vector<Run> runs;
  for (std::int32_t g = 0; g < groups; ++g) {
    if (!tiles) {
      runs = {{0, panels, Keep::All}};
    } else if (fine) {
      runs.clear();
      tiles->row(extent, static_cast<std::int32_t>(b), static_cast<std::int32_t>(h), tile_q * cut_.groups() + g, runs);
    } else if (g == 0) {
      tiles->row(extent, static_cast<std::int32_t>(b), static_cast<std::int32_t>(h), tile_q, runs);
      const std::int32_t per_tile = cut_.tile_kv / cut_.panel;
      for (Run& r : runs) {
        r.begin *= per_tile;
        r.end = std::min(r.end * per_tile, panels);
      }
    }
    for (const Run& r : runs) {
      if (r.begin >= r.end) continue;
      row.runs.push_back(r);
      row.panels += r.end - r.begin;
    }
    row.offsets.push_back(static_cast<std::int32_t>(row.runs.size()));
  }
  return row;
}

const Visits::Row& Visits::row(std::int64_t b, std::int64_t h, std::int32_t tile_q) const {
  const auto at = static_cast<std::size_t>(by_batch_ ? b : 0);
  const std::int64_t per_head = (starts_[at + 1] - starts_[at]) / heads_;
  return rows_[static_cast<std::size_t>(starts_[at] + (heads_ > 1 ? h : 0) * per_head + tile_q)];
}

std::pair<std::int32_t, std::int32_t> Visits::tiles(std::int64_t b, std::int64_t h, std::int32_t tile_q) const {
  const Row& r = row(b, h, tile_q);
  const std::int32_t per_tile = cut_.tile_kv / cut_.panel;
  std::int32_t begin = std::numeric_limits<std::int32_t>::max(), end = 0;
  for (const Run& run : r.runs) {
    begin = std::min(begin, run.begin / per_tile);
    end = std::max(end, (run.end + per_tile - 1) / per_tile);
  }
  return {std::min(begin, end), end};
}

std::int64_t Visits::cost(std::int64_t b, std::int64_t h, std::int32_t tile_q) const {
  return row(b, h, tile_q).panels;
}

Visit Visits::visit(std::int64_t b, std::int64_t h, std::int32_t tile_q, std::int32_t group,
                    std::int32_t tile_kv) const {
  const Row& r = row(b, h, tile_q);
  if (group + 1 >= static_cast<std::int32_t>(r.offsets.size())) return {};
  const std::int32_t per_tile = cut_.tile_kv / cut_.panel, low = tile_kv * per_tile, high = low + per_tile;
  const auto runs = std::span(r.runs).subspan(static_cast<std::size_t>(r.offsets[static_cast<std::size_t>(group)]),
                                              static_cast<std::size_t>(r.offsets[static_cast<std::size_t>(group) + 1] -
                                                                       r.offsets[static_cast<std::size_t>(group)]));
  auto at = std::partition_point(runs.begin(), runs.end(), [&](const Run& run) { return run.end <= low; });
  if (at == runs.end() || at->begin >= high) return {};
  Visit out{.first = std::max(at->begin, low), .all = true};
  for (std::int32_t reached = out.first; at != runs.end() && at->begin < high; ++at) {
    out.all = out.all && at->keep == Keep::All && at->begin <= reached;
    reached = out.last = std::min(at->end, high);
  }
  out.first = (out.first - low) * cut_.panel;
  out.last = (out.last - low) * cut_.panel;
  return out;
}

}  // namespace attune::runtime::cpu
