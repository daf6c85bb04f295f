// runtime/ranks/device_backward.cpp — a rank's part of a backward on a device
#include <optional>

#include "codegen/ceil_div.h"
#include "runtime/ranks/device_rank.h"
#include "runtime/ranks/plan/digester.h"

namespace attune::runtime::ranks {
namespace {

/// Keys travel again, by groups of heads, whatever the forward's schedule. Each launch gives gradients of all keys of a
/// group in f32; a rank adds up those of its launches, and sends those of keys that it was sent back to their owners,
/// which add them up in the order of ranks.
class BackwardOnDevice : DeviceRank {
 public:
  BackwardOnDevice(const detail::Ranks& plan, const PartMods& parts, const Call& of, const Means& means)
      : DeviceRank(plan, parts, of, of.backward(), means), call_(of.backward()) {}

  void operator()() {
    agree(digest());
    all_ = stretches();
    const std::int64_t groups = layer_.chosen().travel == Travel::gather ? layer_.chosen().groups : 1;
    const KeyHeads most{0, ceil_div(problem_.kv_heads, groups)};
    WorkspaceLayout space;
    const std::int64_t buffers = std::min<std::int64_t>(groups, 2);
    for (std::int64_t i = 0; i < buffers; ++i) lay_out(keys_[as_size(i)], most, space);
    Own own;
    lay_out(own, space);
    for (std::int64_t i = 0; i < buffers; ++i) lay_out(gradients_[as_size(i)], most, space);
    for (const Backward::Captured& one : call_.captured)
      captured_.push_back({one.into, call_.sum_captured ? count() : 1, space});
    memory_ = begin(space, groups);
    put_own(own, memory_);
    for (const OfCaptured& one : captured_) one.clear(memory_, stream_);
    start_streams();
    std::array<cuda::Moment, 2> here = bring(own, heads_of(0, groups), memory_, keys_[0]);
    for (std::int64_t g = 0; g < groups; ++g) {
      Keys& now = keys_[as_size(g % 2)];
      Gradients& into = gradients_[as_size(g % 2)];
      const std::array<cuda::Moment, 2> ready = here;
      if (g + 1 < groups) here = bring(own, heads_of(g + 1, groups), memory_, keys_[as_size((g + 1) % 2)]);
      wait_for(ready);
      for (const cuda::Moment& moment : into.used) moment.awaited_by(stream_);
      for (const Stretch& one : all_) launch(one, heads_of(g, groups), now, into, &one == all_.data());
      if (all_.empty()) clear(into, heads_of(g, groups));
      const cuda::Moment computed(stream_);
      now.used = {computed};
      // What the group before sent back is added up only now: while it travelled, this group was computed.
      if (g > 0) add_up(heads_of(g - 1, groups), gradients_[as_size((g - 1) % 2)]);
      computed.awaited_by(room_->travel());
      give_back(heads_of(g, groups), into);
    }
    add_up(heads_of(groups - 1, groups), gradients_[as_size((groups - 1) % 2)]);
    end();
    add_captured();
    if (!means_.used) return;
    *means_.used = used_;
    means_.used->kernel += " by gather";
  }

 private:
  /// Gradients of the keys of a group, in f32: of one launch, of all, and of this rank's rows by each rank.
  struct Gradient {
    Room<float> launch, sum, parts;
  };
  struct Gradients {
    Gradient k, v;
    cuda::Moment back;               ///< when parts are there
    std::vector<cuda::Moment> used;  ///< once these have passed, it may be overwritten
  };

  /// The sum of a captured tensor's gradient over launches, in f64.
  struct OfCaptured {
    Tensor into;
    Room<float> launch;
    Room<double> sum;
    Room<double> parts;  ///< the sums of all ranks; none where they are not added up

    OfCaptured(const Tensor& to, int ranks, WorkspaceLayout& space)
        : into(to), launch(space.take<float>(to.size())), sum(space.take<double>(to.size())),
          parts(space.take<double>(ranks > 1 ? ranks * to.size() : 0)) {}
    Tensor of_launch(std::byte* memory) const { return like(into, launch.in(memory), DType::f32); }
    Tensor of_sum(std::byte* memory) const { return like(into, sum.in(memory), DType::f64); }
    void clear(std::byte* memory, cuda::cu::Stream stream) const {
      cuda::clear_bytes(sum.in(memory), as_size(sum.count) * sizeof(double), stream);
    }
    static Tensor like(const Tensor& t, void* data, DType type) {
      return Tensor(data, type, std::span(t.shape).first(as_size(t.rank)), {}, t.device);
    }
  };

