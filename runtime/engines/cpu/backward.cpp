// runtime/engines/cpu/backward.cpp — the flash attention backward: per-row values first, then all pairs, then the
// results
#include <algorithm>
#include <cmath>
#include <optional>

#include "runtime/engines/call.h"
#include "runtime/engines/cpu/backward_plan.h"
#include "runtime/engines/cpu/captured.h"
#include "runtime/engines/cpu/results.h"
#include "runtime/engines/merge.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime::cpu {
namespace {

using compiler::Problem;

/// Adds `count` arrays, which begin `apart` floats apart, into the first.
float* sum_up(float* first, std::int64_t count, std::int64_t size, std::int64_t apart) {
  for (std::int64_t i = 1; i < count; ++i)
    for (std::int64_t j = 0; j < size; ++j) first[j] += first[i * apart + j];
  return first;
}

class BackwardRun {
 public:
  BackwardRun(const Call& of, const Means& means)
      : of_(of), call_(of.backward()), problem_(of.problem), means_(means), kernels_(of, means), state_(of, kernels_),
        captured_(of, kernels_, state_.kernel->parts, state_.plan),
        o_f32_(kernels_, Unit::f32, call_.o.given() ? call_.o.dtype : DType::f32),
        grad_o_f32_(kernels_, Unit::f32, call_.grad_o.dtype), dq_rows_(kernels_, Unit::f32, call_.dq.dtype),
        workers_(most_workers(means.executor)) {
    count();
  }

  std::size_t workspace() const { return bytes_; }
  Isa isa() const { return kernels_.isa; }

  void operator()() {
    const Clock clock;
    CallMemory memory(means_.workspace, bytes_);
    lay_out(memory.workspace());
    Stages stages;
    const Visits visits(of_, state_.sizes.cut, means_.executor);
    state_.visits = &visits;
    stages.visits = clock.seconds();
    if (!call_.o.given()) {
      const Forward first = first_forward();
      forward(first_call(first), forward_means());
    }
    for (const BackwardScratch& s : scratch_)
      for (const QueryTile& tile : s.queries) clear_margins(tile, state_.sizes);
    degree() > 0 ? find_deltas() : sum_deltas();
    captured_.clear(means_.executor);
    walk(Pass::Gradients);
    store_dq();
    store_parts();
    captured_.store(sinks(), means_.executor);
    stages.attend = clock.seconds() - stages.visits;
    if (means_.stages) *means_.stages = stages;
  }

 private:
  // ---- Memory.

  Forward first_forward() const {
    return {.q = call_.q,
            .k = call_.k,
            .v = call_.v,
            .o = o_,
            .lse = state_.lse,
            .cu_seqlens_q = call_.cu_seqlens_q,
            .cu_seqlens_kv = call_.cu_seqlens_kv,
            .q_offset = call_.q_offset,
            .captures = call_.captures,
            .params = call_.params};
  }
  Call first_call(const Forward& first) const {
    return {.mod = of_.mod, .args = of_.args, .problem = problem_, .what = first, .purpose = of_.purpose};
  }
  Means forward_means() const {
    return {.workspace = forward_memory_, .isa = kernels_.isa, .executor = means_.executor};
  }

  void count() {
    Workspace all, rest;
    lay_out_forward_results(all);
    if (const Forward first = first_forward(); !call_.o.given())
      forward_bytes_ = forward_workspace(first_call(first), forward_means());
    lay_out_rest(rest);
    rest_bytes_ = std::max(forward_bytes_, rest.used());
    all.take<std::byte>(static_cast<std::int64_t>(rest_bytes_));
    bytes_ = all.used();
  }

  /// The backward's own forward, if it runs one, uses the rest of the memory before the other steps do.
  void lay_out(Workspace& memory) {
    lay_out_forward_results(memory);
    auto* const first = memory.take<std::byte>(static_cast<std::int64_t>(rest_bytes_));
    forward_memory_ = {first, forward_bytes_};
    Workspace rest({first, rest_bytes_});
    lay_out_rest(rest);
  }

