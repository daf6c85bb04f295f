// runtime/engines/cpu/decode.cpp — decode: few queries against many keys; keys and values are read once, in place
#include "runtime/engines/cpu/forward_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/engines/cpu/even_rows.h"
#include "runtime/engines/cpu/results.h"
#include "runtime/engines/cpu/visits.h"

namespace attune::runtime::cpu {
namespace {

using namespace codegen;
using compiler::Problem;

constexpr Among decoded{.most = most_decoded};
/// Keys of one task. A constant, so that results do not depend on the number of threads.
constexpr std::int32_t chunk_keys = 512;
/// Keys whose scores are in memory at a time. 128 keys took a fifth more time, because reads of memory are then
/// shorter.
constexpr std::int32_t tile_keys = 512;
/// One chunk of one (batch entry, head) of keys, for all the queries of its group of heads.
struct Chunk {
  std::int64_t b, kv_head, index;
};

/// The facts that follow from a call's expressions, shapes and types. Reads no tensor.
struct DecodePlan {
  DecodePlan(const Call& of, const Means& means);

  std::int32_t queries() const { return cut.tile_q; }
  /// Rows of a chunk: all queries of the heads that share its keys, one head after another.
  std::int64_t rows() const { return problem.group * queries(); }
  /// True if q and k are multiplied as bf16; scores are then scaled afterwards.
  bool pairs() const { return q_elements == DType::bf16; }

  const Call& call;
  const Problem& problem;  ///< the call's
  KernelsFor kernels;
  Held<Kit> kit;
  Held<ForwardKernel> kernel;
  Cut cut;
  DType q_elements;        ///< type of q's elements in products
  std::int64_t row_bytes;  ///< max(bytes of a key, bytes of a value)
  int workers;
  std::vector<Chunk> chunks;
  std::vector<std::int64_t> firsts;  ///< by batch entry: its first chunk
  std::size_t workspace;             ///< bytes
};

/// One worker's memory.
struct DecodeScratch {
  DecodeScratch(Workspace& memory, const DecodePlan& plan)
      : q(memory.take<float>(plan.rows() * plan.problem.d)), s(memory.take<float>(plan.rows() * tile_keys)),
        alpha(memory.take<float>(plan.rows())),
        pairs(memory.take<std::uint16_t>(plan.pairs() ? plan.rows() * plan.problem.d : 0)),
        gathered(memory.take<std::byte>(are_scattered(plan.problem) ? EvenRows::gathered * plan.row_bytes : 0)),
        fields(memory, plan.kernel->parts, plan.cut) {}

  float *q, *s, *alpha;
  std::uint16_t* pairs;  ///< q as bf16, if products are in bf16
  std::byte* gathered;   ///< rows of a tile of keys or values; only if they may be scattered
  Fields fields;
};

/// A call's memory. The plan makes one to count the bytes, the run another to use them.
struct DecodeMemory {
  DecodeMemory(Workspace& memory, const DecodePlan& plan) {
    const std::int64_t rows = static_cast<std::int64_t>(plan.chunks.size()) * plan.rows();
    o = memory.take<float>(rows * plan.problem.dv);
    m = memory.take<float>(rows);
    l = memory.take<float>(rows);
    for (int w = 0; w < plan.workers; ++w) scratch.emplace_back(memory, plan);
  }

