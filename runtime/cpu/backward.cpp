// runtime/cpu/backward.cpp — flash attention backwards: every tile of keys walks over the queries that read it
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include "runtime/cpu/captured.h"
#include "runtime/cpu/query_tiles.h"
#include "runtime/oracle.h"
#include "runtime/tensor.h"

namespace attune::runtime::cpu {
namespace {

using namespace codegen;
using compiler::Problem;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// What a worker's prepared tiles of queries, and its sums of dk and dv, may take each.
constexpr std::int64_t most_prepared = 1 << 23, most_sums = 1 << 23;

/// Results of a forward of ours, shaped like the call's.
Tensor results(const Tensor& like, DType type, void* memory) {
  return {memory, type, std::span(like.shape).first(static_cast<std::size_t>(like.rank))};
}

float dot(const float* a, const float* b, std::int64_t n) {
  constexpr std::int64_t lanes = 16;
  std::array<float, lanes> sums{};
  for (std::int64_t i = 0; i + lanes <= n; i += lanes)
    for (std::size_t j = 0; j < lanes; ++j) sums[j] += a[static_cast<std::size_t>(i) + j] * b[static_cast<std::size_t>(i) + j];
  float sum = 0;
  for (const float s : sums) sum += s;
  for (std::int64_t i = n / lanes * lanes; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// What a walk over all pairs is for: the sums of p dp, where they are not dO . O, or the gradients.
enum class Pass : std::uint8_t { Sums, Gradients };

class BackwardRun {
 public:
  BackwardRun(const Compiled& compiled, const Backward& call, const Problem& problem, const Means& means)
      : compiled_(compiled), call_(call), problem_(problem), means_(means),
        unit_(call.grad_o.dtype == call.q.dtype ? unit_for(means.isa, call.q.dtype) : Unit::f32),
        kit_(kit(means.isa, unit_, call.q.dtype)),
        kernel_(backward_kernel(compiled.traced.mod, wanted(compiled.traced, call), means.isa, unit_)),
        sizes_(problem, kit_->tiling, unit_), inputs_(means.isa, unit_, call.q.dtype),
        grad_o_(means.isa, unit_, call.grad_o.dtype), grad_o_f32_(means.isa, Unit::f32, call.grad_o.dtype),
        o_f32_(means.isa, Unit::f32, call.o.given() ? call.o.dtype : DType::f32),
        dq_rows_(means.isa, Unit::f32, call.dq.dtype), dk_rows_(means.isa, Unit::f32, call.dk.dtype),
        dv_rows_(means.isa, Unit::f32, call.dv.dtype),
        plan_(problem, sizes_.cut, sizes_.d.as_n * std::int64_t{sizeof(float)}),
        captured_(means.isa, compiled.traced, call, kernel_->parts, problem, plan_), slots_(compiled.traced),
        workers_(workers_for(1 << 20, means.executor)) {
    Workspace one;
    lay_out_query_tile(one, sizes_, row_fields());
    const std::int64_t q_tiles = std::max<std::int64_t>(1, pieces(problem.q_len, sizes_.cut.tile_q));
    prepared_ = std::clamp<std::int64_t>(most_prepared / static_cast<std::int64_t>(one.used()), 1, q_tiles);
    strip_ = std::max<std::int64_t>(1, most_sums / ((k_sums() + v_sums()) * std::int64_t{sizeof(float)}));
  }

  std::size_t workspace() {
    Workspace count;
    lay_out(count);
    return count.used();
  }

  void operator()() {
    const auto start = std::chrono::steady_clock::now();
    const Memory own = means_.workspace.empty() ? Memory(workspace()) : Memory();
    Workspace memory = workspace_of(means_.workspace, own, workspace());
    lay_out(memory);
    if (!call_.o.given()) run_forward();
    for (const Scratch& s : scratch_)
      for (const QueryTile& tile : s.queries) clear_margins(tile, sizes_);
    const Visits visits(problem_, sizes_.cut, compiled_.traced, compiled_.cover, means_.executor);
    visits_ = &visits;
    kernel_->parts.prob_linear ? find_deltas() : sum_deltas();
    captured_.clear(means_.executor);
    walk(Pass::Gradients);
    store_dq();
    store_parts();
    captured_.store(sinks(), means_.executor);
    if (means_.stages)
      *means_.stages = {.attend = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  }

 private:
  // ---- Memory.

  struct Scratch {
    std::byte* rows;  ///< a tile of keys or values before it is packed
    std::uint32_t *k_columns, *k_rows, *v_columns;
    bool bad_k;        ///< does the tile hold an infinity or a NaN?
    float *s, *dp;     ///< [tile_q][score_row]
    void *p, *ds;      ///< f32: in place of s and dp
    std::uint32_t *p_panels, *ds_panels;  ///< f32: p and ds themselves
    float *dk, *dv;    ///< transposed sums of some tiles
    std::uint32_t *head, *col;
    std::vector<QueryTile> queries;
  };

  std::int64_t row_fields() const { return static_cast<std::int64_t>(kernel_->parts.row_fields()); }
  /// Floats of a tile's sums.
  std::int64_t k_sums() const { return sizes_.rows_of_sums(sizes_.d) * sizes_.score_row(); }
  std::int64_t v_sums() const { return sizes_.rows_of_sums(sizes_.dv) * sizes_.score_row(); }
  std::int64_t panel_units() const { return sizes_.cut.tile_q / sizes_.per_unit() * sizes_.tiling.nr; }
  std::int64_t panels() const { return sizes_.cut.tile_kv / sizes_.tiling.nr; }
  std::int64_t k_row() const { return std::max(sizes_.row(sizes_.d), sizes_.d.as_n); }

  Forward forward_call() const {
    return {.q = call_.q, .k = call_.k, .v = call_.v, .o = o_, .lse = lse_, .cu_seqlens_q = call_.cu_seqlens_q,
            .cu_seqlens_kv = call_.cu_seqlens_kv, .q_offset = call_.q_offset};
  }
  Means forward_means() const {
    return {.isa = means_.isa, .executor = means_.executor, .workspace = forward_memory_};
  }

  /// A forward of ours works in the same memory before the rest does.
  void lay_out(Workspace& memory) {
    o_ = call_.o;
    lse_ = call_.lse;
    std::size_t needed = 0;
    if (!call_.o.given()) {
      const auto& g = call_.grad_o;
      const std::int64_t rows = g.size() / problem_.dv;
      o_ = results(g, DType::f32, memory.take<float>(g.size()));
      auto* lse = memory.take<double>(rows);
      lse_ = problem_.packed ? Tensor(lse, DType::f64, {g.shape[1], g.shape[0]})
                             : Tensor(lse, DType::f64, {g.shape[0], g.shape[1], g.shape[2]});
      needed = forward_workspace(compiled_, forward_call(), problem_, forward_means());
    }
    Workspace count;
    lay_out_rest(count);
    const std::size_t size = std::max(needed, count.used());
    auto* rest = memory.take<std::byte>(static_cast<std::int64_t>(size));
    if (!rest) return;
    forward_memory_ = {rest, needed};
    Workspace real({rest, size});
    lay_out_rest(real);
  }

  void lay_out_rest(Workspace& memory) {
    delta_ = memory.take<float>(plan_.rows());
    if (!kernel_->parts.prob_linear) delta_sums_ = memory.take<float>(plan_.chunks() * plan_.rows());
    if (call_.dq.given()) dq_ = memory.take<float>(plan_.chunks() * plan_.rows() * sizes_.d.as_n);
    if (plan_.parts() > 1) {
      if (call_.dk.given()) dk_ = memory.take<float>(plan_.parts() * plan_.tiles() * k_sums());
      if (call_.dv.given()) dv_ = memory.take<float>(plan_.parts() * plan_.tiles() * v_sums());
    }
    captured_.lay_out(memory);
    scratch_.clear();
    for (int w = 0; w < workers_; ++w) scratch_.push_back(lay_out_scratch(memory));
  }

  Scratch lay_out_scratch(Workspace& memory) const {
    const Cut& cut = sizes_.cut;
    Scratch s{};
    s.rows = memory.take<std::byte>(cut.tile_kv * 4 * std::max(k_row(), sizes_.row(sizes_.dv)));
    s.k_columns = memory.take<std::uint32_t>(cut.tile_kv * sizes_.d.as_k);
    s.k_rows = memory.take<std::uint32_t>(cut.tile_kv / sizes_.per_unit() * sizes_.d.as_n);
    s.v_columns = memory.take<std::uint32_t>(cut.tile_kv * sizes_.dv.as_k);
    const std::int64_t scores = cut.tile_q * sizes_.score_row();
    s.s = memory.take<float>(scores);
    s.dp = memory.take<float>(scores);
    s.p = s.s;
    s.ds = s.dp;
    if (unit_ == Unit::bf16) {
      s.p = memory.take<bf16>(scores);
      s.ds = memory.take<bf16>(scores);
      s.p_panels = memory.take<std::uint32_t>(panels() * panel_units());
      s.ds_panels = memory.take<std::uint32_t>(panels() * panel_units());
    }
    if (plan_.parts() == 1) {
      s.dk = memory.take<float>(strip_ * k_sums());
      s.dv = memory.take<float>(strip_ * v_sums());
    }
    s.head = memory.take<std::uint32_t>(static_cast<std::int64_t>(kernel_->parts.head_fields()));
    s.col = memory.take<std::uint32_t>(static_cast<std::int64_t>(kernel_->parts.col_fields()) * cut.tile_kv);
    for (std::int64_t i = 0; i < prepared_; ++i)
      s.queries.push_back(lay_out_query_tile(memory, sizes_, row_fields()));
    return s;
  }

  // ---- What is known of rows before any pair is looked at.

  void run_forward() { forward(compiled_, forward_call(), problem_, forward_means()); }

  /// Calls body(b, h, first, count, worker) for all rows of all batch entries and heads, a tile at a time.
  template <class Body>
  void each_tile_of_rows(const Body& body) {
    struct Rows {
      std::int64_t b, h, first, count;
    };
    std::vector<Rows> all;
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      const std::int64_t length = sequence(problem_, b).q_len;
      for (std::int64_t h = 0; h < problem_.q_heads; ++h)
        for (std::int64_t r = 0; r < length; r += sizes_.cut.tile_q)
          all.push_back({b, h, r, std::min<std::int64_t>(sizes_.cut.tile_q, length - r)});
    }
    // A few dozen tiles are worth waking a thread.
    constexpr std::int64_t at_once = 16;
    const auto count = static_cast<std::int64_t>(all.size());
    run_tasks(
        pieces(count, at_once),
        [&](std::int64_t task, int worker) {
          for (std::int64_t i = task * at_once; i < std::min(count, (task + 1) * at_once); ++i) {
            const Rows& r = all[static_cast<std::size_t>(i)];
            body(r.b, r.h, r.first, r.count, worker);
          }
        },
        means_.executor);
  }

  /// Where prob is linear in p, the sum of p dp is that of p' dO . v: dO . O.
  void find_deltas() {
    const std::int64_t width = up_to(problem_.dv, 16);
    each_tile_of_rows([&](std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, int worker) {
      const Scratch& s = scratch_[static_cast<std::size_t>(worker)];
      const std::int64_t start = sequence(problem_, b).q_start;
      // Rows of scores are free at this time, a few of them for each of o and grad_o.
      const std::int64_t at_once = std::max<std::int64_t>(1, sizes_.cut.tile_q * sizes_.score_row() / width);
      for (std::int64_t r = 0; r < count; r += at_once) {
        const std::int64_t rows = std::min(at_once, count - r);
        const auto load = [&](const TensorRows& from, const Tensor& t, float* into) {
          from.load(t, shifted(matrix(t, problem_.packed, b, h, start), first + r),
                    {.from = nullptr, .row = 0, .column = 0, .rows = rows, .columns = problem_.dv, .padded = width,
                     .factor = 1, .into = into, .into_row = width});
        };
        load(o_f32_, o_, s.s);
        load(grad_o_f32_, call_.grad_o, s.dp);
        float* to = delta_ + plan_.first_row(b, h) + first + r;
        for (std::int64_t i = 0; i < rows; ++i) to[i] = dot(s.s + i * width, s.dp + i * width, problem_.dv);
      }
    });
  }

  void sum_deltas() {
    walk(Pass::Sums);
    each_tile_of_rows([&](std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, int) {
      for (std::int64_t r = plan_.first_row(b, h) + first; count-- > 0; ++r) {
        delta_[r] = 0;
        for (std::int64_t chunk = 0; chunk < chunks(b); ++chunk) delta_[r] += delta_sums_[chunk * plan_.rows() + r];
      }
    });
  }

  static Strided shifted(Strided at, std::int64_t rows) {
    at.origin += rows * at.row;
    return at;
  }
  std::int64_t chunks(std::int64_t b) const {
    return plan_.chunks(pieces(sequence(problem_, b).kv_len, sizes_.cut.tile_kv));
  }

  // ---- The walk: chains of tasks, a task's strips of tiles, the stretches of queries that read them.

  void walk(Pass pass) {
    struct Chain {
      std::size_t index;
      std::int64_t cost = 1;
    };
    std::vector<Chain> chains;
    for (std::size_t i = 0; i < captured_.chains().size(); ++i) {
      chains.push_back({i});
      for (const std::size_t task : captured_.chains()[i]) chains.back().cost += cost(plan_.tasks()[task]);
    }
    std::stable_sort(chains.begin(), chains.end(), [](const Chain& a, const Chain& b) { return a.cost > b.cost; });
    std::vector<std::int64_t> weights;
    for (const Chain& c : chains) weights.push_back(c.cost);
    const auto one = [&](std::int64_t i, int worker) {
      const std::size_t chain = chains[static_cast<std::size_t>(i)].index;
      const std::vector<float*> gradients = captured_.gradients(chain);
      if (kit_->tiles_begin) kit_->tiles_begin();
      for (const std::size_t task : captured_.chains()[chain])
        run(plan_.tasks()[task], scratch_[static_cast<std::size_t>(worker)], pass, gradients.data());
      if (kit_->tiles_end) kit_->tiles_end();
    };
    run_tasks(static_cast<std::int64_t>(chains.size()), one, means_.executor,
              pass == Pass::Gradients ? means_.progress : Progress{}, weights);
  }

  std::int64_t cost(const BackwardTask& task) const {
    std::int64_t panels = 0;
    for (const Reader& reader : plan_.readers(task))
      for (std::int32_t t = 0; t < q_tiles(reader.b); ++t) panels += visits_->cost(reader.b, reader.h, t);
    return panels / plan_.chunks(plan_.entries()[task.entry].tiles);
  }
  std::int32_t q_tiles(std::int64_t b) const {
    return static_cast<std::int32_t>(pieces(sequence(problem_, b).q_len, sizes_.cut.tile_q));
  }

  /// Neighbouring tiles of queries of one reader, as many as stay prepared.
  struct Stretch {
    Reader reader;
    std::int32_t first, last;
  };

  /// A task at work.
  struct Work {
    const BackwardTask& task;
    const KVEntry& entry;
    Scratch& s;
    Pass pass;
    float* const* gradients;
    const Stretch* stretch = nullptr;
    std::int32_t tile = 0;  ///< of keys
    float *dk = nullptr, *dv = nullptr;  ///< the tile's sums
    std::vector<Visit> visits{};         ///< by group, of the tile of queries at hand
  };

  void run(const BackwardTask& task, Scratch& s, Pass pass, float* const* gradients) {
    Work work{.task = task, .entry = plan_.entries()[task.entry], .s = s, .pass = pass, .gradients = gradients};
    std::vector<Stretch> stretches;
    for (const Reader& reader : plan_.readers(task)) {
      clear_rows(work, reader);
      const auto step = static_cast<std::int32_t>(prepared_);
      for (std::int32_t t = 0; t < q_tiles(reader.b); t += step)
        stretches.push_back({reader, t, std::min(q_tiles(reader.b), t + step)});
    }
    const std::vector<std::int32_t> tiles = plan_.tiles(task);
    // Queries that stay prepared all the time need no strip of tiles that share them.
    const auto strip = static_cast<std::size_t>(stretches.size() > 1 ? strip_ : 1);
    for (std::size_t i = 0; i < tiles.size(); i += strip) {
      const auto here = std::span(tiles).subspan(i, std::min(strip, tiles.size() - i));
      for (std::size_t j = 0; j < here.size(); ++j) clear_sums(sums_of(work, here[j], j));
      for (const Stretch& stretch : stretches) {
        begin(work, stretch);
        for (std::size_t j = 0; j < here.size(); ++j) {
          sums_of(work, here[j], j);
          meet(work);
        }
      }
      if (pass == Pass::Gradients && plan_.parts() == 1)
        for (std::size_t j = 0; j < here.size(); ++j) store_tile(sums_of(work, here[j], j));
    }
  }

  /// Makes a tile of keys, the j-th of its strip, the one at hand.
  const Work& sums_of(Work& work, std::int32_t tile, std::size_t j) const {
    work.tile = tile;
    const bool own = plan_.parts() > 1;
    const std::int64_t at = own ? work.task.part * plan_.tiles() + work.entry.first_tile + tile
                                : static_cast<std::int64_t>(j);
    work.dk = (own ? dk_ : work.s.dk) + at * k_sums();
    work.dv = (own ? dv_ : work.s.dv) + at * v_sums();
    return work;
  }

  void clear_sums(const Work& work) const {
    if (work.pass == Pass::Sums) return;
    if (call_.dk.given()) std::fill_n(work.dk, k_sums(), 0.0f);
    if (call_.dv.given()) std::fill_n(work.dv, v_sums(), 0.0f);
  }

  void clear_rows(const Work& work, const Reader& reader) const {
    const std::int64_t rows = plan_.padded_rows(reader.b);
    if (work.pass == Pass::Sums) {
      std::fill_n(delta_sums_ + row_at(work, reader), rows, 0.0f);
    } else if (call_.dq.given()) {
      std::fill_n(dq_ + row_at(work, reader) * sizes_.d.as_n, rows * sizes_.d.as_n, 0.0f);
    }
  }
  /// Of the chunk's own rows, the reader's first.
  std::int64_t row_at(const Work& work, const Reader& reader) const {
    return work.task.chunk * plan_.rows() + plan_.first_row(reader.b, reader.h);
  }

  void begin(Work& work, const Stretch& stretch) const {
    if (work.stretch == &stretch) return;
    work.stretch = &stretch;
    for (QueryTile& tile : work.s.queries) tile.ready = false;
    const Frame frame = slots_.frame(problem_, sequence(problem_, stretch.reader.b), stretch.reader.h);
    kernel_->head_fields(&frame, work.s.head);
  }

  /// The tile of keys at hand against the stretch at hand.
  void meet(Work& work) const {
    const auto [b, h] = work.stretch->reader;
    bool packed = false;
    for (std::int32_t t = work.stretch->first; t < work.stretch->last; ++t) {
      const auto [begin, end] = visits_->panels(b, h, t);
      const std::int32_t panel = work.tile * sizes_.cut.panels();
      if (panel >= end || panel + sizes_.cut.panels() <= begin) continue;
      work.visits.clear();
      bool any = false;
      for (std::int32_t g = 0; g < sizes_.cut.groups(); ++g) {
        work.visits.push_back(visits_->visit(b, h, t, g, panel));
        any = any || work.visits.back().first < work.visits.back().last;
      }
      if (!any) continue;
      if (!packed) pack(work);
      packed = true;
      QueryTile& queries = work.s.queries[static_cast<std::size_t>(t - work.stretch->first)];
      if (!queries.ready) prepare(work, t, queries);
      meet(work, queries);
    }
  }

  void pack(const Work& work) const {
    Scratch& s = work.s;
    const std::int64_t first = std::int64_t{work.tile} * sizes_.cut.tile_kv;
    const std::int64_t rows = std::min<std::int64_t>(sizes_.cut.tile_kv, work.entry.length - first);
    const auto load = [&](const Tensor& t, std::int64_t columns, std::int64_t row) {
      const Strided at = matrix(t, problem_.packed, work.entry.b, work.entry.head, work.entry.start);
      return inputs_.load(t, shifted(at, first),
                          {.from = nullptr, .row = 0, .column = 0, .rows = rows, .columns = columns, .padded = row,
                           .factor = 1, .into = s.rows, .into_row = row});
    };
    const auto pack_columns = [&](const Widths& w, std::int64_t row, std::uint32_t* into) {
      const PackColumns columns{.from = s.rows, .from_row = row / sizes_.per_unit(), .rows = rows, .k = w.as_k,
                                .into = into, .panel = w.as_k * sizes_.tiling.nr};
      kit_->pack_columns(&columns);
      // Whole tiles are multiplied, and panels beyond the end may hold anything.
      const std::int64_t filled = up_to(rows, sizes_.tiling.nr) * w.as_k;
      std::fill(into + filled, into + sizes_.cut.tile_kv * w.as_k, 0u);
    };
    load(call_.v, sizes_.dv.columns, sizes_.row(sizes_.dv));
    pack_columns(sizes_.dv, sizes_.row(sizes_.dv), s.v_columns);

    s.bad_k = load(call_.k, sizes_.d.columns, k_row());
    pack_columns(sizes_.d, k_row(), s.k_columns);
    const std::int64_t bytes = k_row() * sizes_.element_size();
    std::memset(s.rows + rows * bytes, 0, static_cast<std::size_t>((sizes_.cut.tile_kv - rows) * bytes));
    const PackRows k{.from = s.rows, .from_row = k_row(), .rows = sizes_.cut.tile_kv, .columns = sizes_.d.as_n,
                     .into = s.k_rows, .panel = sizes_.cut.tile_kv / sizes_.per_unit() * sizes_.tiling.nr};
    kit_->pack_rows(&k);
  }

  void prepare(const Work& work, std::int32_t t, QueryTile& tile) const {
    const auto [b, h] = work.stretch->reader;
    const Sequence seq = sequence(problem_, b);
    tile.first = std::int64_t{t} * sizes_.cut.tile_q;
    tile.rows = std::min<std::int64_t>(sizes_.cut.tile_q, seq.q_len - tile.first);
    tile.groups = static_cast<std::int32_t>(pieces(tile.rows, sizes_.cut.group));
    tile.frame = slots_.frame(problem_, seq, h);
    tile.frame.origin = static_cast<std::int32_t>(problem_.q_offset + tile.first);
    tile.frame.head = work.s.head;
    const std::int64_t ld = field_row(sizes_.cut);
    kernel_->row_fields(&tile.frame, tile.frame.origin, static_cast<std::int32_t>(ld), tile.fields, ld);

    const auto at = [&](const Tensor& of) {
      return shifted(matrix(of, problem_.packed, b, h, seq.q_start), tile.first);
    };
    // In bf16 the scale would round q: it is applied to scores, and to dk.
    const float scale = unit_ == Unit::f32 ? static_cast<float>(problem_.scale) : 1;
    QueryLoader(*kit_, inputs_, sizes_, sizes_.d)(call_.q, at(call_.q), tile.rows, scale, tile.q, tile.q_transposed,
                                                  tile.bad_q);
    QueryLoader(*kit_, grad_o_, sizes_, sizes_.dv)(call_.grad_o, at(call_.grad_o), tile.rows, 1, tile.grad_o,
                                                   tile.grad_o_transposed, tile.bad_grad_o);
    prepare_rows(b, h, tile);
    tile.ready = true;
  }

  void prepare_rows(std::int64_t b, std::int64_t h, QueryTile& tile) const {
    const std::int64_t start = sequence(problem_, b).q_start;
    const auto value = [&](const Tensor& t, std::int64_t r) {
      return load(t, shifted(column(t, problem_.packed, b, h, start), tile.first + r).origin);
    };
    const auto* terms = kernel_->parts.has_row_term
                            ? reinterpret_cast<const float*>(tile.fields) + (row_fields() - 1) * field_row(sizes_.cut)
                            : nullptr;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const double lse = value(lse_, r), term = terms ? static_cast<double>(terms[r]) : 0;
      const bool empty = lse == -infinity || term == -infinity;
      tile.lse[r] = static_cast<float>(empty ? infinity : lse - term);
      const double dlse = call_.grad_lse.given() ? value(call_.grad_lse, r) : 0;
      tile.delta[r] = static_cast<float>(
          static_cast<double>(delta_[plan_.first_row(b, h) + tile.first + r]) - dlse);
    }
  }

  // ---- One tile of keys against one of queries.

  void meet(const Work& work, const QueryTile& tile) const {
    if (kernel_->parts.col_fields())
      kernel_->col_fields(&tile.frame, work.tile * sizes_.cut.tile_kv, sizes_.cut.tile_kv, work.s.col,
                          sizes_.cut.tile_kv);
    // Calls body(first group, groups, visit) for neighbours that visit alike.
    const auto runs = [&](const auto& alike, const auto& body) {
      for (std::int32_t g = 0; g < tile.groups;) {
        const Visit visit = work.visits[static_cast<std::size_t>(g)];
        std::int32_t next = g + 1;
        while (next < tile.groups && alike(work.visits[static_cast<std::size_t>(next)], visit)) ++next;
        if (visit.first < visit.last) body(g, next - g, visit);
        g = next;
      }
    };
    runs([](const Visit& a, const Visit& b) { return a.first == b.first && a.last == b.last && a.all == b.all; },
         [&](std::int32_t g, std::int32_t groups, const Visit& v) { differentiate(work, tile, g, groups, v); });
    if (work.pass == Pass::Sums) return;
    if (call_.dk.given() || call_.dv.given()) add_to_keys(work, tile);
    if (!call_.dq.given()) return;
    runs(std::equal_to<>(),
         [&](std::int32_t g, std::int32_t groups, const Visit& v) { add_to_queries(work, tile, g, groups, v); });
  }

  std::byte* element_at(void* matrix, std::int64_t row, std::int64_t column) const {
    return static_cast<std::byte*>(matrix) + (row * sizes_.score_row() + column) * sizes_.element_size();
  }

  void differentiate(const Work& work, const QueryTile& tile, std::int32_t group, std::int32_t groups,
                     const Visit& v) const {
    const Scratch& s = work.s;
    const std::int64_t row = std::int64_t{group} * sizes_.cut.group, nr = sizes_.tiling.nr;
    const std::int64_t rows = std::min<std::int64_t>(groups * sizes_.cut.group, tile.rows - row);
    const std::int64_t at = row * sizes_.score_row();
    const auto product = [&](const std::uint32_t* a, const Widths& w, const std::uint32_t* b, float* c) {
      const std::int64_t a_row = sizes_.row(w) / sizes_.per_unit();
      const Product args{.a = a + row * a_row, .a_row = a_row, .b = b + v.first * w.as_k, .b_k = nr,
                         .b_panel = nr * w.as_k, .c = c + at + v.first, .c_row = sizes_.score_row(), .groups = groups,
                         .panels = (v.last - v.first) / nr, .k = w.as_k, .keep = nullptr};
      kit_->product(&args);
    };
    product(tile.q, sizes_.d, s.k_columns, s.s);
    product(tile.grad_o, sizes_.dv, s.v_columns, s.dp);

    const Differentiate args{
        .frame = &tile.frame, .s = s.s + at, .dp = s.dp + at, .s_row = sizes_.score_row(),
        .p = element_at(s.p, row, 0), .ds = element_at(s.ds, row, 0), .p_row = sizes_.score_row(),
        .rows = static_cast<std::int32_t>(rows), .q = static_cast<std::int32_t>(tile.frame.origin + row),
        .kv = work.tile * sizes_.cut.tile_kv, .first = v.first, .last = v.last, .kv_end = tile.frame.kv_len,
        .scale = static_cast<float>(problem_.scale), .row = tile.fields + row, .row_ld = field_row(sizes_.cut),
        .col = s.col, .col_ld = sizes_.cut.tile_kv, .lse = tile.lse + row, .delta = tile.delta + row,
        .sum = work.pass == Pass::Sums ? delta_sums_ + row_at(work, work.stretch->reader) + tile.first + row : nullptr,
        .gradients = work.gradients};
    const bool all = v.all && work.tile * sizes_.cut.tile_kv + v.last <= tile.frame.kv_len;
    (work.pass == Pass::Sums ? kernel_->sum_rows
     : all                   ? kernel_->differentiate_all
                             : kernel_->differentiate_some)(&args);
    for (std::int64_t r = row + rows; r < row + groups * sizes_.cut.group; ++r) clear(s, r, v.first, v.last);
  }

  void clear(const Scratch& s, std::int64_t row, std::int64_t first, std::int64_t last) const {
    const auto bytes = static_cast<std::size_t>((last - first) * sizes_.element_size());
    std::memset(element_at(s.p, row, first), 0, bytes);
    std::memset(element_at(s.ds, row, first), 0, bytes);
  }

  void add_to_queries(const Work& work, const QueryTile& tile, std::int32_t group, std::int32_t groups,
                      const Visit& v) const {
    const std::int64_t row = std::int64_t{group} * sizes_.cut.group, nr = sizes_.tiling.nr;
    const std::int64_t into = row_at(work, work.stretch->reader) + tile.first + row;
    const std::int64_t begin = v.begin / sizes_.step() * sizes_.step(), end = up_to(v.end, sizes_.step());
    const Product dq{.a = element_at(work.s.ds, row, begin), .a_row = sizes_.score_row() / sizes_.per_unit(),
                     .b = work.s.k_rows + begin / sizes_.per_unit() * nr, .b_k = nr,
                     .b_panel = sizes_.cut.tile_kv / sizes_.per_unit() * nr, .c = dq_ + into * sizes_.d.as_n,
                     .c_row = sizes_.d.as_n, .groups = groups, .panels = sizes_.d.as_n / nr,
                     .k = (end - begin) / sizes_.per_unit(), .keep = nullptr, .add = true};
    (work.s.bad_k ? kit_->guarded_product : kit_->product)(&dq);
  }

  /// Panels of columns, and the rows that visit any of them.
  struct Block {
    std::int64_t first, last;  ///< columns
    std::int64_t q0, q1;       ///< rows, in steps of what products sum over
    bool operator==(const Block&) const = default;
  };

  void add_to_keys(const Work& work, const QueryTile& tile) const {
    const std::int64_t nr = sizes_.tiling.nr, step = sizes_.step();
    std::vector<Block> blocks;
    for (std::int64_t c = 0; c < sizes_.cut.tile_kv; c += nr) {
      Block block{c, c + nr, sizes_.cut.tile_q, 0};
      for (std::int32_t g = 0; g < tile.groups; ++g)
        if (visited(work, g, c)) {
          block.q0 = std::min<std::int64_t>(block.q0, g * sizes_.cut.group / step * step);
          block.q1 = up_to((g + 1) * sizes_.cut.group, step);
        }
      if (block.q0 >= block.q1) continue;
      for (std::int64_t r = block.q0; r < block.q1; ++r)
        if (!visited(work, static_cast<std::int32_t>(r / sizes_.cut.group), c)) clear(work.s, r, c, c + nr);
      const bool joins = !blocks.empty() && blocks.back().last == c && blocks.back().q0 == block.q0 &&
                         blocks.back().q1 == block.q1;
      joins ? void(blocks.back().last = c + nr) : blocks.push_back(block);
    }
    if (unit_ == Unit::bf16) pair_rows(work.s, up_to(tile.groups * sizes_.cut.group, step));
    for (const Block& block : blocks) {
      if (call_.dv.given()) add(block, tile.grad_o_transposed, sizes_.dv, work.s.p, work.s.p_panels, work.dv);
      if (call_.dk.given()) add(block, tile.q_transposed, sizes_.d, work.s.ds, work.s.ds_panels, work.dk);
    }
    if (call_.dv.given()) add_bad(work, tile.bad_grad_o, tile.grad_o, sizes_.dv, work.s.p, work.dv);
    if (call_.dk.given()) add_bad(work, tile.bad_q, tile.q, sizes_.d, work.s.ds, work.dk);
  }

  static bool visited(const Work& work, std::int32_t group, std::int64_t column) {
    const Visit& v = work.visits[static_cast<std::size_t>(group)];
    return v.first <= column && column < v.last;
  }

  /// Products sum pairs of bf16 along the rows of queries.
  void pair_rows(const Scratch& s, std::int64_t rows) const {
    for (const auto& [from, into] : {std::pair(s.p, s.p_panels), std::pair(s.ds, s.ds_panels)}) {
      const PackRows args{.from = from, .from_row = sizes_.score_row(), .rows = rows, .columns = sizes_.cut.tile_kv,
                          .into = into, .panel = panel_units()};
      kit_->pack_rows(&args);
    }
  }

  /// sums += transposed * matrix, of p or ds, over a block.
  void add(const Block& block, const std::uint32_t* transposed, const Widths& w, void* matrix,
           const std::uint32_t* in_panels, float* sums) const {
    const std::int64_t nr = sizes_.tiling.nr, k = block.q0 / sizes_.per_unit();
    const bool paired = unit_ == Unit::bf16;
    const Product args{
        .a = transposed + k, .a_row = sizes_.transposed_row() / sizes_.per_unit(),
        .b = paired ? static_cast<const void*>(in_panels + block.first / nr * panel_units() + k * nr)
                    : element_at(matrix, block.q0, block.first),
        .b_k = paired ? nr : sizes_.score_row(), .b_panel = paired ? panel_units() : nr, .c = sums + block.first,
        .c_row = sizes_.score_row(), .groups = pieces(w.columns, sizes_.tiling.mr),
        .panels = (block.last - block.first) / nr, .k = (block.q1 - block.q0) / sizes_.per_unit(), .keep = nullptr,
        .add = true};
    kit_->product(&args);
  }

  /// What rows that are not finite add, where they meet keys that are not removed.
  void add_bad(const Work& work, const std::vector<std::int32_t>& bad, const std::uint32_t* rows, const Widths& w,
               const void* matrix, float* sums) const {
    for (const std::int32_t r : bad) {
      const Visit& v = work.visits[static_cast<std::size_t>(r / sizes_.cut.group)];
      for (std::int64_t c = v.first; c < v.last; ++c) {
        const float x = operand(unit_, matrix, r * sizes_.score_row() + c);
        if (x == 0) continue;
        for (std::int64_t i = 0; i < w.columns; ++i)
          sums[i * sizes_.score_row() + c] += operand(unit_, rows, r * sizes_.row(w) + i) * x;
      }
    }
  }

  // ---- From sums to results.

  void store_tile(const Work& work) const { store_tile(work.entry, work.tile, work.dk, work.dv); }

  void store_tile(const KVEntry& entry, std::int32_t tile, const float* dk, const float* dv) const {
    const std::int64_t first = std::int64_t{tile} * sizes_.cut.tile_kv;
    const std::int64_t columns = std::min<std::int64_t>(sizes_.cut.tile_kv, entry.length - first);
    const auto one = [&](const TensorRows& rows, const Tensor& t, const float* from, const Widths& w, double scale) {
      if (!t.given()) return;
      const Strided at = shifted(matrix(t, problem_.packed, entry.b, entry.head, entry.start), first);
      // The sums are transposed: their rows are the tensor's columns.
      rows.store(t, {.origin = at.origin, .row = at.column, .column = at.row},
                 {.from = from, .from_row = sizes_.score_row(), .rows = w.columns, .columns = columns,
                  .factor = nullptr, .scale = static_cast<float>(scale), .into = nullptr, .row = 0, .column = 0});
    };
    one(dk_rows_, call_.dk, dk, sizes_.d, unit_ == Unit::f32 ? 1 : problem_.scale);
    one(dv_rows_, call_.dv, dv, sizes_.dv, 1);
  }

  /// Adds up what lies `apart` floats from each other, into the first.
  static float* sum_up(float* first, std::int64_t count, std::int64_t size, std::int64_t apart) {
    for (std::int64_t i = 1; i < count; ++i)
      for (std::int64_t j = 0; j < size; ++j) first[j] += first[i * apart + j];
    return first;
  }

  void store_parts() {
    if (plan_.parts() == 1) return;
    std::vector<std::pair<const KVEntry*, std::int32_t>> tiles;
    for (const KVEntry& entry : plan_.entries())
      for (std::int32_t t = 0; t < entry.tiles; ++t) tiles.emplace_back(&entry, t);
    const auto sum = [&](float* sums, std::int64_t tile, std::int64_t size) {
      return sums ? sum_up(sums + tile * size, plan_.parts(), size, plan_.tiles() * size) : nullptr;
    };
    const auto one = [&](std::int64_t i, int) {
      const auto [entry, t] = tiles[static_cast<std::size_t>(i)];
      store_tile(*entry, t, sum(dk_, i, k_sums()), sum(dv_, i, v_sums()));
    };
    run_tasks(static_cast<std::int64_t>(tiles.size()), one, means_.executor);
  }

  void store_dq() {
    if (!call_.dq.given()) return;
    each_tile_of_rows([&](std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, int) {
      const std::int64_t width = sizes_.d.as_n;
      float* from = dq_ + (plan_.first_row(b, h) + first) * width;
      sum_up(from, chunks(b), count * width, plan_.rows() * width);
      const Strided at = matrix(call_.dq, problem_.packed, b, h, sequence(problem_, b).q_start);
      dq_rows_.store(call_.dq, shifted(at, first),
                     {.from = from, .from_row = width, .rows = count, .columns = problem_.d, .factor = nullptr,
                      .scale = static_cast<float>(problem_.scale), .into = nullptr, .row = 0, .column = 0});
    });
  }

  /// What flows to a sink: the probability that went to it, times -delta and the gradient of lse.
  std::vector<CapturedSum> sinks() const {
    const compiler::Traced& traced = compiled_.traced;
    std::vector<CapturedSum> sums;
    if (!traced.mod.sink) return sums;
    for (const Backward::Captured& asked : call_.captured)
      if (std::any_of(traced.mod.dsink.captures.begin(), traced.mod.dsink.captures.end(),
                      [&](const auto& s) { return traced.captures[s.capture] == asked.of; }))
        sums.push_back({&asked, std::vector<double>(static_cast<std::size_t>(asked.of.size()))});
    Scatters scatters(traced.mod.dsink.captures, traced, sums);
    if (scatters.empty()) return sums;
    const ir::ReadCapture read = reader(traced.captures);
    const std::vector<double> params = values(traced.params);
    ir::Env env;
    env.params = params;
    env.read = &read;
    for (std::int64_t b = 0; b < problem_.batch; ++b)
      for (std::int64_t h = 0; h < problem_.q_heads; ++h) {
        const Sequence seq = sequence(problem_, b);
        env.b = static_cast<std::int32_t>(b);
        env.h = static_cast<std::int32_t>(h);
        env.q_len = static_cast<std::int32_t>(seq.q_len);
        env.kv_len = static_cast<std::int32_t>(seq.kv_len);
        const double sink = ir::eval(traced.mod.sink, env);
        // A sink at -inf takes no part, whatever its rows are.
        if (sink != -infinity) scatters.add(to_sink(seq, h, sink), env);
      }
    return sums;
  }

  double to_sink(const Sequence& seq, std::int64_t h, double sink) const {
    double sum = 0;
    for (std::int64_t r = 0; r < seq.q_len; ++r) {
      const auto value = [&](const Tensor& t) {
        const Strided at = column(t, problem_.packed, seq.b, h, seq.q_start);
        return load(t, at.origin + r * at.row);
      };
      const double dlse = call_.grad_lse.given() ? value(call_.grad_lse) : 0;
      const auto delta = static_cast<double>(delta_[plan_.first_row(seq.b, h) + r]);
      sum += std::exp(sink - value(lse_)) * (dlse - delta);
    }
    return sum;
  }

  const Compiled& compiled_;
  const Backward& call_;
  const Problem& problem_;
  const Means& means_;
  Unit unit_;
  std::shared_ptr<const Kit> kit_;
  std::shared_ptr<const BackwardKernel> kernel_;
  BackwardSizes sizes_;
  TensorRows inputs_, grad_o_;           ///< as the Unit
  TensorRows grad_o_f32_, o_f32_;
  TensorRows dq_rows_, dk_rows_, dv_rows_;
  BackwardPlan plan_;
  CapturedSums captured_;
  Slots slots_;
  int workers_;
  std::int64_t prepared_ = 1, strip_ = 1;  ///< tiles of queries, and of keys
  Tensor o_, lse_;
  std::span<std::byte> forward_memory_{};
  float *delta_ = nullptr, *delta_sums_ = nullptr;  ///< by row; the sums by chunk too
  float* dq_ = nullptr;                             ///< [chunk][row][d.as_n]
  float *dk_ = nullptr, *dv_ = nullptr;             ///< where readers come in parts: [part][tile], transposed
  std::vector<Scratch> scratch_;
  const Visits* visits_ = nullptr;
};

}  // namespace

std::size_t backward_workspace(const Compiled& compiled, const Backward& call, const Problem& problem,
                               const Means& means) {
  return BackwardRun(compiled, call, problem, means).workspace();
}

void backward(const Compiled& compiled, const Backward& call, const Problem& problem, const Means& means) {
  BackwardRun(compiled, call, problem, means)();
}

}  // namespace attune::runtime::cpu
