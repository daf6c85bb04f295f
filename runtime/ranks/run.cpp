// runtime/ranks/run.cpp — a rank's part of a call: checked against the plan, exchanged with others, computed on the
// host
#include "runtime/ranks/run.h"

#include <algorithm>
#include <cstring>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/parts.h"
#include "runtime/as_size.h"
#include "runtime/infinity.h"
#include "runtime/merge.h"
#include "runtime/ranks/digester.h"
#include "runtime/ranks/or_stop.h"
#include "runtime/ranks/rank.h"
#include "runtime/ranks/rows.h"
#include "runtime/ranks/transport.h"
#include "runtime/tensor.h"

namespace attune::runtime::ranks {
namespace {

using compiler::Held;
using compiler::Problem;
using Parts = std::vector<Transport::Part>;

Error shape(std::string_view name, const Tensor& t, std::int64_t rows, int rank) {
  return Error("shares-shape", fmt::format("{} does not have the rows of rank {}", name, rank), {},
               fmt::format("it is {}, and the rank holds {} positions", t.describe(), rows),
               "pass the rows of Shares::of, and of keys_of, in their order");
}

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
  std::vector<std::vector<Held::Rows>> rows;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> runs;  ///< by sequence, or one: all positions at hand
};

/// A rank that computes on the host.
class HostRank : protected Rank {
 protected:
  template <class Call>
  HostRank(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const Call& call, const Problem& problem)
      : Rank(plan, lowered, call, problem), k_(call.k), v_(call.v) {
    const auto in_order = [](const Tensor& t, std::int64_t width) {
      return t.strides[as_size(t.rank) - 1] == 1 || width == 1;
    };
    in_order_ = in_order(call.k, problem.d) && in_order(call.v, problem.dv);
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

  Problem with(const Held& held) const {
    Problem out = problem_;
    out.tell_apart().held = &held;
    return out;
  }

  const Tensor &k_, &v_;
  bool in_order_ = true;
};

/// Part of the progress of a call in several steps.
Progress step_of(const Progress& whole, std::int64_t step, std::int64_t steps) {
  if (!whole) return {};
  return [whole, step, steps](double done) { whole((static_cast<double>(step) + done) / static_cast<double>(steps)); };
}

class ForwardRank : HostRank {
 public:
  ForwardRank(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const Forward& call,
              const Problem& problem, const cpu::Means& means)
      : HostRank(plan, lowered, call, problem), call_(call), means_(means) {}

  void operator()() {
    agree(digest());
    switch (travel()) {
      case Travel::best:
      case Travel::gather: gather(); break;
      case Travel::ring: ring(); break;
      case Travel::heads: heads(); break;
      case Travel::few: few(); break;
    }
    if (!means_.used) return;
    *means_.used = used_;
    means_.used->kernel += fmt::format(" by {}", name_of(travel()));
  }

 private:
  /// The plan's schedule, unless it merges parts and this call's prob mod keeps them from being merged.
  Travel travel() const {
    const Travel planned = layer_.chosen().travel;
    const bool merges = planned == Travel::ring || planned == Travel::few;
    return merges && !codegen::linear_in_p(lowered_.mod.prob) ? Travel::gather : planned;
  }

  ir::Digest digest() const {
    Digester d;
    d.add(std::int64_t{0});
    d.add(lowered_.digest);
    for (const Tensor* t : {&call_.o, &call_.lse, &call_.max})
      d.add(t->given() ? static_cast<std::int64_t>(t->dtype) : std::int64_t{-1});
    return d.digest();
  }

  void gather() {
    const std::int64_t groups = layer_.chosen().groups;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t first = problem_.kv_heads * g / groups, last = problem_.kv_heads * (g + 1) / groups;
      Keys keys = exchange_keys(first, last, needed());
      const Held held{
          .q = own_queries(), .kv = keys.rows, .first_head = first, .last_head = last, .in_order = in_order_};
      compute(keys, held, call_, step_of(means_.progress, g, groups));
    }
  }

