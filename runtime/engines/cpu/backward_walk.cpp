// runtime/engines/cpu/backward_walk.cpp — one task of the backward: its tiles of keys, and the queries that read them
#include "runtime/engines/cpu/backward_plan.h"

#include <algorithm>
#include <limits>

#include "runtime/engines/layout.h"
#include "runtime/engines/merge.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime::cpu {
namespace {

using namespace codegen;

class BackwardWalk {
 public:
  BackwardWalk(const BackwardState& state, const BackwardTask& task, BackwardScratch& s, Pass pass,
               float* const* gradients)
      : state_(state), sizes_(state.sizes), task_(task), entry_(state.plan.entries()[task.entry]),
        s_(s), keys_{.s = s, .pass = pass, .gradients = gradients} {}

  /// Processes tiles of keys in strips whose sums are all in memory: each range of queries is prepared once per strip.
  void operator()() {
    const std::vector<Range> ranges = cleared_ranges();
    const std::vector<std::int32_t> tiles = state_.plan.tiles(task_);
    const auto strip = static_cast<std::size_t>(state_.strip);
    for (std::size_t i = 0; i < tiles.size(); i += strip) {
      const auto here = std::span(tiles).subspan(i, std::min(strip, tiles.size() - i));
      const auto each = [&](const auto& body) {
        for (std::size_t j = 0; j < here.size(); ++j) {
          take(here[j], static_cast<std::int64_t>(j));
          body();
        }
      };
      each([&] { clear_sums(); });
      for (const Range& range : ranges) {
        begin(range);
        each([&] { meet_range(); });
      }
      if (keys_.pass == Pass::Gradients && state_.plan.parts() == 1)
        each([&] { state_.store(entry_, keys_.tile, keys_.dk, keys_.dv); });
    }
  }

 private:
  /// Neighbouring tiles of queries of one reader that stay prepared together.
  struct Range {
    Reader reader;
    std::int32_t first, last;
  };

  std::vector<Range> cleared_ranges() const {
    std::vector<Range> out;
    const auto step = static_cast<std::int32_t>(state_.prepared);
    for (const Reader& reader : state_.plan.readers(task_)) {
      clear_rows(reader);
      const std::int32_t count = state_.q_tiles(reader.b);
      for (std::int32_t t = 0; t < count; t += step) out.push_back({reader, t, std::min(count, t + step)});
    }
    return out;
  }

  std::int64_t first_row(const Reader& reader) const {
    return task_.chunk * state_.plan.rows() + state_.plan.first_row(reader.b, reader.h);
  }
  void clear_rows(const Reader& reader) const {
    const std::int64_t rows = state_.plan.padded_rows(reader.b), width = sizes_.d.as_n;
    if (keys_.pass == Pass::Sums) {
      std::fill_n(state_.delta_sums + first_row(reader), rows, 0.0f);
    } else if (state_.call.dq.given()) {
      std::fill_n(state_.dq + first_row(reader) * width, rows * width, 0.0f);
    }
  }

  /// Makes `tile`, the j-th of its strip, the current tile of keys.
  void take(std::int32_t tile, std::int64_t j) {
    const bool in_parts = state_.plan.parts() > 1;
    const std::int64_t at = in_parts ? task_.part * state_.plan.tiles() + entry_.first_tile + tile : j;
    keys_.tile = tile;
    if (state_.call.dk.given()) keys_.dk = (in_parts ? state_.dk : s_.dk) + at * state_.k_sums();
    if (state_.call.dv.given()) keys_.dv = (in_parts ? state_.dv : s_.dv) + at * state_.v_sums();
  }

  void clear_sums() const {
    if (keys_.pass == Pass::Sums) return;
    if (state_.call.dk.given()) std::fill_n(keys_.dk, state_.k_sums(), 0.0f);
    if (state_.call.dv.given()) std::fill_n(keys_.dv, state_.v_sums(), 0.0f);
  }

  void begin(const Range& range) {
    if (range_ == &range) return;
    range_ = &range;
    keys_.first_row = first_row(range.reader);
    for (QueryTile& tile : s_.queries) tile.ready = false;
    const Frame frame = state_.slots.frame(sequence(state_.problem, range.reader.b), range.reader.h);
    state_.kernel->head_fields(&frame, s_.head);
  }

  /// The current tile of keys against the current range.
  void meet_range() {
    const auto [b, h] = range_->reader;
    const std::int32_t panel = keys_.tile * sizes_.cut.panels();
    bool packed = false;
    for (std::int32_t t = range_->first; t < range_->last; ++t) {
      const auto [begin, end] = state_.visits->panels(b, h, t);
      if (panel >= end || panel + sizes_.cut.panels() <= begin) continue;
      visits_.clear();
      bool any = false;
      for (std::int32_t g = 0; g < sizes_.cut.groups(); ++g) {
        visits_.push_back(state_.visits->visit(b, h, t, g, panel));
        any = any || visits_.back().first < visits_.back().last;
      }
      if (!any) continue;
      if (!packed) pack();
      packed = true;
      QueryTile& queries = s_.queries[static_cast<std::size_t>(t - range_->first)];
      if (!queries.ready) prepare(t, queries);
      meet(state_, keys_, queries, visits_);
    }
  }

