// runtime/cpu/forward.cpp — flash attention: keys and values packed once, then every tile of queries walks over them
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include "runtime/cpu/decode.h"
#include "runtime/cpu/results.h"
#include "runtime/cpu/visits.h"

namespace attune::runtime::cpu {
namespace {

using namespace codegen;
using compiler::Problem;

/// Rows and columns of a tile, by shapes alone: other threads must not make other bits. Wide tiles read keys and values
/// less often (256 rows were 2 to 10 % faster than 64 wherever there were tasks enough), narrow ones make more tasks.
Cut cut_for(const Tiling& t, const Problem& problem) {
  const auto tiles_of = [&](std::int64_t rows) {
    std::int64_t count = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) count += pieces(sequence(problem, b).q_len, rows);
    return count * problem.q_heads;
  };
  const std::int64_t rows = tiles_of(256) >= 128 ? 256 : tiles_of(128) >= 32 ? 128 : 64;
  return {.tile_q = static_cast<std::int32_t>(up_to(rows, t.mr)),
          .tile_kv = static_cast<std::int32_t>(up_to(256, t.nr)),
          .group = t.mr,
          .panel = t.nr};
}

/// One (batch entry, head) of keys and values: packed once, read by all query heads of its group.
struct Entry {
  std::int64_t kv_b, kv_head, kv_start, kv_len;
  std::int64_t tile;  ///< its first tile among those packed at the same time
};

/// A tile of queries.
struct Work {
  std::size_t entry;
  std::int64_t b, h;
  std::int32_t tile_q;
  std::int64_t cost;
};

class ForwardRun {
 public:
  ForwardRun(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem, const Means& means)
      : lowered_(lowered), call_(call), problem_(problem), means_(means), unit_(unit_for(means.isa, call.q.dtype)),
        kit_(kit(means.isa, unit_, call.q.dtype)), kernel_(forward_kernel(lowered, means.isa, unit_)),
        cut_(cut_for(kit_->tiling, problem)), qk_(problem.d, kit_->tiling, unit_), pv_(problem.dv, kit_->tiling, unit_),
        v_as_it_lies_(reads_values_as_they_lie()), slots_(lowered), results_(call, problem, means.isa),
        workers_(workers_for(1 << 20, means.executor)) {
    find_entries();
  }

  std::size_t workspace() {
    Workspace count;
    lay_out(count);
    return count.used();
  }

  void operator()() {
    const Memory own = means_.workspace.empty() ? Memory(workspace()) : Memory();
    Workspace memory = workspace_of(means_.workspace, own, workspace());
    lay_out(memory);
    Stages stages;
    std::optional<Visits> visits;
    timed(stages.visits, [&] { visits.emplace(problem_, cut_, lowered_, means_.executor); });
    visits_ = &*visits;
    for (std::size_t first = 0; first < entries_.size(); first += at_once_)
      run(first, std::min(entries_.size(), first + at_once_), stages);
    if (means_.stages) *means_.stages = stages;
  }

 private:
  // ---- What is packed, and where.

  void find_entries() {
    const std::int64_t kv_batch = problem_.kv_shared ? std::min<std::int64_t>(1, problem_.batch) : problem_.batch;
    for (std::int64_t b = 0; b < kv_batch; ++b)
      for (std::int64_t h = 0; h < problem_.kv_heads; ++h) {
        const Sequence seq = sequence(problem_, b);
        entries_.push_back({b, h, seq.kv_start, seq.kv_len, 0});
      }
    std::int64_t tiles = 0;
    for (const Entry& e : entries_) tiles += pieces(e.kv_len, cut_.tile_kv);
    // All at once where that takes up to a gigabyte, else as many entries as fit; at least one.
    constexpr std::int64_t most = std::int64_t{1} << 30;
    const std::int64_t size = std::max<std::int64_t>(1, tiles * (k_tile() + v_tile()) * 4);
    at_once_ = entries_.empty() ? 1
                                : std::max<std::size_t>(1, entries_.size() * static_cast<std::size_t>(most) /
                                                               static_cast<std::size_t>(std::max(size, most)));
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry* before = i % at_once_ ? &entries_[i - 1] : nullptr;
      entries_[i].tile = before ? before->tile + pieces(before->kv_len, cut_.tile_kv) : 0;
      tiles_ = std::max(tiles_, entries_[i].tile + pieces(entries_[i].kv_len, cut_.tile_kv));
    }
  }