  void compute(const Keys& keys, const Held& held, Forward call, const Progress& progress) {
    call.k = keys.k.tensor();
    call.v = keys.v.tensor();
    const Problem problem = with(held);
    cpu::Means means = means_;
    means.progress = progress;
    Used used;
    if (means.used) means.used = &used;
    cpu::forward(lowered_, call, problem, means);
    used.workspace = std::max(used.workspace, used_.workspace);
    used_ = used;
  }

  // ---- Parts of the keys, merged by their lse.

  /// Results over some keys: f32 and f64, until the end.
  struct Merging {
    Buffer o, lse, max;
    bool first = true;  ///< nothing is in it, and the sink is to join

    explicit Merging(const Tensor& like_o, const Problem& p)
        : o(DType::f32, like_o), lse(DType::f64, lse_shape(like_o, p)), max(DType::f64, lse_shape(like_o, p)) {
      clear();
    }
    static std::vector<std::int64_t> lse_shape(const Tensor& o, const Problem& p) {
      return p.q.packed() ? std::vector{o.shape[1], o.shape[0]} : std::vector{o.shape[0], o.shape[1], o.shape[2]};
    }
    void clear() {
      std::ranges::fill(o.values<float>(), 0.0f);
      std::ranges::fill(lse.values<double>(), -infinity);
      std::ranges::fill(max.values<double>(), -infinity);
    }
  };

  /// Attends to all keys at hand, one contiguous part after the other.
  void add_parts(const Keys& keys, std::vector<std::vector<Held::Rows>> queries, const Tensor& q, Merging& into) {
    std::size_t calls = into.first ? 1 : 0;
    for (const auto& runs : keys.runs) calls = std::max(calls, runs.size());
    Held held{.q = std::move(queries),
              .kv = keys.rows,
              .first_head = 0,
              .last_head = problem_.kv_heads,
              .in_order = in_order_};
    Buffer max(DType::f64, into.max.tensor());
    for (std::size_t i = 0; i < calls; ++i) {
      held.part.clear();
      for (const auto& runs : keys.runs)
        held.part.push_back(i < runs.size() ? runs[i] : std::pair<std::int64_t, std::int64_t>{0, 0});
      Forward call = call_;
      call.q = q;
      call.o = into.o.tensor();
      call.lse = into.lse.tensor();
      call.max = call_.max.given() ? max.tensor() : Tensor();
      if (!into.first) {
        call.o_before = call.o;
        call.lse_before = call.lse;
      }
      compute(keys, held, call, {});
      into.first = false;
      if (!call_.max.given()) continue;
      const std::span<double> all = into.max.values<double>(), here = max.values<double>();
      for (std::size_t j = 0; j < all.size(); ++j)
        if (here[j] > all[j] || std::isnan(here[j])) all[j] = here[j];
    }
  }

  void store(const Merging& from) const {
    convert(from.o.tensor(), call_.o);
    if (call_.lse.given()) convert(from.lse.tensor(), call_.lse);
    if (call_.max.given()) convert(from.max.tensor(), call_.max);
  }

  void ring() {
    Merging merging(call_.o, problem_);
    for (int step = 0; step < count(); ++step) {
      const auto at_step = [&](std::int64_t e, std::int64_t h, int rank, std::size_t g) {
        return plan_.dealt().kv[g] == (rank + step) % count() && layer_.needs->of(e, h, rank).has(g);
      };
      add_parts(exchange_keys(0, problem_.kv_heads, at_step), own_queries(), call_.q, merging);
    }
    store(merging);
  }