  ir::Digest digest() const {
    Digester d;
    d.add(std::int64_t{3});
    d.add(lowered_.digest);
    d.add(std::int64_t{one_});
    d.add(std::int64_t{call_.dk.given()});
    d.add(std::int64_t{call_.dv.given()});
    d.add(std::int64_t{call_.sum_captured});
    for (const Backward::Captured& one : call_.captured) d.add(one.of.size());
    return d.digest();
  }

  bool several() const { return all_.size() > 1; }

  void lay_out(Gradients& of, const KeyHeads& most, WorkspaceLayout& space) const {
    const bool sums = several();
    const auto one = [&](Gradient& gradient, const Tensor& wanted, std::int64_t width) {
      if (!wanted.given()) return;
      const std::int64_t all = key_bytes(most, width, 1),
                         own = key_entries() * most.count() * plan_.kv_rows(me_) * width;
      if (sums) gradient.launch = space.take<float>(all);
      gradient.sum = space.take<float>(all);
      gradient.parts = space.take<float>(own * count());
    };
    one(of.k, call_.dk, problem_.d);
    one(of.v, call_.dv, problem_.dv);
  }
  using DeviceRank::lay_out;

  template <class Body>
  void each(const Gradients& of, const Body& body) const {
    if (call_.dk.given()) body(of.k, call_.dk, problem_.d);
    if (call_.dv.given()) body(of.v, call_.dv, problem_.dv);
  }
  Tensor all_keys(const Room<float>& room, const KeyHeads& heads, std::int64_t width) const {
    return placed(reinterpret_cast<std::byte*>(room.in(memory_)), DType::f32, heads.count(), plan_.kv.rows, width,
                  key_entries());
  }
  /// What one rank gave of this rank's rows.
  Tensor part_of_rank(const Gradient& of, const KeyHeads& heads, std::int64_t width, int rank) const {
    return placed(reinterpret_cast<std::byte*>(of.parts.in(memory_) + rank * part_size(heads, width)), DType::f32,
                  heads.count(), plan_.kv_rows(me_), width, key_entries());
  }
  std::int64_t part_size(const KeyHeads& heads, std::int64_t width) const {
    return key_entries() * heads.count() * plan_.kv_rows(me_) * width;
  }

  void clear(const Gradients& of, const KeyHeads& heads) const {
    each(of, [&](const Gradient& gradient, const Tensor&, std::int64_t width) {
      cuda::clear_bytes(gradient.sum.in(memory_), as_size(key_bytes(heads, width, sizeof(float))), stream_);
    });
  }

  /// Launches follow one another on the caller's stream: each one's gradients are added before the next.
  void launch(const Stretch& of, const KeyHeads& heads, const Keys& keys, const Gradients& into, bool first) {
    const compiler::LoweredMod& mod = part_mods_(compiler::PartSink::kept);
    const compiler::Problem p = problem_of(of, heads);
    const std::vector<double> params = params_of(mod, part_of(of, heads));
    const std::int64_t head = heads.first * problem_.group;
    Backward call = call_;
    for (Tensor* t : {&call.q, &call.o, &call.grad_o, &call.dq}) *t = view(*t, of, head, p.q_heads);
    for (Tensor* t : {&call.lse, &call.grad_lse}) *t = view(*t, of, head, p.q_heads, true);
    call.k = keys.k;
    call.v = keys.v;
    const bool adds = several();
    const auto to = [&](const Gradient& gradient, std::int64_t width) {
      return all_keys(adds && !first ? gradient.launch : gradient.sum, heads, width);
    };
    if (call.dk.given()) call.dk = to(into.k, problem_.d);
    if (call.dv.given()) call.dv = to(into.v, problem_.dv);
    for (std::size_t i = 0; i < captured_.size(); ++i) call.captured[i].into = captured_[i].of_launch(memory_);
    call.params = params;
    if (packed() && first) clear(into, heads);  // keys of other sequences than the launch's
    Used used;
    const Means means = means_of(stream_, &used);
    cuda::backward(slice(mod, call, p), means);
    if (adds && !first) add(of, heads, into);
    for (const OfCaptured& one : captured_)
      cuda::add_parts(device_, {.first = one.of_launch(memory_), .adds = true}, one.of_sum(memory_), stream_);
    used.workspace = std::max(used.workspace, used_.workspace);
    used_ = used;
  }
  /// Adds a launch's gradients to those of the launches before it.
  void add(const Stretch& of, const KeyHeads& heads, const Gradients& into) const {
    each(into, [&](const Gradient& gradient, const Tensor&, std::int64_t width) {
      Tensor from = all_keys(gradient.launch, heads, width), to = all_keys(gradient.sum, heads, width);
      if (packed()) {
        // Other sequences' rows were not written.
        const std::int64_t first = problem_.kv.starts[as_size(of.first)], last = problem_.kv.starts[as_size(of.last)];
        for (Tensor* t : {&from, &to}) {
          t->data = static_cast<float*>(t->data) + first * width;
          t->shape[0] = last - first;
        }
      }
      cuda::add_parts(device_, {.first = from, .adds = true}, to, stream_);
    });
  }