  void lay_out_forward_results(Workspace& memory) {
    o_ = call_.o;
    state_.lse = call_.lse;
    if (call_.o.given()) return;
    const auto shape = std::span(call_.grad_o.shape).first(static_cast<std::size_t>(call_.grad_o.rank));
    o_ = Tensor(memory.take<float>(call_.grad_o.size()), DType::f32, shape);
    // lse stays f64: the error of a row's lse scales all of its probabilities.
    auto* lse = memory.take<double>(call_.grad_o.size() / problem_.dv);
    state_.lse = problem_.q.packed() ? Tensor(lse, DType::f64, {shape[1], shape[0]})
                                     : Tensor(lse, DType::f64, shape.first(3));
  }

  void lay_out_rest(Workspace& memory) {
    const BackwardPlan& plan = state_.plan;
    state_.delta = memory.take<float>(plan.rows());
    if (degree() == 0) state_.delta_sums = memory.take<float>(plan.chunks() * plan.rows());
    if (call_.dq.given()) state_.dq = memory.take<float>(plan.chunks() * plan.rows() * state_.sizes.d.as_n);
    if (plan.parts() > 1) {
      if (call_.dk.given()) state_.dk = memory.take<float>(plan.parts() * plan.tiles() * state_.k_sums());
      if (call_.dv.given()) state_.dv = memory.take<float>(plan.parts() * plan.tiles() * state_.v_sums());
    }
    captured_.lay_out(memory);
    scratch_.clear();
    for (int w = 0; w < workers_; ++w) scratch_.emplace_back(memory, state_);
  }

  // ---- Per-row values, before any pair.

  // The query heads that are computed.
  std::int64_t first_head() const { return problem_.held() ? problem_.held()->first_head * problem_.group : 0; }
  std::int64_t last_head() const {
    return problem_.held() ? problem_.held()->last_head * problem_.group : problem_.q_heads;
  }

  /// Calls body(b, h, first, count, worker) for all rows of all batch entries and heads, a tile at a time.
  template <class Body>
  void each_tile_of_rows(const Body& body) {
    struct Rows {
      std::int64_t b, h, first, count;
    };
    std::vector<Rows> all;
    const std::int64_t tile = state_.sizes.cut.tile_q;
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence seq = sequence(problem_, b);
      for (std::int64_t h = first_head(); h < last_head(); ++h)
        for (std::int64_t r = 0; r < seq.q_len; r += tile)
          if (const std::int64_t count = std::min(tile, seq.q_len - r); any_query(problem_, seq, r, count))
            all.push_back({b, h, r, count});
    }
    // A task has enough tiles to be worth waking a thread.
    constexpr std::int64_t at_once = 16;
    const auto count = static_cast<std::int64_t>(all.size());
    const auto some = [&](std::int64_t task, int worker) {
      for (std::int64_t i = task * at_once; i < std::min(count, (task + 1) * at_once); ++i) {
        const Rows& r = all[static_cast<std::size_t>(i)];
        body(r.b, r.h, r.first, r.count, worker);
      }
    };
    run_tasks(ceil_div(count, at_once), some, means_.executor);
  }

  /// A row's delta is dO . O times this; 0: a sum over its pairs.
  double degree() const { return state_.kernel->parts.delta_degree; }

