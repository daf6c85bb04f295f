// runtime/engines/cpu/tile_pair.cpp — a tile of keys against a tile of queries: the backward's five products, p and ds
#include "runtime/engines/cpu/backward_plan.h"

#include <algorithm>
#include <functional>

namespace attune::runtime::cpu {
namespace {

using namespace codegen;

class Meeting {
 public:
  Meeting(const BackwardState& state, const KeysAtHand& keys, const QueryTile& queries,
          std::span<const VisitedColumns> visits)
      : state_(state), sizes_(state.sizes), keys_(keys), s_(keys.s), queries_(queries), visits_(visits) {}

  void operator()() {
    const Cut& cut = sizes_.cut;
    if (state_.kernel->parts.col_fields())
      state_.kernel->col_fields(&queries_.frame, keys_.tile * cut.tile_kv, cut.tile_kv, s_.col, cut.tile_kv);
    const auto visits = visits_.first(static_cast<std::size_t>(queries_.groups));
    each_run(
        visits,
        [](const VisitedColumns& a, const VisitedColumns& b) {
          return a.first == b.first && a.last == b.last && a.all == b.all;
        },
        [this](std::int32_t g, std::int32_t groups, const VisitedColumns& v) { differentiate(g, groups, v); });
    if (keys_.pass == Pass::Sums) return;
    if (state_.call.dk.given() || state_.call.dv.given()) add_to_keys();
    if (!state_.call.dq.given()) return;
    each_run(visits, std::equal_to<>(),
             [this](std::int32_t g, std::int32_t groups, const VisitedColumns& v) { add_to_queries(g, groups, v); });
  }

 private:
  const VisitedColumns& visit(std::int64_t group) const { return visits_[static_cast<std::size_t>(group)]; }
  bool visited(std::int64_t group, std::int64_t column) const {
    return visit(group).first <= column && column < visit(group).last;
  }

  std::byte* element_at(void* matrix, std::int64_t row, std::int64_t column) const {
    return static_cast<std::byte*>(matrix) + (row * sizes_.score_row() + column) * sizes_.element_size();
  }

  /// Computes P and dS from S = Q K^T and dP = dO V^T.
  void differentiate(std::int32_t group, std::int32_t groups, const VisitedColumns& v) const {
    const std::int64_t row = std::int64_t{group} * sizes_.cut.group, end = row + groups * sizes_.cut.group;
    product(queries_.q.rows, sizes_.d, s_.k_columns, s_.s, row, groups, v);
    product(queries_.grad_o.rows, sizes_.dv, s_.v_columns, s_.dp, row, groups, v);

    const std::int64_t rows = std::min(end, queries_.rows) - row, at = row * sizes_.score_row();
    const std::int32_t kv = keys_.tile * sizes_.cut.tile_kv;
    const bool sums = keys_.pass == Pass::Sums;
    const Differentiate args{.frame = &queries_.frame,
                             .s = s_.s + at,
                             .dp = s_.dp + at,
                             .s_row = sizes_.score_row(),
                             .p = element_at(s_.p, row, 0),
                             .ds = element_at(s_.ds, row, 0),
                             .p_row = sizes_.score_row(),
                             .rows = static_cast<std::int32_t>(rows),
                             .q = static_cast<std::int32_t>(queries_.position + row),
                             .kv = kv,
                             .first = v.first,
                             .last = v.last,
                             .kv_end = queries_.frame.kv_len,
                             .scale = static_cast<float>(state_.problem.scale),
                             .row = queries_.fields + row,
                             .row_ld = field_row(sizes_.cut.tile_q),
                             .col = s_.col,
                             .col_ld = sizes_.cut.tile_kv,
                             .lse = queries_.lse + row,
                             .delta = queries_.delta + row,
                             .sum = sums ? state_.delta_sums + keys_.first_row + queries_.first + row : nullptr,
                             .gradients = keys_.gradients};
    const BackwardKernel& kernel = *state_.kernel;
    const bool all = v.all && kv + v.last <= queries_.frame.kv_len;
    (sums ? kernel.sum_rows : all ? kernel.differentiate_all : kernel.differentiate_some)(&args);
    for (std::int64_t r = row + rows; r < end; ++r) clear(r, v.first, v.last);
  }

  void product(const std::uint32_t* a, const Widths& w, const std::uint32_t* b, float* c, std::int64_t row,
               std::int64_t groups, const VisitedColumns& v) const {
    const std::int64_t a_row = sizes_.row(w) / sizes_.per_unit(), nr = sizes_.tiling.nr;
    const Product args{.a = a + row * a_row,
                       .a_row = a_row,
                       .b = b + v.first * w.as_k,
                       .b_k = nr,
                       .b_panel = nr * w.as_k,
                       .c = c + row * sizes_.score_row() + v.first,
                       .c_row = sizes_.score_row(),
                       .groups = groups,
                       .panels = (v.last - v.first) / nr,
                       .k = w.as_k,
                       .keep = nullptr};
    state_.kit->product(&args);
  }

  /// Zeroes elements that products sum over although they were not visited or do not exist.
  void clear(std::int64_t row, std::int64_t first, std::int64_t last) const {
    const auto bytes = static_cast<std::size_t>((last - first) * sizes_.element_size());
    std::memset(element_at(s_.p, row, first), 0, bytes);
    std::memset(element_at(s_.ds, row, first), 0, bytes);
  }