  float *o, *m, *l;  ///< by chunk and row
  std::vector<DecodeScratch> scratch;
};

Cut cut_for(const Problem& problem, const Kit& kit) {
  std::int32_t queries = 1;
  for (std::int64_t b = 0; b < problem.batch; ++b)
    if (const Sequence seq = sequence(problem, b); decoded.has(seq))
      queries = std::max(queries, static_cast<std::int32_t>(seq.q_len));
  return {.tile_q = queries, .tile_kv = tile_keys, .group = queries, .panel = 2 * kit.tiling.width};
}

DecodePlan::DecodePlan(const Call& of, const Means& means)
    : call(of), problem(of.problem), kernels(of, means), kit(cpu::kit(kernels, Unit::f32, of.forward().k.dtype)),
      kernel(forward_kernel(of.mod, kernels, Unit::f32)), cut(cut_for(problem, *kit)),
      q_elements(kit->dots_of_pairs && of.forward().q.dtype == DType::bf16 && problem.d % dots_columns == 0
                     ? DType::bf16
                     : DType::f32),
      row_bytes(std::max(problem.d, problem.dv) * static_cast<std::int64_t>(size_of(of.forward().k.dtype))),
      workers(most_workers(means.executor)) {
  const Problem& p = problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    firsts.push_back(static_cast<std::int64_t>(chunks.size()));
    const Sequence seq = sequence(p, b);
    const std::int64_t count = decoded.has(seq) ? ceil_div(seq.kv_len, chunk_keys) : 0;
    const compiler::Held* held = p.held();
    for (std::int64_t h = held ? held->first_head : 0; h < (held ? held->last_head : p.kv_heads); ++h)
      for (std::int64_t i = 0; i < count; ++i) chunks.push_back({b, h, i});
  }
  Workspace count;
  DecodeMemory(count, *this);
  workspace = count.used();
}

class DecodeRun {
 public:
  DecodeRun(const DecodePlan& plan, const Means& means)
      : plan_(plan), call_(plan.call.forward()), problem_(plan.problem), kernel_(*plan.kernel), means_(means),
        slots_(plan.call), q_rows_(plan.kernels, Unit::f32, call_.q.dtype), results_(plan.call, plan.kernels),
        callers_(means.workspace, plan.workspace), memory_(callers_.workspace(), plan),
        visits_(plan.call, plan.cut, means.executor, decoded) {}

  void operator()() {
    const auto scratch = [&](int worker) -> const DecodeScratch& {
      return memory_.scratch[static_cast<std::size_t>(worker)];
    };
    run_tasks(
        static_cast<std::int64_t>(plan_.chunks.size()), [&](std::int64_t i, int worker) { attend(i, scratch(worker)); },
        means_.executor, means_.progress);
    const compiler::Held* held = problem_.held();
    const std::int64_t first = held ? held->first_head : 0, heads = held ? held->last_head - first : problem_.kv_heads;
    run_tasks(
        problem_.batch * heads,
        [&](std::int64_t i, int worker) { merge(i / heads, first + i % heads, scratch(worker)); }, means_.executor);
  }

 private:
  std::int32_t queries() const { return plan_.queries(); }
  std::int64_t rows() const { return plan_.rows(); }

  /// The queries of one head, with their fields.
  TileRows queries_of(const Sequence& seq, std::int64_t h, const DecodeScratch& s) const {
    const TileRows tile = tile_rows(slots_, plan_.cut, seq, h, 0, s.fields.head);
    s.fields.compute(kernel_, tile);
    return tile;
  }

  // ---- One chunk of keys.

  void attend(std::int64_t index, const DecodeScratch& s) {
    const Chunk& chunk = plan_.chunks[static_cast<std::size_t>(index)];
    const Sequence seq = sequence(problem_, chunk.b);
    std::fill_n(memory_.m + index * rows(), rows(), -std::numeric_limits<float>::infinity());
    std::fill_n(memory_.l + index * rows(), rows(), 0.0f);
    std::fill_n(memory_.o + index * rows() * problem_.dv, rows() * problem_.dv, 0.0f);
    if (!any_query(problem_, seq, 0, seq.q_len)) return;
    if (problem_.held()) std::fill_n(s.q, rows() * problem_.d, 0.0f);
    for (std::int64_t g = 0; g < problem_.group; ++g)
      each_query_run(problem_, seq, 0, seq.q_len, [&](std::int64_t skip, std::int64_t count, std::int64_t row) {
        q_rows_.load(call_.q, shifted(matrix(call_.q, problem_.q.layout, chunk.b, head(chunk, g), seq.q_start), row),
                     {.rows = count,
                      .columns = problem_.d,
                      .factor = plan_.pairs() ? 1.0f : static_cast<float>(problem_.scale),
                      .into = s.q + (g * queries() + skip) * problem_.d,
                      .row = problem_.d});
      });
    // q is exactly representable in bf16: the upper halves of its f32 values.
    if (plan_.pairs())
      for (std::int64_t i = 0; i < rows() * problem_.d; ++i)
        s.pairs[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(s.q[i]) >> 16);
    const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(seq.kv_len, (chunk.index + 1) * chunk_keys));
    for (auto kv = static_cast<std::int32_t>(chunk.index * chunk_keys); kv < end; kv += tile_keys)
      tile(index, chunk, seq, kv, std::min(end, kv + tile_keys) - kv, s);
  }

  std::int64_t head(const Chunk& chunk, std::int64_t g) const { return chunk.kv_head * problem_.group + g; }

