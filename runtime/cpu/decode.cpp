// runtime/cpu/decode.cpp — few queries against many keys: keys and values are read once, in place
#include "runtime/cpu/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codegen/parts.h"
#include "runtime/cpu/results.h"
#include "runtime/cpu/visits.h"

namespace attune::runtime::cpu {
namespace {

using namespace codegen;
using compiler::Problem;

/// Limit on the queries of one head. With more, packing pays off through products in registers.
constexpr std::int64_t most_queries = 8;
/// Keys of one task. A constant, so that results do not depend on the number of threads.
constexpr std::int32_t chunk_keys = 512;
/// Keys whose scores are held at a time.
constexpr std::int32_t tile_keys = 128;

/// One chunk of one (batch entry, head) of keys, for all the queries of its group of heads.
struct Chunk {
  std::int64_t b, kv_head, index;
};

class DecodeRun {
 public:
  DecodeRun(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem, const Means& means)
      : lowered_(lowered), call_(call), problem_(problem), means_(means), kit_(kit(means.isa, Unit::f32, call.q.dtype)),
        kernel_(forward_kernel(lowered, means.isa, Unit::f32)), slots_(lowered), results_(call, problem, means.isa),
        workers_(workers_for(1 << 20, means.executor)), cut_{.tile_q = queries(),
                                                             .tile_kv = tile_keys,
                                                             .group = queries(),
                                                             .panel = 2 * kit_->tiling.width} {
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      firsts_.push_back(static_cast<std::int64_t>(chunks_.size()));
      const std::int64_t count = pieces(sequence(problem, b).kv_len, chunk_keys);
      for (std::int64_t h = 0; h < problem.kv_heads; ++h)
        for (std::int64_t i = 0; i < count; ++i) chunks_.push_back({b, h, i});
    }
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
    const Visits visits(problem_, cut_, lowered_, means_.executor);
    visits_ = &visits;
    run_tasks(
        static_cast<std::int64_t>(chunks_.size()),
        [&](std::int64_t i, int worker) { attend(i, scratch_[static_cast<std::size_t>(worker)]); }, means_.executor,
        means_.progress);
    run_tasks(
        problem_.batch * problem_.kv_heads,
        [&](std::int64_t i, int worker) {
          merge(i / problem_.kv_heads, i % problem_.kv_heads, scratch_[static_cast<std::size_t>(worker)]);
        },
        means_.executor);
  }

 private:
  std::int32_t queries() const { return static_cast<std::int32_t>(std::max<std::int64_t>(1, problem_.q.length)); }
  /// Rows of a chunk: all queries of the heads that share its keys, one head after the other.
  std::int64_t rows() const { return problem_.group * queries(); }
  std::int64_t row_ld() const { return up_to(queries(), 16); }

  struct Scratch {
    float *q, *s, *alpha;
    std::uint32_t *head, *row, *col;
  };

