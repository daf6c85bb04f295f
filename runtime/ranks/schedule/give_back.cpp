// runtime/ranks/schedule/give_back.cpp — the backward: keys are gathered again by groups of heads, and their gradients
// go back to their owners
#include <algorithm>
#include <array>

#include "runtime/ranks/schedule/keys.h"
#include "runtime/ranks/schedule/schedule.h"

namespace attune::runtime::ranks {
namespace {

/// The gradient of the keys or of the values of a group, in f32.
struct Gradient {
  Region<float> launch;  ///< of a launch after the first; empty if there is only one launch
  Region<float> sum;     ///< of all launches
  Region<float> parts;   ///< one part from each rank, for this rank's rows
};
struct Gradients {
  Gradient k, v;
  Moments back;  ///< when `parts` have arrived
  Moments used;  ///< once these have passed, the gradients may be overwritten
};

/// The sum of a captured tensor's gradient over launches, in f64.
struct OfCaptured {
  Tensor into;
  Region<float> launch;
  Region<double> sum;
  Region<double> parts;  ///< the sums of all ranks; empty if they are not added up

  OfCaptured(const Tensor& to, int ranks, WorkspaceLayout& space)
      : into(to), launch(space.take<float>(to.size())), sum(space.take<double>(to.size())),
        parts(space.take<double>(ranks > 1 ? ranks * to.size() : 0)) {}
  Tensor like(void* data, DType type) const {
    return Tensor(data, type, std::span(into.shape).first(as_size(into.rank)), {}, into.device);
  }
};

class BackwardCall {
 public:
  BackwardCall(const Rank& rank, Carrier& carrier, const Backward& call)
      : rank_(rank), carrier_(carrier), call_(call),
        groups_(rank.layer().chosen().travel == Travel::gather ? rank.layer().chosen().groups : 1),
        traffic_(rank, carrier, rank.rows(call.k), rank.rows(call.v), by_groups(rank, groups_)) {
    WorkspaceLayout space;
    traffic_.lay_out(space);
    for (std::size_t i = 0; i < traffic_.buffers(); ++i) lay_out(gradients_[i], space);
    for (const Backward::Captured& one : call.captured)
      captured_.emplace_back(one.into, call.sum_captured ? rank.count() : 1, space);
    memory_ = carrier.begin(space, groups_);
    traffic_.place(memory_);
    for (const OfCaptured& one : captured_)
      carrier.clear(one.sum.in(memory_), as_size(one.sum.count) * sizeof(double), Lane::call);
  }

  void operator()() {
    carrier_.start();
    traffic_.start();
    for (std::int64_t g = 0; g < groups_; ++g) {
      Keys& keys = traffic_.next(as_size(g));
      Gradients& into = of_group(g);
      for (const auto& moment : into.used) carrier_.wait(Lane::call, {moment});
      compute(keys, g, into);
      const Moments computed = carrier_.mark(Lane::call);
      keys.used = computed;
      // The gradients of the previous group are added up only now: they travelled while this group was computed.
      if (g > 0) add_up(rank_.group_of_heads(g - 1, groups_), of_group(g - 1));
      carrier_.wait(Lane::travel, computed);
      give_back(keys, into);
    }
    add_up(rank_.group_of_heads(groups_ - 1, groups_), of_group(groups_ - 1));
    carrier_.join();
    for (const OfCaptured& one : captured_) add_captured(one);
    carrier_.ended();
  }

 private:
  Gradients& of_group(std::int64_t g) { return gradients_[as_size(g) % traffic_.buffers()]; }

  void lay_out(Gradients& of, WorkspaceLayout& space) const {
    const auto one = [&](Gradient& gradient, const Tensor& wanted, std::int64_t width) {
      if (!wanted.given()) return;
      const std::int64_t all = traffic_.most_rows() * width, heads = (rank_.problem().kv_heads + groups_ - 1) / groups_,
                         own = rank_.key_entries() * heads * rank_.kv_rows() * width;
      if (carrier_.launches() > 1) gradient.launch = space.take<float>(all);
      gradient.sum = space.take<float>(all);
      gradient.parts = space.take<float>(own * rank_.count());
    };
    one(of.k, call_.dk, rank_.problem().d);
    one(of.v, call_.dv, rank_.problem().dv);
  }

  template <class Body>
  void each(const Gradients& of, const Body& body) const {
    if (call_.dk.given()) body(of.k, call_.dk, rank_.problem().d);
    if (call_.dv.given()) body(of.v, call_.dv, rank_.problem().dv);
  }
  /// A gradient of all keys of a group, shaped like the keys.
  Tensor like_keys(const Region<float>& region, const Keys& keys, std::int64_t width) const {
    if (keys.places == Keys::Places::whole) {
      const Rows k = rank_.rows(keys.k);
      return rank_.placed(region.in(memory_), DType::f32, k.entries(), k.heads(), k.count(), width);
    }
    return Tensor(region.in(memory_), DType::f32, {1, keys.k.shape[1], keys.k.shape[2], width}, {}, keys.k.device);
  }
  std::int64_t part_size(const KeyHeads& heads, std::int64_t width) const {
    return rank_.key_entries() * heads.count() * rank_.kv_rows() * width;
  }
  /// The part of this rank's rows that one rank sent.
  Tensor part_of_rank(const Gradient& of, const KeyHeads& heads, std::int64_t width, int rank) const {
    float* const parts = of.parts.in(memory_);
    return rank_.placed(parts ? parts + rank * part_size(heads, width) : parts, DType::f32, rank_.key_entries(),
                        heads.count(), rank_.kv_rows(), width);
  }