  void few() {
    const std::span<const Shares::Stretch> mine = plan_.q_of[static_cast<std::size_t>(me_)];
    const Buffer q(call_.q.dtype, whole_shape(problem_.q_heads, problem_.d));
    {
      Staged send(count()), receive(count());
      const Block all{0, plan_.q_rows(me_), 0, problem_.q_heads};
      const Rowed own{call_.q, problem_.q.layout}, into{q.tensor(), problem_.q.layout};
      for (int peer = 0; peer < count(); ++peer) {
        pack(own, all, send.more(peer, own.bytes(all)));
        receive.more(peer, own.bytes({0, plan_.q_rows(peer), 0, problem_.q_heads}));
      }
      receive.of(me_) = send.of(me_);
      exchange(send.parts(me_), receive.parts(me_));
      for (int peer = 0; peer < count(); ++peer) unpack_rows(receive.of(peer), peer, into, 0, problem_.q_heads);
    }
    Merging merging(Tensor(nullptr, DType::f32, whole_shape(problem_.q_heads, problem_.dv)), problem_);
    merging.first = me_ == 0;  // the sink joins once
    const auto own = [&](std::int64_t, std::int64_t, int rank, std::size_t g) { return plan_.dealt().kv[g] == rank; };
    add_parts(exchange_keys(0, problem_.kv_heads, own), all_queries(), q.tensor(), merging);

    // Parts go to the owners of their queries, who merge them in the order of ranks.
    Staged send(count()), receive(count());
    const std::array from{Rowed{merging.o.tensor(), problem_.q.layout},
                          Rowed{merging.lse.tensor(), problem_.q.layout, true},
                          Rowed{merging.max.tensor(), problem_.q.layout, true}};
    for (int peer = 0; peer < count(); ++peer)
      for (const Rowed& t : from) {
        for (const Shares::Stretch& s : plan_.q_of[static_cast<std::size_t>(peer)]) {
          const Block block{s.begin, s.end - s.begin, 0, problem_.q_heads};
          pack(t, block, send.more(peer, t.bytes(block)));
        }
        receive.more(peer, t.bytes({0, plan_.q_rows(me_), 0, problem_.q_heads}));
      }
    receive.of(me_) = send.of(me_);
    exchange(send.parts(me_), receive.parts(me_));
    Merging all(call_.o, problem_), one(call_.o, problem_);
    for (int peer = 0; peer < count(); ++peer) {
      const std::byte* at = receive.of(peer).data();
      for (const auto& [t, numbers] : {std::pair{&one.o, false}, {&one.lse, true}, {&one.max, true}}) {
        const Rowed into{t->tensor(), problem_.q.layout, numbers};
        std::int64_t row = 0;
        for (const Shares::Stretch& s : mine) {
          at = unpack(at, {row, s.end - s.begin, 0, problem_.q_heads}, into);
          row += s.end - s.begin;
        }
      }
      merge_into(all, one);
    }
    store(all);
  }

  void merge_into(Merging& all, Merging& one) const {
    const std::span<double> lse = all.lse.values<double>(), more = one.lse.values<double>();
    for (std::size_t i = 0; i < all.max.values<double>().size(); ++i) {
      double &most = all.max.values<double>()[i], here = one.max.values<double>()[i];
      if (here > most || std::isnan(here)) most = here;
    }
    // Rows of lse are [B, H, S], packed [H, T]; those of o are [B, H, S], packed [T, H].
    const std::int64_t heads = problem_.q_heads, rows = packed() ? call_.o.shape[0] : 0;
    for (std::size_t i = 0; i < lse.size(); ++i) {
      const auto n = static_cast<std::int64_t>(i);
      const std::int64_t row = packed() ? n % rows * heads + n / rows : n;
      const Merged with = runtime::merge(more[i], lse[i]);
      float* into = all.o.values<float>().data() + row * problem_.dv;
      const float* from = one.o.values<float>().data() + row * problem_.dv;
      for (std::int64_t j = 0; j < problem_.dv; ++j) {
        double sum = with.own != 0 ? double{from[j]} * with.own : 0;
        if (with.before != 0) sum += double{into[j]} * with.before;
        into[j] = static_cast<float>(sum);
      }
      lse[i] = with.lse;
    }
  }

  // ---- All-to-all.

