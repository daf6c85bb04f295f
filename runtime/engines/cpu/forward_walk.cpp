// runtime/engines/cpu/forward_walk.cpp — a task of the forward: the loop of a tile of queries over its keys, which are
// packed as products read them
#include "runtime/engines/cpu/forward_walk.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

namespace attune::runtime::cpu {

using codegen::per_unit;

/// Values are stored panel by panel, each with all keys of the entry, so that a loop may begin at any key.
std::int64_t PackedKeys::v_panel(const KVEntry& entry) const {
  return entry.tiles * ceil_div(plan_.cut.tile_kv, per_unit(plan_.unit)) * plan_.cut.panel;
}

std::uint32_t* PackedKeys::keys(const KVEntry& entry, std::int64_t key) const {
  return memory_.k + tile(entry) * plan_.k_tile() + key * plan_.qk.as_k;
}

PackedKeys::Values PackedKeys::values(const KVEntry& entry, std::int64_t key) const {
  if (plan_.v_in_place) {
    const MatrixLayout at = rows_of(entry).range(call_.v, key, entry.length).at;
    return {element(call_.v, at.origin), at.row, plan_.cut.panel};
  }
  return {memory_.v + tile(entry) * plan_.v_tile() + key / per_unit(plan_.unit) * plan_.cut.panel, plan_.cut.panel,
          v_panel(entry)};
}

bool PackedKeys::bad(const KVEntry& entry, std::int64_t first, std::int64_t last) const {
  const bool* tiles = memory_.bad + tile(entry);
  return tiles[first / plan_.cut.tile_kv] || tiles[(last - 1) / plan_.cut.tile_kv];
}

void PackedKeys::pack(const KVEntry& entry, std::int64_t tile, std::byte* scratch) const {
  const std::int64_t begin = tile * plan_.cut.tile_kv;
  const std::int64_t end = std::min<std::int64_t>(begin + plan_.cut.tile_kv, entry.length);
  memory_.bad[this->tile(entry) + tile] = false;
  // A panel at a time: rows are still in the L1 cache when they are packed.
  for (std::int64_t first = begin; first < end; first += plan_.cut.panel)
    pack_panel(entry, tile, first, std::min<std::int64_t>(plan_.cut.panel, end - first), scratch);
}

/// `rows`: fewer than a panel has at the end of the entry.
void PackedKeys::pack_panel(const KVEntry& entry, std::int64_t tile, std::int64_t first, std::int64_t rows,
                            std::byte* scratch) const {
  const Cut& cut = plan_.cut;
  const Widths &qk = plan_.qk, &pv = plan_.pv;
  const KeyRows lie = rows_of(entry);
  // Returns true if any element is infinite or NaN.
  const auto load = [&](const Tensor& t, std::int64_t columns, std::int64_t row) {
    bool bad = false;
    for (std::int64_t at = 0; at < rows;) {
      const KeyRows::Range some = lie.range(t, first + at, first + rows);
      std::byte* into = scratch + at * row * element_size(plan_.unit);
      if (some.there)
        bad |= plan_.inputs.load(t, some.at, {.rows = some.count, .columns = columns, .into = into, .row = row});
      else
        std::memset(into, 0, static_cast<std::size_t>(some.count * row * element_size(plan_.unit)));
      at += some.count;
    }
    return bad;
  };
  load(call_.k, qk.columns, plan_.qk_row());
  const codegen::PackColumns k{.from = scratch,
                               .from_row = qk.as_k,
                               .rows = rows,
                               .k = qk.as_k,
                               .into = keys(entry, first),
                               .panel = qk.as_k * cut.panel};
  plan_.kit->pack_columns(&k);

  if (load(call_.v, pv.columns, pv.as_n)) memory_.bad[this->tile(entry) + tile] = true;
  if (plan_.v_in_place) return;
  // Products read whole panels. Rows past the end have p = 0, and 0 times their values must be 0.
  const std::int64_t row_bytes = pv.as_n * element_size(plan_.unit);
  std::memset(scratch + rows * row_bytes, 0, static_cast<std::size_t>((cut.panel - rows) * row_bytes));
  const Values to = values(entry, first);
  const codegen::PackRows v{.from = scratch,
                            .from_row = pv.as_n,
                            .rows = cut.panel,
                            .columns = pv.as_n,
                            .into = static_cast<std::uint32_t*>(to.data),
                            .panel = to.panel};
  plan_.kit->pack_rows(&v);
}

namespace {

using namespace codegen;

class ForwardWalk {
 public:
  ForwardWalk(const ForwardState& state, const ForwardTask& task, const ForwardScratch& scratch)
      : state_(state), plan_(state.plan), kernel_(*state.plan.kernel), cut_(state.plan.cut), task_(task), s_(scratch),
        seq_(sequence(plan_.problem, task.reader.b)),
        tile_(tile_rows(state.slots, cut_, seq_, task.reader.h, task.tile_q, s_.fields.head)) {}