  void compute(const Keys& keys, std::int64_t group, const Gradients& into) {
    const KeyHeads& heads = keys.wanted.heads;
    const std::int64_t first = heads.first * rank_.problem().group, count = heads.count() * rank_.problem().group;
    Backward part = call_;
    for (Tensor* t : {&part.q, &part.o, &part.grad_o, &part.dq}) *t = Rank::heads_of(rank_.rows(*t), first, count);
    for (Tensor* t : {&part.lse, &part.grad_lse}) *t = Rank::heads_of(rank_.numbers(*t), first, count);
    GradientSums sums;
    const auto place = [&](const Gradient& gradient, std::int64_t width, Tensor& of_part, Tensor& of_launch) {
      if (!of_part.given()) return;
      of_part = like_keys(gradient.sum, keys, width);
      if (gradient.launch.count > 0) of_launch = like_keys(gradient.launch, keys, width);
    };
    place(into.k, rank_.problem().d, part.dk, sums.dk_launch);
    place(into.v, rank_.problem().dv, part.dv, sums.dv_launch);
    for (std::size_t i = 0; i < captured_.size(); ++i) {
      part.captured[i].into = captured_[i].like(captured_[i].launch.in(memory_), DType::f32);
      sums.captured.push_back(captured_[i].like(captured_[i].sum.in(memory_), DType::f64));
    }
    carrier_.run(part, {.keys = keys, .step = group, .steps = groups_}, sums);
  }

  /// Sends gradients to the owners of their keys.
  void give_back(const Keys& keys, Gradients& of) const {
    const KeyHeads& heads = keys.wanted.heads;
    const bool whole = keys.places == Keys::Places::whole;
    Exchange out;
    each(of, [&](const Gradient& gradient, const Tensor&, std::int64_t width) {
      carrier_.clear(gradient.parts.in(memory_), as_size(part_size(heads, width) * rank_.count()) * sizeof(float),
                     Lane::travel);
      const Tensor sum = like_keys(gradient.sum, keys, width);
      const Rows from{sum, whole ? rank_.problem().q.layout : compiler::Layout::dense};
      const auto at_owner = [&](int rank, const KeyRange& range) {
        return Chunk{rank,
                     rank_.rows(part_of_rank(gradient, heads, width, rank)),
                     {.entry = range.entry,
                      .head = range.head - heads.first,
                      .row = rank_.owners_row(range.first),
                      .rows = range.rows,
                      .heads = range.heads}};
      };
      for (const KeyRange& range : keys.ranges) {
        const Chunk mine{range.owner, from, place_of(rank_, keys, range)};
        if (range.owner != rank_.me())
          out.send.push_back(mine);
        else
          carrier_.copy(mine, at_owner(rank_.me(), range), Lane::travel);
      }
      for (int rank = 0; rank < rank_.count(); ++rank) {
        if (rank == rank_.me()) continue;
        for (const KeyRange& range : rank_.key_ranges(rank, keys.wanted))
          if (range.owner == rank_.me()) out.receive.push_back(at_owner(rank, range));
      }
    });
    carrier_.exchange(out);
    of.back = carrier_.mark(Lane::travel);
  }

  /// Adds up the gradients of this rank's keys from all ranks.
  void add_up(const KeyHeads& heads, Gradients& of) const {
    carrier_.wait(Lane::call, of.back);
    each(of, [&](const Gradient& gradient, const Tensor& into, std::int64_t width) {
      carrier_.add(
          {.first = part_of_rank(gradient, heads, width, 0), .parts = rank_.count(), .stride = part_size(heads, width)},
          Rank::heads_of(rank_.rows(into), heads.first, heads.count()));
    });
    of.used = carrier_.mark(Lane::call);
  }

  /// Adds up a captured gradient over all ranks, in their order.
  void add_captured(const OfCaptured& of) const {
    if (of.into.size() == 0) return;
    const Tensor sum = of.like(of.sum.in(memory_), DType::f64);
    if (of.parts.count == 0 || carrier_.sum_over_ranks(sum)) return carrier_.add({.first = sum}, of.into);
    const auto chunk = [&](int peer, double* at) {
      return Chunk{peer, {Tensor(at, DType::f64, {1, 1, 1, of.sum.count}, {}, of.into.device)}, {.rows = 1}};
    };
    // Each rank sends its sum to all others.
    double* const own = of.sum.in(memory_);
    double* const all = of.parts.in(memory_);
    Exchange out;
    for (int peer = 0; peer < rank_.count(); ++peer) {
      const Chunk there = chunk(peer, all + peer * of.sum.count);
      if (peer == rank_.me()) {
        carrier_.copy(chunk(peer, own), there, Lane::call);
        continue;
      }
      out.send.push_back(chunk(peer, own));
      out.receive.push_back(there);
    }
    carrier_.wait(Lane::travel, carrier_.mark(Lane::call));
    carrier_.exchange(out);
    carrier_.wait(Lane::call, carrier_.mark(Lane::travel));
    carrier_.add({.first = of.like(all, DType::f64), .parts = rank_.count(), .stride = of.sum.count}, of.into);
  }

  const Rank& rank_;
  Carrier& carrier_;
  const Backward& call_;
  const std::int64_t groups_;
  KeyTraffic traffic_;
  std::array<Gradients, 2> gradients_;
  std::vector<OfCaptured> captured_;
  std::byte* memory_ = nullptr;
};

}  // namespace

void give_back(const Rank& rank, Carrier& carrier, const Backward& call) { BackwardCall(rank, carrier, call)(); }

}  // namespace attune::runtime::ranks