  std::vector<std::int64_t> whole_shape(std::int64_t heads, std::int64_t width) const {
    return packed() ? std::vector{plan_.q.rows, heads, width} : std::vector{problem_.batch, heads, plan_.q.rows, width};
  }

  /// Rows of a peer, in the order in which it holds them, to their places in the whole call.
  const std::byte* unpack_rows(std::span<const std::byte> from, int peer, const Rowed& into, std::int64_t first,
                               std::int64_t last) const {
    // A peer packs all its rows of an (entry, head) at once.
    const std::byte* at = from.data();
    for (std::int64_t e = 0; e < into.entries(); ++e)
      for (std::int64_t h = first; h < last; ++h)
        for (const Shares::Stretch& s : plan_.q_of[static_cast<std::size_t>(peer)]) {
          at = unpack(at, e, {s.begin, s.end - s.begin, h, h + 1}, into);
        }
    return at;
  }

  void heads() {
    const std::int64_t each = problem_.kv_heads / count(), q_each = each * problem_.group, first = me_ * each;
    const auto q_block = [&](int of_rows, int of_heads) {
      return Block{0, plan_.q_rows(of_rows), of_heads * q_each, (of_heads + 1) * q_each};
    };
    const Buffer q(call_.q.dtype, whole_shape(q_each, problem_.d)), o(call_.o.dtype, whole_shape(q_each, problem_.dv));
    {
      const Rowed own{call_.q, problem_.q.layout}, into{q.tensor(), problem_.q.layout};
      Staged send(count()), receive(count());
      for (int peer = 0; peer < count(); ++peer) {
        pack(own, q_block(me_, peer), send.more(peer, own.bytes(q_block(me_, peer))));
        receive.more(peer, own.bytes(q_block(peer, me_)));
      }
      receive.of(me_) = send.of(me_);
      exchange(send.parts(me_), receive.parts(me_));
      for (int peer = 0; peer < count(); ++peer) unpack_rows(receive.of(peer), peer, into, 0, q_each);
    }
    const auto of_heads = [&](std::int64_t, std::int64_t h, int rank, std::size_t) { return h / each == rank; };
    const Keys keys = exchange_keys_of_heads(of_heads, first, each);

    const auto shape = Merging::lse_shape(o.tensor(), problem_);
    const Buffer lse(call_.lse.given() ? call_.lse.dtype : DType::f32, shape),
        max(call_.max.given() ? call_.max.dtype : DType::f32, shape);
    Forward call = call_;
    call.q = from_head(q.tensor(), first * problem_.group, 1);
    call.o = from_head(o.tensor(), first * problem_.group, 1);
    call.lse = call_.lse.given() ? from_head(lse.tensor(), first * problem_.group, packed() ? 0 : 1) : Tensor();
    call.max = call_.max.given() ? from_head(max.tensor(), first * problem_.group, packed() ? 0 : 1) : Tensor();
    const Held held{
        .q = all_queries(), .kv = keys.rows, .first_head = first, .last_head = first + each, .in_order = in_order_};
    compute(keys, held, call, means_.progress);

    Staged send(count()), receive(count());
    const auto each_result = [&](const auto& body) {
      body(o, call_.o, false);
      if (call_.lse.given()) body(lse, call_.lse, true);
      if (call_.max.given()) body(max, call_.max, true);
    };
    each_result([&](const Buffer& from, const Tensor& into, bool numbers) {
      const Rowed all{from.tensor(), problem_.q.layout, numbers}, own{into, problem_.q.layout, numbers};
      for (int peer = 0; peer < count(); ++peer) {
        for (std::int64_t e = 0; e < all.entries(); ++e)
          for (std::int64_t h = 0; h < q_each; ++h)
            for (const Shares::Stretch& s : plan_.q_of[static_cast<std::size_t>(peer)]) {
              const Block block{s.begin, s.end - s.begin, h, h + 1};
              pack(all, e, block, send.more(peer, as_size(block.count * all.width()) * size_of(from.tensor().dtype)));
            }
        receive.more(peer, own.bytes(q_block(me_, peer)));
      }
    });
    receive.of(me_) = send.of(me_);
    exchange(send.parts(me_), receive.parts(me_));
    for (int peer = 0; peer < count(); ++peer) {
      const std::byte* at = receive.of(peer).data();
      each_result([&](const Buffer&, const Tensor& into, bool numbers) {
        at = unpack(at, q_block(me_, peer), {into, problem_.q.layout, numbers});
      });
    }
  }

