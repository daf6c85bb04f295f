// runtime/ranks/carry/host.cpp — a rank's part of a call in the host's memory, by the CPU engine
#include "runtime/ranks/carry/carry.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "codegen/facts/parts.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/merge.h"
#include "runtime/machine/tensor.h"
#include "runtime/ranks/schedule/chunk.h"
#include "runtime/ranks/schedule/schedule.h"
#include "runtime/ranks/transport/transport.h"

namespace attune::runtime::ranks {
namespace {

using compiler::Held;

/// Positions of the keys that are in memory, by sequence, or one list for all entries.
using Runs = std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>;

/// A tensor of some heads, presented as a tensor of all heads of the whole call; the engine reads only the heads that
/// exist. The address is computed with integers, since there may be no memory at the tensor's beginning.
Tensor numbered_from(const Rows& of, std::int64_t head, std::int64_t all) {
  Tensor t = of.tensor;
  if (!t.given()) return t;
  t.shape[of.head_dimension()] = all;
  t.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(t.data) -
                                   static_cast<std::uintptr_t>(head * t.strides[of.head_dimension()]) *
                                       size_of(t.dtype));
  return t;
}

template <class T>
std::span<T> values(const Tensor& t) {
  return {static_cast<T*>(t.data), as_size(t.size())};
}

/// most = max(most, here); a NaN stays NaN.
void take_greater(double& most, double here) {
  if (here > most || std::isnan(here)) most = here;
}

class HostCarrier : public Carrier {
 public:
  HostCarrier(const Rank& rank, const Means& means) : Carrier(rank, means) {
    const auto rows_in_order = [](const Tensor& t, std::int64_t width) {
      return t.strides[as_size(t.rank) - 1] == 1 || width == 1;
    };
    const compiler::Problem& p = rank.problem();
    in_order_ = rank.call().what.visit(
        [&](const auto& call) { return rows_in_order(call.k, p.d) && rows_in_order(call.v, p.dv); });
  }

  Travel takes(Travel planned) const override {
    const bool merges = planned == Travel::ring || planned == Travel::decode;
    return merges && !codegen::linear_in_p(rank_.call().mod.mod.prob) ? Travel::gather : planned;
  }
  Keys::Places places() const override { return Keys::Places::consecutive; }
  bool is_ahead() const override { return false; }
  DType number() const override { return DType::f64; }
  /// True if all rows are one matrix.
  bool reads(const Rows& keys) const override {
    return keys.tensor.size() == 0 ||
           in_order({0, keys, {.rows = keys.count(), .heads = keys.heads(), .entries = keys.entries()}}) != nullptr;
  }

  std::byte* begin(const WorkspaceLayout& space, std::int64_t) override {
    memory_ = Memory(space.bytes());
    return memory_.bytes().data();
  }
  void clear(void* first, std::size_t bytes, Lane) override {
    if (bytes > 0) std::memset(first, 0, bytes);
  }
  void copy(const Tensor& from, const Tensor& to) override {
    const bool numbers = from.rank == (rank_.packed() ? 2 : 3);
    if (from.dtype != to.dtype) return convert(from, to);
    const auto all = [&](const Tensor& t) {
      const Rows of = numbers ? rank_.numbers(t) : rank_.rows(t);
      return Chunk{0, of, {.rows = of.count(), .heads = of.heads(), .entries = of.entries()}};
    };
    copy(all(from), all(to), Lane::call);
  }
  void copy(const Chunk& from, const Chunk& to, Lane) override {
    if (from.bytes() == 0) return;
    if (std::byte* const into = in_order(to)) return pack(from, into);
    std::vector<std::byte> bytes(from.bytes());
    pack(from, bytes.data());
    unpack(bytes.data(), to);
  }

  void exchange(const Exchange& of) override {
    if (rank_.count() == 1) return;
    std::vector<std::vector<std::byte>> staged;
    staged.reserve(of.send.size() + of.receive.size());
    const auto part = [&](const Chunk& chunk, bool sends) {
      if (std::byte* const there = in_order(chunk)) return Transport::Chunk{chunk.peer, there, chunk.bytes()};
      std::vector<std::byte>& bytes = staged.emplace_back(chunk.bytes());
      if (sends) pack(chunk, bytes.data());
      return Transport::Chunk{chunk.peer, bytes.data(), bytes.size()};
    };
    std::vector<Transport::Chunk> send, receive;
    for (const Chunk& chunk : of.send)
      if (chunk.bytes() > 0) send.push_back(part(chunk, true));
    const std::size_t first = staged.size();
    for (const Chunk& chunk : of.receive)
      if (chunk.bytes() > 0) receive.push_back(part(chunk, false));
    rank_.ranks().transport.exchange(send, receive, nullptr);
    std::size_t next = first;
    for (const Chunk& chunk : of.receive)
      if (chunk.bytes() > 0 && !in_order(chunk)) unpack(staged[next++].data(), chunk);
  }
  bool sum_over_ranks(const Tensor& values) override {
    sum(rank_.ranks().transport, values, nullptr);
    return true;
  }