  /// If prob is linear in p: delta = sum p dp = sum p' dO . v = dO . O. It is summed in the same order as dp, so
  /// that dp - delta is exactly 0 if one key has all of a row's weight: the gradient of a slope multiplies dp - delta
  /// by a distance.
  void find_deltas() {
    each_tile_of_rows([&](std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, int worker) {
      const BackwardScratch& s = scratch_[static_cast<std::size_t>(worker)];
      const Sequence seq = sequence(problem_, b);
      const std::int64_t width = round_up(problem_.dv, 16);
      float* const tile = state_.delta + state_.plan.first_row(b, h) + first;
      // The memory for scores is free now: part of it holds o, part grad_o.
      const std::int64_t at_once = std::max<std::int64_t>(1,
                                                          state_.sizes.cut.tile_q * state_.sizes.score_row() / width);
      const auto some = [&](std::int64_t row, std::int64_t rows, float* into) {
        const auto load = [&](const TensorRows& from, const Tensor& t, float* to) {
          from.load(t, shifted(matrix(t, problem_.q.layout, b, h, seq.q_start), row),
                    {.rows = rows, .columns = problem_.dv, .into = to, .row = width});
        };
        load(o_f32_, o_, s.s);
        load(grad_o_f32_, call_.grad_o, s.dp);
        const codegen::RowDots dots{
            .a = s.dp, .b = s.s, .row = width, .rows = rows, .columns = problem_.dv, .into = into};
        state_.kit->row_dots(&dots);
        if (const auto by = static_cast<float>(degree()); by != 1)
          for (std::int64_t r = 0; r < rows; ++r) into[r] *= by;
      };
      each_query_run(problem_, seq, first, count, [&](std::int64_t skip, std::int64_t there, std::int64_t row) {
        for (std::int64_t r = 0; r < there; r += at_once) some(row + r, std::min(at_once, there - r), tile + skip + r);
      });
    });
  }

  void sum_deltas() {
    walk(Pass::Sums);
    each_tile_of_rows([&](std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, int) {
      const std::int64_t row = state_.plan.first_row(b, h) + first;
      std::copy_n(sum_up(state_.delta_sums + row, state_.chunks(b), count, state_.plan.rows()), count,
                  state_.delta + row);
    });
  }

  // ---- All pairs.

  void walk(Pass pass) {
    struct Chain {
      std::size_t index;
      std::int64_t cost = 1;
    };
    const std::vector<BackwardTask>& tasks = state_.plan.tasks();
    std::vector<Chain> chains;
    for (std::size_t i = 0; i < captured_.chains().size(); ++i) {
      chains.push_back({i});
      for (const std::size_t task : captured_.chains()[i]) chains.back().cost += cost(tasks[task]);
    }
    std::stable_sort(chains.begin(), chains.end(), [](const Chain& a, const Chain& b) { return a.cost > b.cost; });
    std::vector<std::int64_t> weights;
    for (const Chain& c : chains) weights.push_back(c.cost);
    const auto one = [&](std::int64_t i, int worker) {
      const std::size_t chain = chains[static_cast<std::size_t>(i)].index;
      const std::vector<float*> gradients = captured_.gradients(chain);
      if (state_.kit->tiles_begin) state_.kit->tiles_begin();
      for (const std::size_t task : captured_.chains()[chain])
        run(state_, tasks[task], scratch_[static_cast<std::size_t>(worker)], pass, gradients.data());
      if (state_.kit->tiles_end) state_.kit->tiles_end();
    };
    run_tasks(static_cast<std::int64_t>(chains.size()), one, means_.executor,
              pass == Pass::Gradients ? means_.progress : Progress{}, weights);
  }

  std::int64_t cost(const BackwardTask& task) const {
    std::int64_t keys = 0;
    for (const Reader& reader : state_.plan.readers(task))
      for (std::int32_t t = 0; t < state_.q_tiles(reader.b); ++t) keys += state_.visits->cost(reader.b, reader.h, t);
    return keys / state_.plan.chunks(state_.plan.entries()[task.entry].tiles);
  }

  // ---- From sums to results.

  void store_dq() {
    if (!call_.dq.given()) return;
    each_tile_of_rows([&](std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, int) {
      const std::int64_t width = state_.sizes.d.as_n;
      float* from = state_.dq + (state_.plan.first_row(b, h) + first) * width;
      sum_up(from, state_.chunks(b), count * width, state_.plan.rows() * width);
      const Sequence seq = sequence(problem_, b);
      const MatrixLayout at = matrix(call_.dq, problem_.q.layout, b, h, seq.q_start);
      each_query_run(problem_, seq, first, count, [&](std::int64_t skip, std::int64_t there, std::int64_t row) {
        dq_rows_.store(call_.dq, shifted(at, row),
                       {.from = from + skip * width,
                        .row = width,
                        .rows = there,
                        .columns = problem_.d,
                        .scale = static_cast<float>(problem_.scale)});
      });
    });
  }