  /// Sends gradients to the owners of their keys.
  void give_back(const KeyHeads& heads, Gradients& of) const {
    const cuda::cu::Stream travel = room_->travel();
    std::vector<Transport::Part> send, receive;
    each(of, [&](const Gradient& gradient, const Tensor&, std::int64_t width) {
      const std::int64_t part_bytes = part_size(heads, width) * count() * std::int64_t{sizeof(float)};
      cuda::clear_bytes(gradient.parts.in(memory_), as_size(part_bytes), travel);
      const HeadRows from = head_rows(all_keys(gradient.sum, heads, width));
      for (const auto& [piece, wide] : pieces_of(me_, heads)) {
        const Transport::Part mine = part(piece.owner, from, piece.entry, piece.head - heads.first,
                                          plan_.kv.grains[piece.first].row, piece.rows, wide);
        if (piece.owner != me_)
          send.push_back(mine);
        else
          cuda::copy_runs(runs_of(mine), runs_of(to_owner(gradient, heads, width, me_, piece, wide)), travel);
      }
      for (int rank = 0; rank < count(); ++rank) {
        if (rank == me_) continue;
        for (const auto& [piece, wide] : pieces_of(rank, heads))
          if (piece.owner == me_) receive.push_back(to_owner(gradient, heads, width, rank, piece, wide));
      }
    });
    exchange(send, receive);
    of.back = cuda::Moment(travel);
  }
  Transport::Part to_owner(const Gradient& of, const KeyHeads& heads, std::int64_t width, int rank, const Piece& piece,
                           std::int64_t wide) const {
    return part(rank, head_rows(part_of_rank(of, heads, width, rank)), piece.entry, piece.head - heads.first,
                kv_local_[piece.first], piece.rows, wide);
  }

  /// Adds up what all ranks gave of this rank's keys.
  void add_up(const KeyHeads& heads, Gradients& of) const {
    of.back.awaited_by(stream_);
    each(of, [&](const Gradient& gradient, const Tensor& into, std::int64_t width) {
      Tensor to = into;
      const std::size_t head = 1;
      to.data = static_cast<std::byte*>(to.data) +
                heads.first * to.strides[head] * static_cast<std::int64_t>(size_of(to.dtype));
      to.shape[head] = heads.count();
      cuda::add_parts(
          device_,
          {.first = part_of_rank(gradient, heads, width, 0), .parts = count(), .part_stride = part_size(heads, width)},
          to, stream_);
    });
    of.used = {cuda::Moment(stream_)};
  }

  /// Adds up captured gradients over all ranks, in their order.
  void add_captured() {
    for (const OfCaptured& one : captured_) {
      if (one.into.size() == 0) continue;
      const auto bytes = as_size(one.sum.count) * sizeof(double);
      if (one.parts.count == 0) {
        cuda::add_parts(device_, {.first = one.of_sum(memory_)}, one.into, stream_);
        continue;
      }
      // Each rank's sum goes to all others.
      double* const all = one.parts.in(memory_);
      std::vector<Transport::Part> send, receive;
      for (int peer = 0; peer < count(); ++peer) {
        double* const there = all + peer * one.sum.count;
        if (peer == me_) {
          cuda::copy_runs({.first = one.sum.in(memory_), .bytes = bytes}, {.first = there, .bytes = bytes}, stream_);
          continue;
        }
        send.push_back({.peer = peer, .data = one.sum.in(memory_), .bytes = bytes});
        receive.push_back({.peer = peer, .data = there, .bytes = bytes});
      }
      start_travel();
      exchange(send, receive);
      cuda::Moment(room_->travel()).awaited_by(stream_);
      cuda::add_parts(
          device_,
          {.first = OfCaptured::like(one.into, all, DType::f64), .parts = count(), .part_stride = one.sum.count},
          one.into, stream_);
    }
    room_->last = cuda::Moment(stream_);
  }

  const Backward& call_;
  std::array<Keys, 2> keys_;
  std::array<Gradients, 2> gradients_;
  std::vector<OfCaptured> captured_;
  std::vector<Stretch> all_;
  std::byte* memory_ = nullptr;
  Used used_;  ///< by the last launch
};

}  // namespace

void backward_on_device(const detail::Ranks& plan, const PartMods& parts, const Call& call, const Means& means) {
  BackwardOnDevice(plan, parts, call, means)();
}

}  // namespace attune::runtime::ranks