  /// dQ += dS K
  void add_to_queries(std::int32_t group, std::int32_t groups, const VisitedColumns& v) const {
    const std::int64_t row = std::int64_t{group} * sizes_.cut.group, nr = sizes_.tiling.nr;
    const std::int64_t step = sizes_.step(), begin = v.begin / step * step, end = round_up(v.end, step);
    const Product dq{.a = element_at(s_.ds, row, begin),
                     .a_row = sizes_.score_row() / sizes_.per_unit(),
                     .b = s_.k_rows + begin / sizes_.per_unit() * nr,
                     .b_k = nr,
                     .b_panel = sizes_.cut.tile_kv / sizes_.per_unit() * nr,
                     .c = state_.dq + (keys_.first_row + queries_.first + row) * sizes_.d.as_n,
                     .c_row = sizes_.d.as_n,
                     .groups = groups,
                     .panels = sizes_.d.as_n / nr,
                     .k = (end - begin) / sizes_.per_unit(),
                     .keep = nullptr,
                     .add = true};
    (s_.bad_k ? state_.kit->guarded_product : state_.kit->product)(&dq);
  }

  /// Panels of columns, and the rows that visit any of them.
  struct Block {
    std::int64_t first, last;  ///< columns
    std::int64_t q0, q1;       ///< rows, in steps of what products sum over
  };

  std::vector<Block> blocks() const {
    const std::int64_t nr = sizes_.tiling.nr, step = sizes_.step();
    std::vector<Block> out;
    for (std::int64_t c = 0; c < sizes_.cut.tile_kv; c += nr) {
      Block block{c, c + nr, sizes_.cut.tile_q, 0};
      for (std::int64_t g = 0; g < queries_.groups; ++g) {
        if (!visited(g, c)) continue;
        block.q0 = std::min(block.q0, g * sizes_.cut.group / step * step);
        block.q1 = round_up((g + 1) * sizes_.cut.group, step);
      }
      if (block.q0 >= block.q1) continue;
      for (std::int64_t r = block.q0; r < block.q1; ++r)
        if (!visited(r / sizes_.cut.group, c)) clear(r, c, c + nr);
      const bool joins = !out.empty() && out.back().last == c && out.back().q0 == block.q0 && out.back().q1 == block.q1;
      joins ? void(out.back().last = c + nr) : out.push_back(block);
    }
    return out;
  }

  void add_to_keys() const {
    const std::vector<Block> all = blocks();
    if (sizes_.unit == Unit::bf16) pair_rows(round_up(queries_.groups * sizes_.cut.group, sizes_.step()));
    if (state_.call.dv.given()) {
      for (const Block& block : all) add(block, queries_.grad_o.transposed, sizes_.dv, s_.p, s_.p_panels, keys_.dv);
      add_bad(queries_.grad_o, sizes_.dv, s_.p, keys_.dv);
    }
    if (state_.call.dk.given()) {
      for (const Block& block : all) add(block, queries_.q.transposed, sizes_.d, s_.ds, s_.ds_panels, keys_.dk);
      add_bad(queries_.q, sizes_.d, s_.ds, keys_.dk);
    }
  }

  /// Packs rows in pairs: products sum pairs of bf16, here along the rows.
  void pair_rows(std::int64_t rows) const {
    for (const auto& [from, into] : {std::pair(s_.p, s_.p_panels), std::pair(s_.ds, s_.ds_panels)}) {
      const PackRows args{.from = from,
                          .from_row = sizes_.score_row(),
                          .rows = rows,
                          .columns = sizes_.cut.tile_kv,
                          .into = into,
                          .panel = sizes_.panel_of_rows()};
      state_.kit->pack_rows(&args);
    }
  }

  /// Transposed dk or dv += transposed rows times ds or p. In f32 the matrix itself is the operand, its columns the
  /// panels.
  void add(const Block& block, const std::uint32_t* transposed, const Widths& w, void* matrix,
           const std::uint32_t* panels, float* sums) const {
    const std::int64_t nr = sizes_.tiling.nr, panel = sizes_.panel_of_rows(), k = block.q0 / sizes_.per_unit();
    const void* of_matrix = element_at(matrix, block.q0, block.first);
    const Product args{.a = transposed + k,
                       .a_row = sizes_.transposed_row() / sizes_.per_unit(),
                       .b = panels ? panels + block.first / nr * panel + k * nr : of_matrix,
                       .b_k = panels ? nr : sizes_.score_row(),
                       .b_panel = panels ? panel : nr,
                       .c = sums + block.first,
                       .c_row = sizes_.score_row(),
                       .groups = ceil_div(w.columns, sizes_.tiling.mr),
                       .panels = (block.last - block.first) / nr,
                       .k = (block.q1 - block.q0) / sizes_.per_unit(),
                       .keep = nullptr,
                       .add = true};
    state_.kit->product(&args);
  }

  /// Adds the products of rows that are not finite with the keys that are not removed.
  void add_bad(const LoadedRows& of, const Widths& w, const void* matrix, float* sums) const {
    for (const std::int32_t r : of.bad) {
      const VisitedColumns& v = visit(r / sizes_.cut.group);
      for (std::int64_t c = v.first; c < v.last; ++c) {
        const float x = operand(sizes_.unit, matrix, r * sizes_.score_row() + c);
        if (x == 0) continue;
        for (std::int64_t i = 0; i < w.columns; ++i)
          sums[i * sizes_.score_row() + c] += operand(sizes_.unit, of.rows, r * sizes_.row(w) + i) * x;
      }
    }
  }

  const BackwardState& state_;
  const BackwardSizes& sizes_;
  const KeysAtHand& keys_;
  const BackwardScratch& s_;
  const QueryTile& queries_;
  std::span<const VisitedColumns> visits_;
};

}  // namespace

void meet(const BackwardState& state, const KeysAtHand& keys, const QueryTile& queries,
          std::span<const VisitedColumns> visits) {
  Meeting(state, keys, queries, visits)();
}

}  // namespace attune::runtime::cpu
