// runtime/ranks/host_rank.h — what both directions do on a rank that computes on the host: keys that are exchanged
#pragma once

#include <span>
#include <utility>
#include <vector>

#include <attune/tensor.h>

#include "runtime/engines/cpu/engine.h"
#include "runtime/machine/as_size.h"
#include "runtime/ranks/plan/rank.h"
#include "runtime/ranks/plan/rows.h"

namespace attune::runtime::ranks {

using Parts = std::vector<Transport::Part>;

/// Memory for a tensor of a call, not initialised.
class Buffer {
 public:
  Buffer(DType type, std::span<const std::int64_t> shape)
      : tensor_(Tensor(nullptr, type, shape)), bytes_(as_size(tensor_.size()) * size_of(type)) {
    tensor_.data = bytes_.data();
  }
  Buffer(DType type, std::initializer_list<std::int64_t> shape)
      : Buffer(type, std::span(shape.begin(), shape.size())) {}
  /// Shaped like a tensor.
  Buffer(DType type, const Tensor& like) : Buffer(type, std::span(like.shape).first(as_size(like.rank))) {}

  Buffer(Buffer&&) = default;
  Buffer(const Buffer&) = delete;

  const Tensor& tensor() const { return tensor_; }
  std::byte* row(std::int64_t i) {
    return bytes_.data() + i * tensor_.strides[2] * static_cast<std::int64_t>(size_of(tensor_.dtype));
  }
  template <class T>
  std::span<T> values() {
    return {reinterpret_cast<T*>(bytes_.data()), as_size(tensor_.size())};
  }

 private:
  Tensor tensor_;
  std::vector<std::byte> bytes_;
};

/// Bytes on their way, packed one block after the other and sent as one part a peer.
struct Staged {
  std::vector<std::vector<std::byte>> by_peer;

  explicit Staged(int count) : by_peer(static_cast<std::size_t>(count)) {}
  std::vector<std::byte>& of(int peer) { return by_peer[static_cast<std::size_t>(peer)]; }
  std::byte* more(int peer, std::size_t bytes) {
    of(peer).resize(of(peer).size() + bytes);
    return of(peer).data() + of(peer).size() - bytes;
  }
  Parts parts(int me) {
    Parts out;
    for (std::size_t p = 0; p < by_peer.size(); ++p)
      if (static_cast<int>(p) != me) out.push_back({static_cast<int>(p), by_peer[p].data(), by_peer[p].size()});
    return out;
  }
};

/// Keys and values at hand.
struct Keys {
  std::vector<Piece> pieces;
  Buffer k, v;
  std::vector<std::vector<compiler::Held::Rows>> rows;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> runs;  ///< by sequence, or one: all positions at hand
};

/// A rank that computes on the host.
class HostRank : protected Rank {
 protected:
  template <class Asked>
  HostRank(const detail::Ranks& plan, const Call& of, const Asked& call) : Rank(plan, of), k_(call.k), v_(call.v) {
    const auto in_order = [](const Tensor& t, std::int64_t width) {
      return t.strides[as_size(t.rank) - 1] == 1 || width == 1;
    };
    in_order_ = in_order(call.k, problem_.d) && in_order(call.v, problem_.dv);
  }

  void exchange(const Parts& send, const Parts& receive) const {
    if (plan_.count() > 1) plan_.transport.exchange(send, receive, nullptr);
  }

  Block block(const Piece& piece) const {
    return {.row = kv_local_[piece.first], .count = piece.rows, .first_head = piece.head, .last_head = piece.head + 1};
  }

  /// Exchanges the keys of heads [first, last) that each rank needs, of those that `of` names.
  template <class Of>
  Keys exchange_keys(std::int64_t first, std::int64_t last, const Of& of) const {
    std::vector<Piece> mine = pieces(me_, first, last, of);
    const std::int64_t rows = mine.empty() ? 0 : mine.back().at + mine.back().rows;
    Keys keys{.pieces = std::move(mine),
              .k = Buffer(k_.dtype, {1, 1, rows, problem_.d}),
              .v = Buffer(v_.dtype, {1, 1, rows, problem_.dv}),
              .rows = {},
              .runs = {}};
    const Rowed k{k_, problem_.kv.layout}, v{v_, problem_.kv.layout};
    Parts send, receive;
    std::vector<std::vector<std::byte>> staged;
    for (int peer = 0; peer < count(); ++peer) {
      if (peer == me_) continue;
      for (const Piece& piece : pieces(peer, first, last, of)) {
        if (piece.owner != me_) continue;
        for (const Rowed* t : {&k, &v}) {
          staged.emplace_back(as_size(piece.rows * t->width()) * size_of(t->t.dtype));
          pack(*t, piece.entry, block(piece), staged.back().data());
          send.push_back({peer, staged.back().data(), staged.back().size()});
        }
      }
    }
    for (const Piece& piece : keys.pieces)
      for (const auto& [t, into] : {std::pair{&k, &keys.k}, {&v, &keys.v}}) {
        if (piece.owner == me_)
          pack(*t, piece.entry, block(piece), into->row(piece.at));
        else
          receive.push_back({piece.owner, into->row(piece.at), as_size(piece.rows * t->width()) * size_of(t->t.dtype)});
      }
    exchange(send, receive);
    lay_out(keys, first, last);
    return keys;
  }

  /// Fills in where each position lies.
  void lay_out(Keys& keys, std::int64_t first, std::int64_t last) const {
    const std::int64_t heads = last - first, entries = packed() ? problem_.batch : key_entries();
    keys.rows.assign(as_size(entries * heads), {});
    GrainSet all(plan_.kv.grains.size());
    for (const Piece& piece : keys.pieces) {
      std::int64_t row = piece.at;
      for (std::size_t g = piece.first; g < piece.last; ++g) {
        const Grain& grain = plan_.kv.grains[g];
        auto& into = keys.rows[as_size((packed() ? grain.entry : piece.entry) * heads + piece.head - first)];
        if (!into.empty() && into.back().last == grain.first &&
            into.back().row + into.back().last - into.back().first == row)
          into.back().last = grain.last;
        else
          into.push_back({grain.first, grain.last, row});
        row += grain.rows();
        all.add(g);
      }
    }
    keys.runs.assign(as_size(packed() ? problem_.batch : 1), {});
    for (std::size_t g = 0; g < plan_.kv.grains.size(); ++g) {
      if (!all.has(g)) continue;
      const Grain& grain = plan_.kv.grains[g];
      auto& runs = keys.runs[as_size(grain.entry)];
      if (!runs.empty() && runs.back().second == grain.first)
        runs.back().second = grain.last;
      else
        runs.emplace_back(grain.first, grain.last);
    }
  }

  compiler::Problem with(const compiler::Held& held) const {
    compiler::Problem out = problem_;
    out.tell_apart().held = &held;
    return out;
  }

  /// A step of the call, with tensors of its own.
  template <class Asked>
  Call step(const Asked& call, const compiler::Problem& problem) const {
    return {.mod = of_.mod, .args = of_.args, .problem = problem, .what = call, .purpose = of_.purpose};
  }

  const Tensor &k_, &v_;
  bool in_order_ = true;
};

/// Part of the progress of a call in several steps.
inline Progress step_of(const Progress& whole, std::int64_t step, std::int64_t steps) {
  if (!whole) return {};
  return [whole, step, steps](double done) { whole((static_cast<double>(step) + done) / static_cast<double>(steps)); };
}

}  // namespace attune::runtime::ranks