  /// Units of a packed tile of keys, and of values.
  std::int64_t k_tile() const { return cut_.tile_kv * qk_.as_k; }
  std::int64_t v_tile() const { return v_as_it_lies_ ? 0 : pieces(cut_.tile_kv, per_unit(unit_)) * pv_.as_n; }
  /// Values lie panel by panel, each with all keys of the entry: a walk may begin at any key.
  std::int64_t v_panel(const Entry& e) const {
    return pieces(e.kv_len, cut_.tile_kv) * pieces(cut_.tile_kv, per_unit(unit_)) * kit_->tiling.nr;
  }
  std::int64_t element_size() const { return 4 / per_unit(unit_); }

  struct Scratch {
    std::uint32_t* q;  ///< units: [tile_q][qk.as_k]
    float* s;          ///< [tile_q][tile_kv]
    void* p;           ///< f32: in place of s
    float* o;          ///< [tile_q][pv.as_n]
    float *m, *l, *alpha, *ones;
    std::uint32_t *head, *row, *col;
    std::byte* rows;  ///< a panel of keys, or their values, before it is packed
  };

  void lay_out(Workspace& memory) {
    k_ = memory.take<std::uint32_t>(tiles_ * k_tile());
    v_ = memory.take<std::uint32_t>(tiles_ * v_tile());
    bad_ = memory.take<bool>(tiles_);
    scratch_.clear();
    const auto& parts = kernel_->parts;
    for (int w = 0; w < workers_; ++w) {
      Scratch s{};
      s.q = memory.take<std::uint32_t>(cut_.tile_q * qk_.as_k);
      s.s = memory.take<float>(cut_.tile_q * cut_.tile_kv);
      s.p = unit_ == Unit::f32 ? static_cast<void*>(s.s) : memory.take<std::uint16_t>(cut_.tile_q * cut_.tile_kv);
      s.o = memory.take<float>(cut_.tile_q * pv_.as_n);
      for (float** line : {&s.m, &s.l, &s.alpha, &s.ones}) *line = memory.take<float>(cut_.tile_q);
      s.head = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.head_fields()));
      s.row = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.row_fields()) * row_ld());
      s.col = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.col_fields()) * cut_.tile_kv);
      s.rows = memory.take<std::byte>(cut_.panel * 4 * std::max(qk_.as_k * per_unit(unit_), pv_.as_n));
      scratch_.push_back(s);
    }
  }
  /// Fields are computed for whole registers of rows.
  std::int64_t row_ld() const { return up_to(cut_.tile_q, 16); }

  // ---- One round: pack some entries, then do all that reads them.

  template <class F>
  static void timed(double& seconds, const F& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run(std::size_t first, std::size_t last, Stages& stages) {
    std::vector<std::pair<std::size_t, std::int64_t>> tiles;
    std::vector<Work> work;
    for (std::size_t e = first; e < last; ++e) {
      for (std::int64_t t = 0; t < pieces(entries_[e].kv_len, cut_.tile_kv); ++t) tiles.emplace_back(e, t);
      add_work(e, work);
    }
    const auto pack_one = [&](std::int64_t i, int worker) {
      const auto [e, t] = tiles[static_cast<std::size_t>(i)];
      pack(entries_[e], t, scratch_[static_cast<std::size_t>(worker)]);
    };
    timed(stages.pack, [&] { run_tasks(static_cast<std::int64_t>(tiles.size()), pack_one, means_.executor); });
    std::stable_sort(work.begin(), work.end(), [](const Work& a, const Work& b) { return a.cost > b.cost; });
    std::vector<std::int64_t> weights;
    for (const Work& w : work) weights.push_back(w.cost + 1);
    const auto attend_one = [&](std::int64_t i, int worker) {
      if (kit_->tiles_begin) kit_->tiles_begin();
      attend(work[static_cast<std::size_t>(i)], scratch_[static_cast<std::size_t>(worker)]);
      if (kit_->tiles_end) kit_->tiles_end();
    };
    timed(stages.attend, [&] {
      run_tasks(static_cast<std::int64_t>(work.size()), attend_one, means_.executor, means_.progress, weights);
    });
  }

  void add_work(std::size_t e, std::vector<Work>& work) const {
    const Entry& entry = entries_[e];
    const std::int64_t b_end = problem_.kv_shared ? problem_.batch : entry.kv_b + 1;
    for (std::int64_t b = entry.kv_b; b < b_end; ++b)
      for (std::int64_t h = entry.kv_head * problem_.group; h < (entry.kv_head + 1) * problem_.group; ++h)
        for (std::int32_t t = 0; t < pieces(sequence(problem_, b).q_len, cut_.tile_q); ++t)
          work.push_back({e, b, h, t, visits_->cost(b, h, t)});
  }

  void pack(const Entry& entry, std::int64_t tile, const Scratch& s) {
    const std::int64_t begin = tile * cut_.tile_kv, end = std::min<std::int64_t>(begin + cut_.tile_kv, entry.kv_len);
    bad_[entry.tile + tile] = false;
    // A panel at a time: what is read is still in the first cache when it is packed.
    for (std::int64_t first = begin; first < end; first += cut_.panel)
      pack_panel(entry, tile, first, std::min<std::int64_t>(cut_.panel, end - first), s);
  }

  /// As many keys as a panel has, or the last ones of the entry.
  void pack_panel(const Entry& entry, std::int64_t tile, std::int64_t first, std::int64_t rows, const Scratch& s) {
    const auto load = [&](const Tensor& t, std::int64_t columns, std::int64_t padded) {
      return load_rows(*kit_, t, lies(t, entry), first, rows, columns, padded, 1, s.rows, padded);
    };
    load(call_.k, qk_.columns, qk_.as_k * per_unit(unit_));
    const PackColumns k{.from = s.rows,
                        .from_row = qk_.as_k,
                        .rows = rows,
                        .k = qk_.as_k,
                        .into = k_ + entry.tile * k_tile() + first * qk_.as_k,
                        .panel = qk_.as_k * kit_->tiling.nr};
    kit_->pack_columns(&k);

    if (load(call_.v, pv_.columns, pv_.as_n)) bad_[entry.tile + tile] = true;
    if (v_as_it_lies_) return;
    // Whole panels are multiplied: rows that are not there have p = 0, and must not hold what 0 times is not 0.
    const std::int64_t row_bytes = pv_.as_n * element_size();
    std::memset(s.rows + rows * row_bytes, 0, static_cast<std::size_t>((cut_.panel - rows) * row_bytes));
    const PackRows v{.from = s.rows,
                     .from_row = pv_.as_n,
                     .rows = cut_.panel,
                     .columns = pv_.as_n,
                     .into = v_ + entry.tile * v_tile() + first / per_unit(unit_) * kit_->tiling.nr,
                     .panel = v_panel(entry)};
    kit_->pack_rows(&v);
  }

  MatrixLayout lies(const Tensor& t, const Entry& entry) const {
    return matrix(t, problem_.kv.layout, entry.kv_b, entry.kv_head, entry.kv_start);
  }

  /// Rows of f32 are panels of columns already. Where they are a page apart or more, each key would be another page for
  /// the processor to find; up to there, products are as fast as of panels (Zen 4), and packing is spared.
  bool reads_values_as_they_lie() const {
    const MatrixLayout at = lies(call_.v, Entry{});
    constexpr std::int64_t page = 4096 / sizeof(float);
    return call_.v.dtype == DType::f32 && at.column == 1 && at.row > 0 && at.row <= page && pv_.columns == pv_.as_n;
  }

  // ---- One tile of queries.

  struct Tile {
    const Work& work;
    const Entry& entry;
    const Scratch& s;
    Sequence seq;
    Frame frame;
    std::int64_t first, rows;
    std::int32_t groups;
  };

  void attend(const Work& work, const Scratch& s) {
    const Sequence seq = sequence(problem_, work.b);
    Tile tile{.work = work,
              .entry = entries_[work.entry],
              .s = s,
              .seq = seq,
              .frame = slots_.frame(problem_, seq, work.h),
              .first = std::int64_t{work.tile_q} * cut_.tile_q,
              .rows = 0,
              .groups = 0};
    tile.rows = std::min<std::int64_t>(cut_.tile_q, seq.q_len - tile.first);
    tile.groups = static_cast<std::int32_t>(pieces(tile.rows, cut_.group));
    tile.frame.origin = position(tile, 0);
    tile.frame.head = s.head;
    kernel_->head_fields(&tile.frame, s.head);
    kernel_->row_fields(&tile.frame, position(tile, 0), static_cast<std::int32_t>(row_ld()), s.row, row_ld());
    load_queries(tile);
    std::fill_n(s.m, cut_.tile_q, -std::numeric_limits<float>::infinity());
    std::fill_n(s.l, cut_.tile_q, 0.0f);
    std::fill_n(s.ones, cut_.tile_q, 1.0f);
    std::fill_n(s.o, cut_.tile_q * pv_.as_n, 0.0f);

    const bool two_passes = !kernel_->parts.prob_linear;
    const auto [begin, end] = visits_->panels(work.b, work.h, work.tile_q);
    const auto walk = [&, first = begin, last = end](Pass pass) {
      for (std::int32_t panel = first; panel < last; panel += cut_.panels()) visit(tile, panel, pass);
    };
    walk(two_passes ? Pass::Statistics : Pass::Online);
    if (two_passes) {
      const std::vector<Finished> rows = finish_rows(tile);
      for (std::int64_t r = 0; r < tile.rows; ++r)
        s.m[r] = static_cast<float>(rows[static_cast<std::size_t>(r)].lse_of_core);
      walk(Pass::Known);
      store(tile, rows);
    } else {
      store(tile, finish_rows(tile));
    }
  }

  std::int32_t position(const Tile& tile, std::int64_t row) const {
    return static_cast<std::int32_t>(problem_.q_offset + tile.first + row);
  }

  void load_queries(const Tile& tile) {
    const MatrixLayout from = matrix(call_.q, problem_.q.layout, tile.work.b, tile.work.h, tile.seq.q_start);
    const std::int64_t row = qk_.as_k * per_unit(unit_), row_bytes = qk_.as_k * 4;
    load_rows(*kit_, call_.q, from, tile.first, tile.rows, qk_.columns, row, static_cast<float>(problem_.scale),
              tile.s.q, row);
    std::memset(reinterpret_cast<std::byte*>(tile.s.q) + tile.rows * row_bytes, 0,
                static_cast<std::size_t>((tile.groups * cut_.group - tile.rows) * row_bytes));
  }

  static constexpr std::size_t most_groups = 64;  ///< 256 rows, by the portable kernels' 4
  enum class Pass : std::uint8_t { Online, Statistics, Known };

  /// All groups against one window of keys; together where they need the same of it.
  void visit(const Tile& tile, std::int32_t panel, Pass pass) {
    const auto of = [&](std::int32_t g) {
      return visits_->visit(tile.work.b, tile.work.h, tile.work.tile_q, g, panel);
    };
    bool fields = kernel_->parts.col_fields() == 0;
    std::array<Visit, most_groups> visits;
    for (std::int32_t g = 0; g < tile.groups; ++g) visits[static_cast<std::size_t>(g)] = of(g);
    const auto alike = [&](const Visit& a, const Visit& b) {
      return a.first == b.first && a.last == b.last && a.all == b.all && needs_left(a) == needs_left(b) &&
             needs_right(a) == needs_right(b);
    };
    for (std::size_t g = 0, groups = static_cast<std::size_t>(tile.groups); g < groups;) {
      std::size_t next = g + 1;
      while (next < groups && alike(visits[next], visits[g])) ++next;
      if (visits[g].first < visits[g].last) {
        if (!fields) kernel_->col_fields(&tile.frame, panel * cut_.panel, cut_.tile_kv, tile.s.col, cut_.tile_kv);
        fields = true;
        block(tile, panel * cut_.panel, static_cast<std::int32_t>(g), std::span(visits).subspan(g, next - g), pass);
      }
      g = next;
    }
  }

  // Where a product can take half a panel, it leaves out a half of the first or the last one that nothing is kept of.
  bool needs_left(const Visit& v) const { return !kit_->half_product || v.begin - v.first < cut_.panel / 2; }
  bool needs_right(const Visit& v) const { return !kit_->half_product || v.last - v.end < cut_.panel / 2; }

  /// q . k of some groups, all alike, but for the halves that they do not need: these keep whatever was there, and are
  /// removed by the mask.
  void score(const Tile& tile, std::int32_t kv, std::int64_t row, std::int32_t groups, const Visit& v) const {
    const Scratch& s = tile.s;
    const std::int64_t nr = cut_.panel;
    const auto multiply = [&](ProductFn* product, std::int64_t column, std::int64_t panels) {
      const Product qk{.a = s.q + row * qk_.as_k,
                       .a_row = qk_.as_k,
                       .b = k_ + tile.entry.tile * k_tile() + (kv + column / nr * nr) * qk_.as_k + column % nr,
                       .b_k = nr,
                       .b_panel = nr * qk_.as_k,
                       .c = s.s + row * cut_.tile_kv + column,
                       .c_row = cut_.tile_kv,
                       .groups = groups,
                       .panels = panels,
                       .k = qk_.as_k,
                       .keep = nullptr};
      product(&qk);
    };
    std::int64_t first = v.first, last = v.last;
    if (!needs_left(v)) {
      multiply(kit_->half_product, first + nr / 2, 1);
      first += nr;
    }
    if (!needs_right(v)) last -= nr;
    if (first < last) multiply(kit_->product, first, (last - first) / nr);
    if (!needs_right(v)) multiply(kit_->half_product, last, 1);
  }

  /// Some groups, all alike, against the window of keys that begins at `kv`.
  void block(const Tile& tile, std::int32_t kv, std::int32_t group, std::span<const Visit> visits, Pass pass) {
    const Scratch& s = tile.s;
    const Visit& v = visits[0];
    const auto groups = static_cast<std::int32_t>(visits.size());
    const std::int64_t row = std::int64_t{group} * cut_.group;
    score(tile, kv, row, groups, v);

    const bool all = v.all && kv + v.last <= tile.seq.kv_len;
    const Attend softmax{.frame = &tile.frame,
                         .s = s.s + row * cut_.tile_kv,
                         .s_row = cut_.tile_kv,
                         .p = p_at(s, row, 0),
                         .p_row = cut_.tile_kv,
                         .rows = groups * cut_.group,
                         .q = position(tile, row),
                         .kv = kv,
                         .first = v.first,
                         .last = v.last,
                         .kv_end = tile.frame.kv_len,
                         .scale = static_cast<float>(problem_.scale),
                         .row = s.row + row,
                         .row_ld = row_ld(),
                         .col = s.col,
                         .col_ld = cut_.tile_kv,
                         .m = s.m + row,
                         .l = s.l + row,
                         .alpha = s.alpha + row};
    (pass == Pass::Known ? kernel_->attend_known : all ? kernel_->attend_all : kernel_->attend_some)(&softmax);
    if (pass == Pass::Statistics) return;

    // Where no pair is removed and p is the softmax's own, an infinite value belongs into the result.
    const bool guard = !(all && pass == Pass::Online && !kernel_->parts.has_prob);
    for (std::size_t g = 0; g < visits.size();) {
      std::size_t next = g + 1;
      while (next < visits.size() && visits[next] == visits[g]) ++next;
      weigh(tile, kv, group + static_cast<std::int32_t>(g), static_cast<std::int32_t>(next - g), visits[g], pass,
            guard);
      g = next;
    }
  }

  void* p_at(const Scratch& s, std::int64_t row, std::int64_t column) const {
    return static_cast<std::byte*>(s.p) + (row * cut_.tile_kv + column) * element_size();
  }

  /// Values as products take them.
  struct Values {
    const void* data;
    std::int64_t key, panel;  ///< units from one key, or panel of columns, to the next
  };

  Values values_from(const Entry& entry, std::int64_t key) const {
    if (v_as_it_lies_) {
      const MatrixLayout at = lies(call_.v, entry);
      return {element(call_.v, at.origin + key * at.row), at.row, cut_.panel};
    }
    return {v_ + entry.tile * v_tile() + key / per_unit(unit_) * cut_.panel, cut_.panel, v_panel(entry)};
  }

  /// The values of the keys that some groups keep, by their probabilities.
  void weigh(const Tile& tile, std::int32_t kv, std::int32_t group, std::int32_t groups, const Visit& v, Pass pass,
             bool guard) {
    const Scratch& s = tile.s;
    const std::int64_t row = std::int64_t{group} * cut_.group, nr = cut_.panel;
    const std::int64_t step = per_unit(unit_) * kit_->tiling.k;
    const std::int64_t begin = v.begin / step * step, end = up_to(v.end, step), first = kv + begin;
    const Values values = values_from(tile.entry, first);
    const Product pv{.a = p_at(s, row, begin),
                     .a_row = cut_.tile_kv / per_unit(unit_),
                     .b = values.data,
                     .b_k = values.key,
                     .b_panel = values.panel,
                     .c = s.o + row * pv_.as_n,
                     .c_row = pv_.as_n,
                     .groups = groups,
                     .panels = pv_.as_n / nr,
                     .k = (end - begin) / per_unit(unit_),
                     .keep = pass == Pass::Known ? s.ones : s.alpha + row};
    const bool* bad = bad_ + tile.entry.tile;
    const bool is_bad = bad[first / cut_.tile_kv] || bad[(kv + end - 1) / cut_.tile_kv];
    (guard && is_bad ? kit_->guarded_product : kit_->product)(&pv);
  }

  // ---- From sums to results.

  std::vector<Finished> finish_rows(const Tile& tile) const {
    const auto& parts = kernel_->parts;
    const double sink = sink_at(lowered_, tile.frame);
    const auto* terms = parts.has_row_term ? reinterpret_cast<const float*>(tile.s.row) +
                                                 static_cast<std::int64_t>(parts.row_fields() - 1) * row_ld()
                                           : nullptr;
    std::vector<Finished> out;
    out.reserve(static_cast<std::size_t>(tile.rows));
    for (std::int64_t r = 0; r < tile.rows; ++r)
      out.push_back(finish(double{tile.s.m[r]}, double{tile.s.l[r]}, sink, terms ? double{terms[r]} : 0));
    return out;
  }

  void store(const Tile& tile, const std::vector<Finished>& rows) const {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const Finished& row = rows[static_cast<std::size_t>(r)];
      // Known probabilities are normalised already, and a prob mod may make numbers of NaN.
      tile.s.alpha[r] = kernel_->parts.prob_linear ? static_cast<float>(row.factor) : 1;
      if (row.empty()) std::fill_n(tile.s.o + r * pv_.as_n, pv_.as_n, 0.0f);
    }
    results_.store(tile.seq,
                   {.h = tile.work.h,
                    .first = tile.first,
                    .count = tile.rows,
                    .o = tile.s.o,
                    .o_row = pv_.as_n,
                    .factor = tile.s.alpha},
                   rows);
  }

  const compiler::LoweredMod& lowered_;
  const Forward& call_;
  const Problem& problem_;
  const Means& means_;
  Unit unit_;
  std::shared_ptr<const Kit> kit_;
  std::shared_ptr<const ForwardKernel> kernel_;
  Cut cut_;
  Widths qk_, pv_;
  bool v_as_it_lies_;  ///< not packed
  Slots slots_;
  Results results_;
  int workers_;
  std::vector<Entry> entries_;
  std::size_t at_once_ = 1;
  std::int64_t tiles_ = 0;  ///< packed at the same time, at most
  std::uint32_t *k_ = nullptr, *v_ = nullptr;
  bool* bad_ = nullptr;  ///< by packed tile: are any of its values infinite or NaN?
  std::vector<Scratch> scratch_;
  const Visits* visits_ = nullptr;
};

}  // namespace

std::size_t forward_workspace(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem,
                              const Means& means) {
  return decodes(lowered, call, problem) ? decode_workspace(lowered, call, problem, means)
                                         : ForwardRun(lowered, call, problem, means).workspace();
}

void forward(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem, const Means& means) {
  if (decodes(lowered, call, problem)) return decode(lowered, call, problem, means);
  ForwardRun run(lowered, call, problem, means);
  if (means.used) *means.used = {std::string(name_of(means.isa)), "tiles", run.workspace()};
  run();
}

}  // namespace attune::runtime::cpu