  void lay_out(Workspace& memory) {
    const auto count = static_cast<std::int64_t>(chunks_.size());
    o_ = memory.take<float>(count * rows() * problem_.dv);
    m_ = memory.take<float>(count * rows());
    l_ = memory.take<float>(count * rows());
    scratch_.clear();
    const auto& parts = kernel_->parts;
    for (int w = 0; w < workers_; ++w) {
      Scratch s{};
      s.q = memory.take<float>(rows() * problem_.d);
      s.s = memory.take<float>(rows() * tile_keys);
      s.alpha = memory.take<float>(rows());
      s.head = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.head_fields()));
      s.row = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.row_fields()) * row_ld());
      s.col = memory.take<std::uint32_t>(static_cast<std::int64_t>(parts.col_fields()) * tile_keys);
      scratch_.push_back(s);
    }
  }

  Frame frame_of(const Sequence& seq, std::int64_t h, const Scratch& s) const {
    Frame frame = slots_.frame(problem_, seq, h);
    frame.head = s.head;
    kernel_->head_fields(&frame, s.head);
    return frame;
  }

  // ---- One chunk of keys.

  void attend(std::int64_t index, const Scratch& s) {
    const Chunk& chunk = chunks_[static_cast<std::size_t>(index)];
    const Sequence seq = sequence(problem_, chunk.b);
    std::fill_n(m_ + index * rows(), rows(), -std::numeric_limits<float>::infinity());
    std::fill_n(l_ + index * rows(), rows(), 0.0f);
    std::fill_n(o_ + index * rows() * problem_.dv, rows() * problem_.dv, 0.0f);
    if (seq.q_len == 0) return;
    for (std::int64_t g = 0; g < problem_.group; ++g)
      load_rows(*kit_, call_.q, matrix(call_.q, problem_.q.layout, chunk.b, head(chunk, g), seq.q_start), 0, seq.q_len,
                problem_.d, problem_.d, static_cast<float>(problem_.scale), s.q + g * queries() * problem_.d,
                problem_.d);
    const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(seq.kv_len, (chunk.index + 1) * chunk_keys));
    for (auto kv = static_cast<std::int32_t>(chunk.index * chunk_keys); kv < end; kv += tile_keys)
      tile(index, chunk, seq, kv, std::min(end, kv + tile_keys) - kv, s);
  }

  std::int64_t head(const Chunk& chunk, std::int64_t g) const { return chunk.kv_head * problem_.group + g; }

  void tile(std::int64_t index, const Chunk& chunk, const Sequence& seq, std::int32_t kv, std::int32_t keys,
            const Scratch& s) {
    std::int32_t begin = keys, end = 0;
    for (std::int64_t g = 0; g < problem_.group; ++g) {
      const Visit v = visit(chunk, g, kv);
      if (v.first == v.last) continue;
      begin = std::min(begin, v.begin);
      end = std::max(end, v.end);
    }
    if (begin >= end) return;
    const MatrixLayout k = matrix(call_.k, problem_.kv.layout, seq.kv_b, chunk.kv_head, seq.kv_start),
                       v = matrix(call_.v, problem_.kv.layout, seq.kv_b, chunk.kv_head, seq.kv_start);
    // Keys of a tile that no head keeps are not read: their memory may hold anything.
    std::fill_n(s.s, rows() * tile_keys, 0.0f);
    const Dots dots{.q = s.q,
                    .q_row = problem_.d,
                    .rows = rows(),
                    .k = element(call_.k, k.origin + (kv + begin) * k.row),
                    .k_row = k.row,
                    .count = end - begin,
                    .d = problem_.d,
                    .s = s.s + begin,
                    .s_row = tile_keys};
    kit_->dots(&dots);
    for (std::int64_t g = 0; g < problem_.group; ++g) softmax(index, chunk, seq, g, kv, s);
    const Weigh weigh{.p = s.s + begin,
                      .p_row = tile_keys,
                      .rows = rows(),
                      .v = element(call_.v, v.origin + (kv + begin) * v.row),
                      .v_row = v.row,
                      .count = end - begin,
                      .dv = problem_.dv,
                      .o = o_ + index * rows() * problem_.dv,
                      .o_row = problem_.dv,
                      .keep = s.alpha};
    kit_->weigh(&weigh);
  }

  Visit visit(const Chunk& chunk, std::int64_t g, std::int32_t kv) const {
    return visits_->visit(chunk.b, head(chunk, g), 0, 0, kv / cut_.panel);
  }

  /// Replaces one head's scores with probabilities; 0 where it keeps nothing.
  void softmax(std::int64_t index, const Chunk& chunk, const Sequence& seq, std::int64_t g, std::int32_t kv,
               const Scratch& s) {
    const std::int64_t first = g * queries();
    float* p = s.s + first * tile_keys;
    const Visit v = visit(chunk, g, kv);
    if (v.first == v.last) {
      std::fill_n(p, queries() * tile_keys, 0.0f);
      std::fill_n(s.alpha + first, queries(), 1.0f);
      return;
    }
    const Frame frame = frame_of(seq, head(chunk, g), s);
    const std::int32_t q = problem_.q_offset;
    kernel_->row_fields(&frame, q, static_cast<std::int32_t>(row_ld()), s.row, row_ld());
    if (kernel_->parts.col_fields()) kernel_->col_fields(&frame, kv, tile_keys, s.col, tile_keys);
    const Attend softmax{.frame = &frame,
                         .s = p,
                         .s_row = tile_keys,
                         .p = p,
                         .p_row = tile_keys,
                         .rows = static_cast<std::int32_t>(seq.q_len),
                         .q = q,
                         .kv = kv,
                         .first = v.first,
                         .last = v.last,
                         .kv_end = frame.kv_len,
                         .scale = 1,
                         .row = s.row,
                         .row_ld = row_ld(),
                         .col = s.col,
                         .col_ld = tile_keys,
                         .m = m_ + index * rows() + first,
                         .l = l_ + index * rows() + first,
                         .alpha = s.alpha + first};
    (v.all && kv + v.last <= seq.kv_len ? kernel_->attend_all : kernel_->attend_some)(&softmax);
    for (std::int64_t r = 0; r < queries(); ++r) {
      float* row = p + r * tile_keys;
      const bool there = r < seq.q_len;
      std::fill(row, row + (there ? v.first : tile_keys), 0.0f);
      if (there) std::fill(row + v.last, row + tile_keys, 0.0f);
      if (!there) s.alpha[first + r] = 1;
    }
  }

  // ---- Merging all chunks of some rows.

  void merge(std::int64_t b, std::int64_t kv_head, const Scratch& s) {
    const Sequence seq = sequence(problem_, b);
    const std::int64_t count = pieces(seq.kv_len, chunk_keys),
                       first = firsts_[static_cast<std::size_t>(b)] + kv_head * count;
    std::vector<float> o(static_cast<std::size_t>(problem_.dv)), factor(1);
    for (std::int64_t g = 0; g < problem_.group; ++g) {
      const std::int64_t h = kv_head * problem_.group + g;
      const Frame frame = frame_of(seq, h, s);
      kernel_->row_fields(&frame, problem_.q_offset, static_cast<std::int32_t>(row_ld()), s.row, row_ld());
      const double sink = sink_at(lowered_, frame);
      for (std::int64_t r = 0; r < seq.q_len; ++r) {
        const Finished done = merge_row(first, count, g * queries() + r, sink, term(s, r), o, factor[0]);
        results_.store(seq,
                       {.h = h, .first = r, .count = 1, .o = o.data(), .o_row = problem_.dv, .factor = factor.data()},
                       std::span(&done, 1));
      }
    }
  }

  double term(const Scratch& s, std::int64_t r) const {
    if (!kernel_->parts.has_row_term) return 0;
    const auto field = static_cast<std::int64_t>(kernel_->parts.row_fields()) - 1;
    return double{reinterpret_cast<const float*>(s.row)[field * row_ld() + r]};
  }

  /// Merges chunks in order, each scaled by exp(its maximum - the largest maximum).
  Finished merge_row(std::int64_t first, std::int64_t count, std::int64_t row, double sink, double term,
                     std::vector<float>& o, float& factor) const {
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    float top = lowest;
    for (std::int64_t c = first; c < first + count; ++c) top = std::max(top, m_[c * rows() + row]);
    double l = 0;
    std::fill(o.begin(), o.end(), 0.0f);
    for (std::int64_t c = first; c < first + count; ++c) {
      const std::int64_t at = c * rows() + row;
      if (m_[at] == lowest && l_[at] == 0) continue;
      const float share = m_[at] == lowest ? l_[at] : std::exp(m_[at] - top);
      l += double{l_[at]} * double{share};
      for (std::int64_t j = 0; j < problem_.dv; ++j) o[static_cast<std::size_t>(j)] += share * o_[at * problem_.dv + j];
    }
    const Finished done = finish(double{top}, l, sink, term);
    factor = static_cast<float>(done.factor);
    if (done.empty()) std::fill(o.begin(), o.end(), 0.0f);
    return done;
  }

  const compiler::LoweredMod& lowered_;
  const Forward& call_;
  const Problem& problem_;
  const Means& means_;
  std::shared_ptr<const Kit> kit_;
  std::shared_ptr<const ForwardKernel> kernel_;
  Slots slots_;
  Results results_;
  int workers_;
  Cut cut_;
  std::vector<Chunk> chunks_;
  std::vector<std::int64_t> firsts_;                  ///< by batch entry: its first chunk
  float *o_ = nullptr, *m_ = nullptr, *l_ = nullptr;  ///< by chunk and row
  std::vector<Scratch> scratch_;
  const Visits* visits_ = nullptr;
};

}  // namespace

bool decodes(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem) {
  const auto in_order = [&](const Tensor& t, std::int64_t width) {
    return t.strides[static_cast<std::size_t>(t.rank) - 1] == 1 || width == 1;
  };
  return problem.q.length <= most_queries && in_order(call.k, problem.d) && in_order(call.v, problem.dv) &&
         codegen::linear_in_p(lowered.mod.prob);
}

std::size_t decode_workspace(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem,
                             const Means& means) {
  return DecodeRun(lowered, call, problem, means).workspace();
}

void decode(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem, const Means& means) {
  DecodeRun run(lowered, call, problem, means);
  if (means.used) *means.used = {std::string(codegen::name_of(means.isa)), "decode", run.workspace()};
  run();
}

}  // namespace attune::runtime::cpu