  void tile(std::int64_t index, const Chunk& chunk, const Sequence& seq, std::int32_t kv, std::int32_t keys,
            const DecodeScratch& s) {
    std::int32_t begin = keys, end = 0;
    for (std::int64_t g = 0; g < problem_.group; ++g) {
      const VisitedColumns v = visit(chunk, g, kv);
      if (v.first == v.last) continue;
      begin = std::min(begin, v.begin);
      end = std::max(end, v.end);
    }
    if (begin >= end) return;
    // Keys of a tile that no head keeps are never read: their memory may hold anything.
    std::fill_n(s.s, rows() * tile_keys, 0.0f);
    const EvenRows walk(problem_, KeyRows(problem_, call_.page_table, seq, chunk.kv_head), s.gathered);
    const std::pair<std::int64_t, std::int64_t> here{kv + begin, kv + end};
    walk.each({call_.k, problem_.d}, here, walk.at(call_.v, kv + begin), [&](const EvenRows::Some& k) {
      const Dots dots{.q = plan_.pairs() ? static_cast<const void*>(s.pairs) : s.q,
                      .q_row = problem_.d,
                      .rows = rows(),
                      .k = k.data,
                      .k_row = k.row,
                      .count = k.count,
                      .d = problem_.d,
                      .s = s.s + (k.first - kv),
                      .s_row = tile_keys,
                      .scale = plan_.pairs() ? static_cast<float>(problem_.scale) : 1.0f,
                      .next = k.next};
      (plan_.pairs() ? plan_.kit->dots_of_pairs : plan_.kit->dots)(&dots);
    });
    for (std::int64_t g = 0; g < problem_.group; ++g) softmax(index, chunk, seq, g, kv, s);
    // With several threads, another thread may take the next keys.
    const void* const after = plan_.workers == 1 && kv + end < seq.kv_len ? walk.at(call_.k, kv + end) : nullptr;
    walk.each({call_.v, problem_.dv}, here, after, [&](const EvenRows::Some& v) {
      const Weigh weigh{.p = s.s + (v.first - kv),
                        .p_row = tile_keys,
                        .rows = rows(),
                        .v = v.data,
                        .v_row = v.row,
                        .count = v.count,
                        .dv = problem_.dv,
                        .o = memory_.o + index * rows() * problem_.dv,
                        .o_row = problem_.dv,
                        .keep = s.alpha,
                        .next = v.next};
      plan_.kit->weigh(&weigh);
      // The first rows have already scaled the sums: later rows of the tile must not scale them again.
      if (v.first + v.count < kv + end) std::fill_n(s.alpha, rows(), 1.0f);
    });
  }

  VisitedColumns visit(const Chunk& chunk, std::int64_t g, std::int32_t kv) const {
    return visits_.visit(chunk.b, head(chunk, g), 0, 0, kv / plan_.cut.panel);
  }

  /// Replaces one head's scores with probabilities; 0 where it keeps nothing.
  void softmax(std::int64_t index, const Chunk& chunk, const Sequence& seq, std::int64_t g, std::int32_t kv,
               const DecodeScratch& s) {
    const std::int64_t first = g * queries();
    float* p = s.s + first * tile_keys;
    const VisitedColumns v = visit(chunk, g, kv);
    if (v.first == v.last) {
      std::fill_n(p, queries() * tile_keys, 0.0f);
      std::fill_n(s.alpha + first, queries(), 1.0f);
      return;
    }
    const TileRows queries_here = queries_of(seq, head(chunk, g), s);
    const Frame& frame = queries_here.frame;
    const std::int32_t position = seq.kv_offset + kv;
    if (kernel_.parts.col_fields()) kernel_.col_fields(&frame, position, tile_keys, s.fields.col, s.fields.col_ld);
    const Attend softmax{.frame = &frame,
                         .s = p,
                         .s_row = tile_keys,
                         .p = p,
                         .p_row = tile_keys,
                         .rows = static_cast<std::int32_t>(queries_here.rows),
                         .q = queries_here.position,
                         .kv = position,
                         .first = v.first,
                         .last = v.last,
                         .kv_end = frame.kv_len,
                         .scale = 1,
                         .row = s.fields.row,
                         .row_ld = s.fields.row_ld,
                         .col = s.fields.col,
                         .col_ld = s.fields.col_ld,
                         .m = memory_.m + index * rows() + first,
                         .l = memory_.l + index * rows() + first,
                         .alpha = s.alpha + first};
    (v.all && kv + v.last <= seq.kv_len ? kernel_.attend_all : kernel_.attend_some)(&softmax);
    for (std::int64_t r = 0; r < queries(); ++r) {
      float* row = p + r * tile_keys;
      const bool there = r < seq.q_len;
      std::fill(row, row + (there ? v.first : tile_keys), 0.0f);
      if (there) std::fill(row + v.last, row + tile_keys, 0.0f);
      if (!there) s.alpha[first + r] = 1;
    }
  }

