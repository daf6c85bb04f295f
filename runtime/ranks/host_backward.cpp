// runtime/ranks/host_backward.cpp — a rank's part of a backward on the host: gradients of keys go back to their owners
#include "runtime/machine/tensor.h"
#include "runtime/ranks/host.h"
#include "runtime/ranks/host_rank.h"
#include "runtime/ranks/plan/digester.h"

namespace attune::runtime::ranks {
namespace {

using compiler::Held;
using compiler::Problem;

class BackwardRank : HostRank {
 public:
  BackwardRank(const detail::Ranks& plan, const Call& of, const Means& means)
      : HostRank(plan, of, of.backward()), call_(of.backward()), means_(means) {}

  /// Keys travel again, by groups of heads, whatever the forward's schedule; gradients of keys that were received go
  /// back to their owners in f32.
  void operator()() {
    agree(digest());
    std::vector<std::vector<double>> captured;
    for (const Backward::Captured& one : call_.captured) captured.emplace_back(as_size(one.of.size()));
    const std::int64_t groups = layer_.chosen().travel == Travel::gather ? layer_.chosen().groups : 1;
    for (std::int64_t g = 0; g < groups; ++g)
      group(problem_.kv_heads * g / groups, problem_.kv_heads * (g + 1) / groups, captured,
            step_of(means_.progress, g, groups));
    for (std::size_t i = 0; i < captured.size(); ++i) {
      const Tensor& into = call_.captured[i].into;
      const Tensor total(captured[i].data(), DType::f64, std::span(into.shape).first(as_size(into.rank)));
      if (call_.sum_captured) sum(plan_.transport, total, nullptr);
      convert(total, into);
    }
  }

 private:
  ir::Digest digest() const {
    Digester d;
    d.add(std::int64_t{1});
    d.add(lowered_.digest);
    d.add(std::int64_t{call_.dk.given()});
    d.add(std::int64_t{call_.dv.given()});
    d.add(std::int64_t{call_.sum_captured});
    for (const Backward::Captured& one : call_.captured) d.add(one.of.size());
    return d.digest();
  }

  void group(std::int64_t first, std::int64_t last, std::vector<std::vector<double>>& captured,
             const Progress& progress) {
    Keys keys = exchange_keys(first, last, needed());
    const Held held{.q = own_queries(), .kv = keys.rows, .first_head = first, .last_head = last, .in_order = in_order_};
    const Problem problem = with(held);
    Buffer dk(DType::f32, keys.k.tensor()), dv(DType::f32, keys.v.tensor());
    Backward call = call_;
    call.k = keys.k.tensor();
    call.v = keys.v.tensor();
    if (call.dk.given()) call.dk = dk.tensor();
    if (call.dv.given()) call.dv = dv.tensor();
    std::vector<Buffer> of_group;
    for (const Backward::Captured& one : call_.captured) of_group.emplace_back(DType::f32, one.into);
    for (std::size_t i = 0; i < of_group.size(); ++i) call.captured[i].into = of_group[i].tensor();
    Means means = means_;
    means.progress = progress;
    cpu::backward(step(call, problem), means);
    for (std::size_t i = 0; i < of_group.size(); ++i)
      for (std::size_t j = 0; j < captured[i].size(); ++j)
        captured[i][j] += static_cast<double>(of_group[i].values<float>()[j]);
    give_back(keys, first, last, dk, call_.dk);
    give_back(keys, first, last, dv, call_.dv);
  }

  /// Sends gradients to the owners of their keys, who add them up in the order of ranks.
  void give_back(Keys& keys, std::int64_t first, std::int64_t last, Buffer& gradients, const Tensor& into) const {
    if (!into.given()) return;
    const std::int64_t width = gradients.tensor().shape[3], rows = plan_.kv_rows(me_), heads = last - first;
    const auto bytes = [&](const Piece& piece) { return as_size(piece.rows * width) * sizeof(float); };
    Parts send, receive;
    for (const Piece& piece : keys.pieces)
      if (piece.owner != me_) send.push_back({piece.owner, gradients.row(piece.at), bytes(piece)});
    struct Back {
      Piece piece;
      const float* values;
    };
    std::vector<Back> all;
    std::vector<std::vector<float>> received;
    for (int rank = 0; rank < count(); ++rank)
      for (const Piece& piece : rank == me_ ? keys.pieces : pieces(rank, first, last, needed())) {
        if (piece.owner != me_) continue;
        if (rank == me_) {
          all.push_back({piece, reinterpret_cast<const float*>(gradients.row(piece.at))});
          continue;
        }
        received.emplace_back(as_size(piece.rows * width));
        all.push_back({piece, received.back().data()});
        receive.push_back({rank, received.back().data(), bytes(piece)});
      }
    exchange(send, receive);
    std::vector<double> sums(as_size(key_entries() * heads * rows * width));
    for (const Back& back : all) {
      double* to = sums.data() +
                   (((back.piece.entry * heads + back.piece.head - first) * rows) + kv_local_[back.piece.first]) *
                       width;
      for (std::int64_t i = 0; i < back.piece.rows * width; ++i) to[i] += static_cast<double>(back.values[i]);
    }
    for (std::int64_t e = 0; e < key_entries(); ++e)
      for (std::int64_t h = first; h < last; ++h) {
        const MatrixLayout at = matrix(into, problem_.kv.layout, e, h, 0);
        const double* from = sums.data() + (e * heads + h - first) * rows * width;
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < width; ++j)
            runtime::store(into, at.origin + i * at.row + j * at.column, from[i * width + j]);
      }
  }

  const Backward& call_;
  const Means& means_;
};

}  // namespace

void backward_on_host(const detail::Ranks& plan, const Call& call, const Means& means) {
  BackwardRank(plan, call, means)();
}

}  // namespace attune::runtime::ranks