  /// Sums and stores dk and dv if readers were split into parts.
  void store_parts() {
    const BackwardPlan& plan = state_.plan;
    if (plan.parts() == 1) return;
    std::vector<std::pair<const KVEntry*, std::int32_t>> tiles;
    for (const KVEntry& entry : plan.entries())
      for (std::int32_t t = 0; t < entry.tiles; ++t) tiles.emplace_back(&entry, t);
    const auto sum = [&](float* sums, std::int64_t tile, std::int64_t size) {
      return sums ? sum_up(sums + tile * size, plan.parts(), size, plan.tiles() * size) : nullptr;
    };
    const auto one = [&](std::int64_t i, int) {
      const auto [entry, t] = tiles[static_cast<std::size_t>(i)];
      state_.store(*entry, t, sum(state_.dk, i, state_.k_sums()), sum(state_.dv, i, state_.v_sums()));
    };
    run_tasks(static_cast<std::int64_t>(tiles.size()), one, means_.executor);
  }

  /// Gradients of sinks: for each row, the sink's probability times (gradient of lse - delta).
  std::vector<CapturedSum> sinks() const {
    const std::vector<compiler::Scatter>& all = of_.mod.mod.dsink.captures;
    const compiler::Args& args = of_.args;
    std::vector<CapturedSum> sums;
    for (const Backward::Captured& asked : call_.captured)
      if (std::any_of(all.begin(), all.end(), [&](const auto& s) { return is_of(asked, args, s.capture); }))
        sums.emplace_back(asked);
    Scatters scatters(all, args, sums);
    if (scatters.empty()) return sums;
    const ir::ReadCapture read = reader(args.captures);
    ir::Env env;
    env.params = args.params;
    env.read = &read;
    for (std::int64_t b = 0; b < problem_.batch; ++b)
      for (std::int64_t h = first_head(); h < last_head(); ++h) {
        const Sequence seq = sequence(problem_, b);
        const codegen::Frame frame = state_.slots.frame(seq, h);
        const double sink = sink_at(of_, frame);
        env.b = frame.b;
        env.h = frame.h;
        env.q_len = frame.q_len;
        env.kv_len = frame.kv_len;
        // A sink at -inf adds nothing, whatever its rows hold.
        if (sink != -infinity) scatters.add(to_sink(seq, h, sink), env);
      }
    return sums;
  }

  double to_sink(const Sequence& seq, std::int64_t h, double sink) const {
    double sum = 0;
    const auto one = [&](std::int64_t r, std::int64_t row) {
      const auto value = [&](const Tensor& t) {
        return load(t, shifted(column(t, problem_.q.layout, seq.b, h, seq.q_start), row).origin);
      };
      const double dlse = call_.grad_lse.given() ? value(call_.grad_lse) : 0;
      const auto delta = static_cast<double>(state_.delta[state_.plan.first_row(seq.b, h) + r]);
      sum += std::exp(sink - value(state_.lse)) * (dlse - delta);
    };
    each_query_run(problem_, seq, 0, seq.q_len, [&](std::int64_t skip, std::int64_t count, std::int64_t row) {
      for (std::int64_t i = 0; i < count; ++i) one(skip + i, row + i);
    });
    return sum;
  }

  const Call& of_;
  const Backward& call_;
  const Problem& problem_;
  const Means& means_;
  KernelsFor kernels_;
  BackwardState state_;
  CapturedSums captured_;
  TensorRows o_f32_, grad_o_f32_, dq_rows_;
  int workers_;
  Tensor o_;
  std::size_t forward_bytes_ = 0, rest_bytes_ = 0, bytes_ = 0;
  std::span<std::byte> forward_memory_{};
  std::vector<BackwardScratch> scratch_;
};

}  // namespace

std::size_t backward_workspace(const Call& call, const Means& means) { return BackwardRun(call, means).workspace(); }

void backward(const Call& call, const Means& means) {
  BackwardRun run(call, means);
  if (means.used) *means.used = {std::string(codegen::name_of(run.isa())), "tiles", run.workspace()};
  run();
}

}  // namespace attune::runtime::cpu
