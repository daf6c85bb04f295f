// runtime/ranks/host_forward.cpp — a rank's part of a forward on the host: by each way in which keys and queries travel
#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "codegen/parts.h"
#include "runtime/engines/infinity.h"
#include "runtime/engines/merge.h"
#include "runtime/machine/tensor.h"
#include "runtime/ranks/host.h"
#include "runtime/ranks/host_rank.h"
#include "runtime/ranks/plan/digester.h"

namespace attune::runtime::ranks {
namespace {

using compiler::Held;
using compiler::Problem;

class ForwardRank : HostRank {
 public:
  ForwardRank(const detail::Ranks& plan, const Call& of, const Means& means)
      : HostRank(plan, of, of.forward()), call_(of.forward()), means_(means) {}

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
    Means means = means_;
    means.progress = progress;
    Used used;
    if (means.used) means.used = &used;
    cpu::forward(step(call, problem), means);
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
  const Means& means_;
  Used used_;  ///< by the last of its steps
};

}  // namespace

void forward_on_host(const detail::Ranks& plan, const Call& call, const Means& means) {
  ForwardRank(plan, call, means)();
}

}  // namespace attune::runtime::ranks