  /// All positions of this rank's heads.
  template <class Of>
  Keys exchange_keys_of_heads(const Of& of, std::int64_t first, std::int64_t each) const {
    Keys keys = exchange_keys(0, problem_.kv_heads, of);
    lay_out(keys, first, first + each);
    return keys;
  }

  /// A tensor of some heads, addressed by their numbers in the whole call: the sum is one of integers, since nothing is
  /// at its beginning.
  static Tensor from_head(Tensor t, std::int64_t first, std::size_t dimension) {
    t.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(t.data) -
                                     static_cast<std::uintptr_t>(first * t.strides[dimension]) * size_of(t.dtype));
    return t;
  }

  const Forward& call_;
  const cpu::Means& means_;
  Used used_;  ///< by the last of its steps
};

class BackwardRank : HostRank {
 public:
  BackwardRank(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const Backward& call,
               const Problem& problem, const cpu::Means& means)
      : HostRank(plan, lowered, call, problem), call_(call), means_(means) {}

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
    cpu::Means means = means_;
    means.progress = progress;
    cpu::backward(lowered_, call, problem, means);
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
  const cpu::Means& means_;
};

/// The starts of packed sequences among the rows of one rank.
std::vector<std::int64_t> local_starts(const Axis& axis, std::span<const int> owners, int rank) {
  std::vector<std::int64_t> out{0};
  for (std::size_t e = 0; e + 1 < axis.firsts.size(); ++e) {
    out.push_back(out.back());
    for (auto g = as_size(axis.firsts[e]); g < as_size(axis.firsts[e + 1]); ++g)
      if (owners[g] == rank) out.back() += axis.grains[g].rows();
  }
  return out;
}

std::int64_t whole_number(const Tensor& t, std::int64_t i) {
  return static_cast<std::int64_t>(load(t, i * t.strides[0]));
}

void check_starts(std::string_view name, const Tensor& cu, const std::vector<std::int64_t>& starts) {
  if (!cu.given() && starts.empty()) return;
  if (cu.given() && cu.device.kind != Device::Kind::cpu)
    throw Error("shares-call", fmt::format("calls over ranks do not take {} on a device", name), {},
                "Shares were made of starts on the host", "pass those");
  bool same = cu.given() && cu.rank == 1 && cu.shape[0] == std::ssize(starts) &&
              (cu.dtype == DType::i32 || cu.dtype == DType::i64);
  for (std::int64_t i = 0; same && i < std::ssize(starts); ++i) same = whole_number(cu, i) == starts[as_size(i)];
  if (!same)
    throw other(fmt::format("these Shares are of another {}", name),
                starts.empty() ? "they were made of a dense batch"
                               : fmt::format("they were made of {} packed sequences", starts.size() - 1));
}

std::string_view refused(const Forward& call) { return not_over_ranks(call); }
std::string_view refused(const Backward&) { return {}; }

}  // namespace

Error other(std::string problem, std::string why) {
  return Error("shares-other", std::move(problem), {}, std::move(why),
               "pass Shares that were made of this attention and of the whole call");
}