  // ---- All chunks of some rows, merged.

  void merge(std::int64_t b, std::int64_t kv_head, const DecodeScratch& s) {
    const Sequence seq = sequence(problem_, b);
    if (!decoded.has(seq) || !any_query(problem_, seq, 0, seq.q_len)) return;
    const std::int64_t count = ceil_div(seq.kv_len, chunk_keys),
                       first = plan_.firsts[static_cast<std::size_t>(b)] +
                               (kv_head - (problem_.held() ? problem_.held()->first_head : 0)) * count;
    std::vector<float> o(static_cast<std::size_t>(problem_.dv)), factor(1);
    for (std::int64_t g = 0; g < problem_.group; ++g) {
      const std::int64_t h = kv_head * problem_.group + g;
      const double sink = sink_at(plan_.call, queries_of(seq, h, s).frame);
      const float* terms = row_terms(kernel_.parts, s.fields.row, s.fields.row_ld);
      for (std::int64_t r = 0; r < seq.q_len; ++r) {
        const double term = terms ? double{terms[r]} : 0;
        const Finished done = merge_row(first, count, g * queries() + r, sink, term, o, factor[0]);
        results_.store(seq,
                       {.h = h, .first = r, .count = 1, .o = o.data(), .o_row = problem_.dv, .factor = factor.data()},
                       std::span(&done, 1));
      }
    }
  }

  /// Merges chunks in order, each scaled by exp(its maximum - the largest maximum).
  Finished merge_row(std::int64_t first, std::int64_t count, std::int64_t row, double sink, double term,
                     std::vector<float>& o, float& factor) const {
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    float top = lowest;
    for (std::int64_t c = first; c < first + count; ++c) top = std::max(top, memory_.m[c * rows() + row]);
    double l = 0;
    std::fill(o.begin(), o.end(), 0.0f);
    for (std::int64_t c = first; c < first + count; ++c) {
      const std::int64_t at = c * rows() + row;
      if (memory_.m[at] == lowest && memory_.l[at] == 0) continue;
      const float share = memory_.m[at] == lowest ? memory_.l[at] : std::exp(memory_.m[at] - top);
      l += double{memory_.l[at]} * double{share};
      for (std::int64_t j = 0; j < problem_.dv; ++j)
        o[static_cast<std::size_t>(j)] += share * memory_.o[at * problem_.dv + j];
    }
    const Finished done = finish(double{top}, l, sink, term);
    factor = static_cast<float>(done.factor);
    if (done.empty()) std::fill(o.begin(), o.end(), 0.0f);
    return done;
  }

  const DecodePlan& plan_;
  const Forward& call_;
  const Problem& problem_;
  const ForwardKernel& kernel_;
  const Means& means_;
  SlotArgs slots_;
  TensorRows q_rows_;
  Results results_;
  CallMemory callers_;
  DecodeMemory memory_;
  Visits visits_;
};

}  // namespace

bool can_decode(const Call& call) {
  const Problem& problem = call.problem;
  const auto in_order = [](const Tensor& t, std::int64_t width) {
    return t.strides[static_cast<std::size_t>(t.rank) - 1] == 1 || width == 1;
  };
  const bool rows = problem.held() ? problem.held()->in_order
                                   : in_order(call.forward().k, problem.d) && in_order(call.forward().v, problem.dv);
  return rows && codegen::linear_in_p(call.mod.mod.prob);
}

std::size_t decode_workspace(const Call& call, const Means& means) { return DecodePlan(call, means).workspace; }

void decode(const Call& call, const Means& means) {
  const DecodePlan plan(call, means);
  if (means.used) means.used->add(codegen::name_of(plan.kernels.isa), "decode", plan.workspace);
  DecodeRun(plan, means)();
}

}  // namespace attune::runtime::cpu