  void run(const Forward& part, const Slice& of) override {
    const Located at(*this, of);
    compute(numbered(part, of, at), at, progress_of(of));
  }

  /// Attends to one contiguous run of keys after another.
  void attend(const Forward& part, const Slice& of, Partial& into) override {
    Located at(*this, of);
    std::size_t calls = into.sink ? 1 : 0;
    for (const auto& runs : at.runs) calls = std::max(calls, runs.size());
    std::vector<double> here(into.max.given() ? as_size(into.max.size()) : 0);
    for (std::size_t i = 0; i < calls; ++i) {
      at.held.part.clear();
      for (const auto& runs : at.runs)
        at.held.part.push_back(i < runs.size() ? runs[i] : std::pair<std::int64_t, std::int64_t>{0, 0});
      Forward call = numbered(part, of, at);
      call.o = into.o;
      call.lse = into.lse;
      call.max = into.max;
      if (call.max.given()) call.max.data = here.data();
      if (!into.sink) {
        call.o_before = call.o;
        call.lse_before = call.lse;
      }
      compute(call, at, {});
      into.sink = false;
      for (std::size_t j = 0; j < here.size(); ++j) take_greater(values<double>(into.max)[j], here[j]);
    }
  }

  void run(const Backward& asked, const Slice& of, const GradientSums& sums) override {
    const Located at(*this, of);
    Backward part = numbered(asked, of, at);
    for (Tensor* t : {&part.grad_o, &part.dq})
      *t = numbered_from(rank_.rows(*t), at.first_q_head, rank_.problem().q_heads);
    part.grad_lse = numbered_from(rank_.numbers(part.grad_lse), at.first_q_head, rank_.problem().q_heads);
    for (Tensor* t : {&part.dk, &part.dv})
      if (t->given()) *t = at.one_matrix(*t, t == &part.dk ? rank_.problem().d : rank_.problem().dv);
    compute(part, at, progress_of(of));
    for (std::size_t i = 0; i < sums.captured.size(); ++i)
      add({.first = part.captured[i].into, .adds = true}, sums.captured[i]);
  }

  void add(const Sum& of, const Tensor& to) override {
    if (to.size() == 0) return;
    const auto last = as_size(to.rank) - (to.rank > 0 ? 1 : 0);
    const std::int64_t width = to.rank > 0 ? to.shape[last] : 1, rows = to.size() / width,
                       from_step = to.rank > 0 ? of.first.strides[last] : 1, step = to.rank > 0 ? to.strides[last] : 1;
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t rest = row, from = 0, at = 0;
      for (int d = to.rank - 1; d-- > 0;) {
        const auto dim = as_size(d);
        from += rest % to.shape[dim] * of.first.strides[dim];
        at += rest % to.shape[dim] * to.strides[dim];
        rest /= to.shape[dim];
      }
      for (std::int64_t j = 0; j < width; ++j) {
        double sum = of.adds ? load(to, at + j * step) : 0;
        for (int part = 0; part < of.parts; ++part) sum += load(of.first, from + j * from_step + part * of.stride);
        store(to, at + j * step, sum);
      }
    }
  }

  void clear(const Partial& of) override {
    std::ranges::fill(values<float>(of.o), 0.0f);
    std::ranges::fill(values<double>(of.lse), -infinity);
    if (of.max.given()) std::ranges::fill(values<double>(of.max), -infinity);
  }

  void merge(const Partials& of, const Forward& into) override {
    std::vector<float> o(as_size(of.o.size()));
    std::vector<double> lse(as_size(of.lse.size()), -infinity), max(lse);
    const std::int64_t dv = rank_.problem().dv;
    for (std::size_t rank = 0; rank < as_size(of.count); ++rank) {
      const float* const here = static_cast<const float*>(of.o.data) + rank * o.size();
      const double* const lse_here = static_cast<const double*>(of.lse.data) + rank * lse.size();
      for (std::size_t row = 0; row < lse.size(); ++row) {
        if (of.max.given()) take_greater(max[row], static_cast<const double*>(of.max.data)[rank * max.size() + row]);
        const Merged with = runtime::merge(lse_here[row], lse[row]);
        float* const to = o.data() + static_cast<std::int64_t>(row) * dv;
        const float* const from = here + static_cast<std::int64_t>(row) * dv;
        for (std::int64_t j = 0; j < dv; ++j) {
          double sum = with.own != 0 ? double{from[j]} * with.own : 0;
          if (with.before != 0) sum += double{to[j]} * with.before;
          to[j] = static_cast<float>(sum);
        }
        lse[row] = with.lse;
      }
    }
    const auto put = [](Tensor from, auto& all, const Tensor& to) {
      from.data = all.data();
      if (to.given()) convert(from, to);
    };
    put(of.o, o, into.o);
    put(of.lse, lse, into.lse);
    if (of.max.given()) put(of.max, max, into.max);
  }