  void pack() const {
    const std::int64_t first = std::int64_t{keys_.tile} * sizes_.cut.tile_kv;
    const std::int64_t rows = std::min<std::int64_t>(sizes_.cut.tile_kv, entry_.length - first);
    load(state_.call.v, first, rows, sizes_.dv.columns, sizes_.row(sizes_.dv));
    pack_columns(sizes_.dv, sizes_.row(sizes_.dv), rows, s_.v_columns);

    const std::int64_t row = sizes_.k_row(), bytes = row * sizes_.element_size();
    s_.bad_k = load(state_.call.k, first, rows, sizes_.d.columns, row);
    pack_columns(sizes_.d, row, rows, s_.k_columns);
    std::memset(s_.rows + rows * bytes, 0, static_cast<std::size_t>((sizes_.cut.tile_kv - rows) * bytes));
    const PackRows k{.from = s_.rows,
                     .from_row = row,
                     .rows = sizes_.cut.tile_kv,
                     .columns = sizes_.d.as_n,
                     .into = s_.k_rows,
                     .panel = sizes_.cut.tile_kv / sizes_.per_unit() * sizes_.tiling.nr};
    state_.kit->pack_rows(&k);
  }

  bool load(const Tensor& t, std::int64_t first, std::int64_t rows, std::int64_t columns, std::int64_t row) const {
    static const Tensor no_pages;
    const KeyRows lie(state_.problem, no_pages, {.b = entry_.b, .kv_b = entry_.b, .kv_start = entry_.start},
                      entry_.head);
    bool bad = false;
    for (std::int64_t at = 0; at < rows;) {
      const KeyRows::Range some = lie.range(t, first + at, first + rows);
      std::byte* into = s_.rows + at * row * sizes_.element_size();
      if (some.there)
        bad |= state_.inputs.load(t, some.at, {.rows = some.count, .columns = columns, .into = into, .row = row});
      else
        std::memset(into, 0, static_cast<std::size_t>(some.count * row * sizes_.element_size()));
      at += some.count;
    }
    return bad;
  }

  void pack_columns(const Widths& w, std::int64_t row, std::int64_t rows, std::uint32_t* into) const {
    const PackColumns args{.from = s_.rows,
                           .from_row = row / sizes_.per_unit(),
                           .rows = rows,
                           .k = w.as_k,
                           .into = into,
                           .panel = w.as_k * sizes_.tiling.nr};
    state_.kit->pack_columns(&args);
    // If visits are whole tiles, products also read panels past the last key.
    std::fill(into + round_up(rows, sizes_.tiling.nr) * w.as_k, into + sizes_.cut.tile_kv * w.as_k, 0u);
  }

  void prepare(std::int32_t t, QueryTile& tile) const {
    const auto [b, h] = range_->reader;
    const compiler::Problem& problem = state_.problem;
    const Sequence seq = sequence(problem, b);
    static_cast<TileRows&>(tile) = tile_rows(state_.slots, sizes_.cut, seq, h, t, s_.head);
    const std::int64_t ld = field_row(sizes_.cut.tile_q);
    state_.kernel->row_fields(&tile.frame, tile.position, static_cast<std::int32_t>(ld), tile.fields, ld);

    // In bf16 the scale would round q, so scores and dk are scaled instead.
    const float scale = sizes_.unit == Unit::f32 ? static_cast<float>(problem.scale) : 1;
    const QueryLoader load(*state_.kit, sizes_, problem);
    load({state_.call.q, state_.inputs, sizes_.d, scale}, seq, h, tile, tile.q);
    load({state_.call.grad_o, state_.grad_o, sizes_.dv, 1}, seq, h, tile, tile.grad_o);
    prepare_rows(seq, h, tile);
    tile.ready = true;
  }

  void prepare_rows(const Sequence& seq, std::int64_t h, QueryTile& tile) const {
    const auto value = [&](const Tensor& t, std::int64_t r) {
      const MatrixLayout at = column(t, state_.problem.q.layout, seq.b, h, seq.q_start);
      return runtime::load(t, shifted(at, r).origin);
    };
    const std::int64_t first = state_.plan.first_row(seq.b, h) + tile.first;
    const float* terms = row_terms(state_.kernel->parts, tile.fields, field_row(sizes_.cut.tile_q));
    if (state_.problem.held()) {
      // Rows of other ranks get lse = infinity: their probabilities are 0.
      std::fill_n(tile.lse, tile.rows, std::numeric_limits<float>::infinity());
      std::fill_n(tile.delta, tile.rows, 0.0f);
    }
    const auto one = [&](std::int64_t r, std::int64_t row) {
      const double lse = value(state_.lse, row), term = terms ? static_cast<double>(terms[r]) : 0;
      const bool empty = lse == -infinity || term == -infinity;
      tile.lse[r] = static_cast<float>(empty ? infinity : lse - term);
      const double dlse = state_.call.grad_lse.given() ? value(state_.call.grad_lse, row) : 0;
      tile.delta[r] = static_cast<float>(static_cast<double>(state_.delta[first + r]) - dlse);
    };
    each_query_run(state_.problem, seq, tile.first, tile.rows,
                   [&](std::int64_t skip, std::int64_t count, std::int64_t row) {
                     for (std::int64_t i = 0; i < count; ++i) one(skip + i, row + i);
                   });
  }

  const BackwardState& state_;
  const BackwardSizes& sizes_;
  const BackwardTask& task_;
  const KVEntry& entry_;
  BackwardScratch& s_;
  KeysAtHand keys_;
  const Range* range_ = nullptr;
  std::vector<VisitedColumns> visits_;  ///< per group, for the current tile of queries
};

}  // namespace

void run(const BackwardState& state, const BackwardTask& task, BackwardScratch& scratch, Pass pass,
         float* const* gradients) {
  BackwardWalk(state, task, scratch, pass, gradients)();
}

}  // namespace attune::runtime::cpu