  void operator()() {
    s_.fields.compute(kernel_, tile_);
    load_queries();
    clear_rows();
    if (kernel_.parts.prob_linear) {
      walk(Pass::Online);
      return store(finish_rows());
    }
    walk(Pass::Statistics);
    const std::vector<Finished> rows = finish_rows();
    for (std::size_t r = 0; r < rows.size(); ++r) s_.m[r] = static_cast<float>(rows[r].lse_of_core);
    walk(Pass::Known);
    store(rows);
  }

 private:
  /// Online: one pass, O += P V with P relative to the maximum so far. A prob that is not linear in p needs two passes:
  /// Statistics computes m and l of each row, then Known computes O += P V with the final P.
  enum class Pass : std::uint8_t { Online, Statistics, Known };
  static constexpr std::size_t most_groups = 64;  ///< 256 rows, the portable kernels' groups of 4

  void clear_rows() const {
    const std::int64_t rows = std::int64_t{tile_.groups} * cut_.group;
    std::fill_n(s_.m, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(s_.l, rows, 0.0f);
    std::fill_n(s_.ones, rows, 1.0f);
    std::fill_n(s_.o, rows * plan_.pv.as_n, 0.0f);
  }

  void load_queries() const {
    const Tensor& q = plan_.call.forward().q;
    const MatrixLayout from = matrix(q, plan_.problem.q.layout, task_.reader.b, task_.reader.h, seq_.q_start);
    if (plan_.problem.held()) std::fill_n(s_.q, tile_.rows * plan_.qk.as_k, 0u);
    each_query_run(plan_.problem, seq_, tile_.first, tile_.rows,
                   [&](std::int64_t skip, std::int64_t count, std::int64_t row) {
                     plan_.queries.load(q, shifted(from, row),
                                        {.rows = count,
                                         .columns = plan_.qk.columns,
                                         .factor = static_cast<float>(plan_.problem.scale),
                                         .into = s_.q + skip * plan_.qk.as_k,
                                         .row = plan_.qk_row()});
                   });
    std::fill_n(s_.q + tile_.rows * plan_.qk.as_k, (tile_.groups * cut_.group - tile_.rows) * plan_.qk.as_k, 0u);
  }

  void walk(Pass pass) {
    pass_ = pass;
    const auto [first, last] = state_.visits.panels(task_.reader.b, task_.reader.h, task_.tile_q);
    for (std::int32_t panel = first; panel < last; panel += cut_.panels()) visit(panel);
  }

  /// All groups against one window of keys; groups that need the same part of the window are computed together.
  void visit(std::int32_t panel) {
    std::array<VisitedColumns, most_groups> memory;
    const std::span visits = std::span(memory).first(static_cast<std::size_t>(tile_.groups));
    for (std::int32_t g = 0; g < tile_.groups; ++g)
      visits[static_cast<std::size_t>(g)] = state_.visits.visit(task_.reader.b, task_.reader.h, task_.tile_q, g, panel);
    const std::int32_t kv = panel * cut_.panel;
    bool fields = kernel_.parts.col_fields() == 0;
    each_run(
        visits,
        [this](const VisitedColumns& a, const VisitedColumns& b) {
          return a.first == b.first && a.last == b.last && a.all == b.all && needs_left(a) == needs_left(b) &&
                 needs_right(a) == needs_right(b);
        },
        [&](std::int32_t g, std::int32_t groups, const VisitedColumns&) {
          if (!fields)
            kernel_.col_fields(&tile_.frame, seq_.kv_offset + kv, cut_.tile_kv, s_.fields.col, s_.fields.col_ld);
          fields = true;
          block(kv, g, visits.subspan(static_cast<std::size_t>(g), static_cast<std::size_t>(groups)));
        });
  }

  // If a product can compute half a panel, it skips a half of the first or the last panel in which no pair is kept.
  bool needs_left(const VisitedColumns& v) const {
    return !plan_.kit->half_product || v.begin - v.first < cut_.panel / 2;
  }
  bool needs_right(const VisitedColumns& v) const {
    return !plan_.kit->half_product || v.last - v.end < cut_.panel / 2;
  }

  /// Some groups, all alike, against the window of keys that begins at `kv`.
  void block(std::int32_t kv, std::int32_t group, std::span<const VisitedColumns> visits) {
    const VisitedColumns& v = visits[0];
    const auto groups = static_cast<std::int32_t>(visits.size());
    const std::int64_t row = std::int64_t{group} * cut_.group;
    score(kv, row, groups, v);

    const bool all = v.all && kv + v.last <= seq_.kv_len;
    const Attend softmax{.frame = &tile_.frame,
                         .s = s_.s + row * cut_.tile_kv,
                         .s_row = cut_.tile_kv,
                         .p = p_at(row, 0),
                         .p_row = cut_.tile_kv,
                         .rows = groups * cut_.group,
                         .q = static_cast<std::int32_t>(tile_.position + row),
                         .kv = seq_.kv_offset + kv,
                         .first = v.first,
                         .last = v.last,
                         .kv_end = seq_.kv_offset + static_cast<std::int32_t>(seq_.kv_len),
                         .scale = static_cast<float>(plan_.problem.scale),
                         .row = s_.fields.row + row,
                         .row_ld = s_.fields.row_ld,
                         .col = s_.fields.col,
                         .col_ld = s_.fields.col_ld,
                         .m = s_.m + row,
                         .l = s_.l + row,
                         .alpha = s_.alpha + row};
    (pass_ == Pass::Known ? kernel_.attend_known : all ? kernel_.attend_all : kernel_.attend_some)(&softmax);
    if (pass_ == Pass::Statistics) return;

    // If no pair is removed and there is no prob mod, an infinite value belongs in the result.
    const bool guard = !(all && pass_ == Pass::Online && !kernel_.parts.has_prob);
    each_run(visits, std::equal_to<>(), [&](std::int32_t g, std::int32_t count, const VisitedColumns& same) {
      weigh(kv, group + g, count, same, guard);
    });
  }

  /// S = Q K^T for some groups with the same visits. Halves of panels that the groups do not need keep their old
  /// contents; the mask removes them.
  void score(std::int32_t kv, std::int64_t row, std::int32_t groups, const VisitedColumns& v) const {
    const std::int64_t nr = cut_.panel, k = plan_.qk.as_k;
    const auto multiply = [&](ProductFn* product, std::int64_t column, std::int64_t panels) {
      const Product qk{.a = s_.q + row * k,
                       .a_row = k,
                       .b = state_.keys.keys(*task_.entry, kv + column / nr * nr) + column % nr,
                       .b_k = nr,
                       .b_panel = nr * k,
                       .c = s_.s + row * cut_.tile_kv + column,
                       .c_row = cut_.tile_kv,
                       .groups = groups,
                       .panels = panels,
                       .k = k,
                       .keep = nullptr};
      product(&qk);
    };
    const Kit& kit = *plan_.kit;
    std::int64_t first = v.first, last = v.last;
    if (!needs_left(v)) {
      multiply(kit.half_product, first + nr / 2, 1);
      first += nr;
    }
    if (!needs_right(v)) last -= nr;
    if (first < last) multiply(kit.product, first, (last - first) / nr);
    if (!needs_right(v)) multiply(kit.half_product, last, 1);
  }

  void* p_at(std::int64_t row, std::int64_t column) const {
    return static_cast<std::byte*>(s_.p) + (row * cut_.tile_kv + column) * element_size(plan_.unit);
  }

  /// O += P V for the keys that some groups keep.
  void weigh(std::int32_t kv, std::int32_t group, std::int32_t groups, const VisitedColumns& v, bool guard) const {
    const std::int64_t row = std::int64_t{group} * cut_.group, units = per_unit(plan_.unit);
    const std::int64_t step = units * plan_.kit->tiling.k;
    const std::int64_t begin = v.begin / step * step, end = round_up(v.end, step);
    const PackedKeys::Values values = state_.keys.values(*task_.entry, kv + begin);
    const Product pv{.a = p_at(row, begin),
                     .a_row = cut_.tile_kv / units,
                     .b = values.data,
                     .b_k = values.key,
                     .b_panel = values.panel,
                     .c = s_.o + row * plan_.pv.as_n,
                     .c_row = plan_.pv.as_n,
                     .groups = groups,
                     .panels = plan_.pv.as_n / cut_.panel,
                     .k = (end - begin) / units,
                     .keep = pass_ == Pass::Known ? s_.ones : s_.alpha + row};
    const bool bad = state_.keys.bad(*task_.entry, kv + begin, kv + end);
    (guard && bad ? plan_.kit->guarded_product : plan_.kit->product)(&pv);
  }

  // ---- From sums to results.

  std::vector<Finished> finish_rows() const {
    const double sink = sink_at(plan_.call, tile_.frame);
    const float* terms = row_terms(kernel_.parts, s_.fields.row, s_.fields.row_ld);
    std::vector<Finished> out;
    out.reserve(static_cast<std::size_t>(tile_.rows));
    for (std::int64_t r = 0; r < tile_.rows; ++r)
      out.push_back(finish(double{s_.m[r]}, double{s_.l[r]}, sink, terms ? double{terms[r]} : 0));
    return out;
  }

  void store(const std::vector<Finished>& rows) const {
    const std::int64_t width = plan_.pv.as_n;
    for (std::int64_t r = 0; r < tile_.rows; ++r) {
      const Finished& row = rows[static_cast<std::size_t>(r)];
      // In Pass::Known, P is already normalised.
      s_.alpha[r] = kernel_.parts.prob_linear ? static_cast<float>(row.factor) : 1;
      // A prob mod may have turned the NaN of an empty row into numbers.
      if (row.empty()) std::fill_n(s_.o + r * width, width, 0.0f);
    }
    state_.results.store(
        seq_,
        {.h = task_.reader.h, .first = tile_.first, .count = tile_.rows, .o = s_.o, .o_row = width, .factor = s_.alpha},
        rows);
  }

  const ForwardState& state_;
  const ForwardPlan& plan_;
  const ForwardKernel& kernel_;
  const Cut& cut_;
  const ForwardTask& task_;
  const ForwardScratch& s_;
  Sequence seq_;
  TileRows tile_;
  Pass pass_ = Pass::Online;
};

}  // namespace

void run(const ForwardState& state, const ForwardTask& task, const ForwardScratch& scratch) {
  ForwardWalk(state, task, scratch)();
}

}  // namespace attune::runtime::cpu