const Layer& layer_of(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const compiler::Args& args) {
  const auto none = [] {
    return other("these Shares are of other masks", "none of their attentions has this mask with this data");
  };
  const compiler::CoverOf of = compiler::cover_of(lowered.cover);
  const bool on_device = std::ranges::any_of(
      of.captures, [&](std::uint32_t slot) { return args.captures[slot].device.kind != Device::Kind::cpu; });
  if (!on_device) {
    const MaskOf mask = mask_of(lowered, args);
    for (const Layer& layer : plan.layers)
      if (layer.mask == mask) return layer;
    throw none();
  }
  const Layer* found = nullptr;
  for (const Layer& layer : plan.layers) {
    if (layer.mask.mask != of.mask) continue;
    if (found)
      throw Error("shares-capture", "two masks of these Shares differ in what they capture alone", {},
                  "this call captures it on a device, where it is not read", "make Shares of their own for each");
    found = &layer;
  }
  if (!found) throw none();
  return *found;
}

template <class Call>
Local<Call>::Local(const detail::Ranks& plan, const Call& asked) : call_(asked) {
  if (const std::string_view what = refused(asked); !what.empty())
    throw Error("shares-call", fmt::format("calls over ranks do not take {}", what), {}, "one rank computes it alone",
                "leave it out, or call without Shares");
  check_starts("cu_seqlens_q", asked.cu_seqlens_q, plan.problem.q.starts);
  check_starts("cu_seqlens_kv", asked.cu_seqlens_kv, plan.problem.kv.starts);
  const int rank = plan.transport.rank;
  const std::size_t dimension = plan.problem.q.packed() ? 0 : 2;
  for (const auto& [name, t, rows] : {std::tuple{"q", &asked.q, plan.q_rows(rank)},
                                      {"k", &asked.k, plan.kv_rows(rank)},
                                      {"v", &asked.v, plan.kv_rows(rank)}})
    if (t->given() && t->rank == (plan.problem.q.packed() ? 3 : 4) && t->shape[dimension] != rows)
      throw shape(name, *t, rows, rank);
  if (!plan.problem.q.packed()) return;
  q_starts_ = local_starts(plan.q, plan.dealt().q, rank);
  kv_starts_ = local_starts(plan.kv, plan.dealt().kv, rank);
  call_.cu_seqlens_q = Tensor(q_starts_.data(), DType::i64, {std::ssize(q_starts_)});
  call_.cu_seqlens_kv = Tensor(kv_starts_.data(), DType::i64, {std::ssize(kv_starts_)});
  call_.max_q_len = call_.max_kv_len = 0;
}

template class Local<Forward>;
template class Local<Backward>;

Problem whole_of(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const compiler::Args& args,
                 const Problem& local, DType type) {
  const Problem& whole = plan.problem;
  if (type != plan.dtype)
    throw other("these Shares are of another type",
                fmt::format("they were made of {}, and q holds {}", name_of(plan.dtype), name_of(type)));
  const auto same = [&](std::string_view what, std::int64_t theirs, std::int64_t here) {
    if (theirs != here)
      throw other("these Shares are of another call", fmt::format("it has {} {}, and this one {}", theirs, what, here));
  };
  same("batch entries", whole.batch, local.batch);
  same("query heads", whole.q_heads, local.q_heads);
  same("key heads", whole.kv_heads, local.kv_heads);
  same("columns of q and k", whole.d, local.d);
  same("columns of v", whole.dv, local.dv);
  same("as its q_offset", whole.q_offset, local.q_offset);
  same("as its kv_offset", whole.kv_offset, local.kv_offset);
  same("entries of keys", whole.kv_shared ? 1 : whole.batch, local.kv_shared ? 1 : local.batch);
  layer_of(plan, lowered, args);  // refuses a mask that the plan is not of before anything is exchanged
  Problem out = whole;
  out.scale = local.scale;
  return out;
}

void forward(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const Forward& call,
             const Problem& problem, const cpu::Means& means) {
  or_stop(plan, [&] { ForwardRank(plan, lowered, call, problem, means)(); });
}

void backward(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const Backward& call,
              const Problem& problem, const cpu::Means& means) {
  or_stop(plan, [&] { BackwardRank(plan, lowered, call, problem, means)(); });
}

}  // namespace attune::runtime::ranks