 private:
  /// The places of the queries and of the keys of a slice in memory.
  struct Located {
    Held held;
    Runs runs;
    std::int64_t first_q_head, rows = 0;  ///< rows: of the matrix that holds all keys

    Located(const HostCarrier& carrier, const Slice& of);
    Tensor one_matrix(const Tensor& t, std::int64_t width) const {
      return Tensor(t.data, t.dtype, {1, 1, rows, width}, {}, t.device);
    }
  };

  template <class Asked>
  Asked numbered(const Asked& asked, const Slice& of, const Located& at) const {
    Asked part = asked;
    for (Tensor* t : {&part.q, &part.o}) *t = numbered_from(rank_.rows(*t), at.first_q_head, rank_.problem().q_heads);
    part.lse = numbered_from(rank_.numbers(part.lse), at.first_q_head, rank_.problem().q_heads);
    if constexpr (std::is_same_v<Asked, Forward>)
      part.max = numbered_from(rank_.numbers(part.max), at.first_q_head, rank_.problem().q_heads);
    part.k = at.one_matrix(of.keys.k, rank_.problem().d);
    part.v = at.one_matrix(of.keys.v, rank_.problem().dv);
    return part;
  }
  Progress progress_of(const Slice& of) const {
    if (!means_.progress) return {};
    return [whole = means_.progress, step = of.step, steps = of.steps](double done) {
      whole((static_cast<double>(step) + done) / static_cast<double>(steps));
    };
  }
  void compute(const What& part, const Located& at, Progress progress) {
    compiler::Problem problem = rank_.problem();
    problem.entries().held = &at.held;
    const Call& whole = rank_.call();
    Means means = means_;
    means.progress = std::move(progress);
    Used used;
    if (means.used) means.used = &used;
    cpu::engine.run({.mod = whole.mod, .args = whole.args, .problem = problem, .what = part, .purpose = whole.purpose},
                    means);
    remember(used);
  }

  Memory memory_;
  bool in_order_ = true;  ///< true if rows of the caller's k and v are contiguous; decides how calls are computed
};

HostCarrier::Located::Located(const HostCarrier& carrier, const Slice& of) {
  const Rank& rank = carrier.rank_;
  const Keys& keys = of.keys;
  const KeyHeads& heads = keys.wanted.heads;
  const std::vector<Block>& blocks = rank.ranks().kv.blocks;
  held = {.q = of.all_queries ? rank.all_queries() : rank.own_queries(),
          .first_head = heads.first,
          .last_head = heads.last,
          .in_order = carrier.in_order_};
  first_q_head = heads.first * rank.problem().group;
  const Rows k{keys.k, keys.places == Keys::Places::consecutive ? compiler::Layout::dense : rank.problem().kv.layout};
  rows = k.entries() * k.heads() * k.count();
  held.kv.assign(as_size((rank.packed() ? rank.problem().batch : rank.key_entries()) * heads.count()), {});
  BlockSet all(blocks.size());
  for (const KeyRange& range : keys.ranges) {
    const Rect at = place_of(rank, keys, range);
    for (std::int64_t h = 0; h < range.heads; ++h) {
      std::int64_t row = (at.entry * k.heads() + at.head + h) * k.count() + at.row;
      for (std::size_t g = range.first; g < range.last; ++g) {
        const std::int64_t entry = rank.packed() ? blocks[g].entry : range.entry;
        auto& into = held.kv[as_size(entry * heads.count() + range.head + h - heads.first)];
        if (!into.empty() && into.back().last == blocks[g].first &&
            into.back().row + into.back().last - into.back().first == row)
          into.back().last = blocks[g].last;
        else
          into.push_back({blocks[g].first, blocks[g].last, row});
        row += blocks[g].rows();
        all.add(g);
      }
    }
  }
  runs.assign(as_size(rank.packed() ? rank.problem().batch : 1), {});
  for (std::size_t g = 0; g < blocks.size(); ++g) {
    if (!all.has(g)) continue;
    auto& of_entry = runs[as_size(blocks[g].entry)];
    if (!of_entry.empty() && of_entry.back().second == blocks[g].first)
      of_entry.back().second = blocks[g].last;
    else
      of_entry.emplace_back(blocks[g].first, blocks[g].last);
  }
}

}  // namespace

void run_on_host(const detail::Ranks& ranks, const Call& call, const Means& means) {
  const Rank rank(ranks, call);
  HostCarrier carrier(rank, means);
  run(rank, carrier);
}

}  // namespace attune::runtime::ranks
