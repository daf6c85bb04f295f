// runtime/ranks/device_rank.h — what both directions do on a device: keys to their places, parts of the call as
// launches
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/choose.h"
#include "runtime/engines/cuda/combine.h"
#include "runtime/engines/cuda/memory.h"
#include "runtime/engines/workspace.h"
#include "runtime/ranks/device.h"
#include "runtime/ranks/device_room.h"
#include "runtime/ranks/plan/rank.h"

namespace attune::runtime::ranks {

/// Key heads [first, last) that travel and are computed together.
struct KeyHeads {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
};

/// Rows of a tensor, of which those of one head are contiguous: [entry, head, row, column], counted in bytes.
struct HeadRows {
  std::byte* data = nullptr;
  std::int64_t entry = 0, head = 0, row = 0;

  std::byte* at(std::int64_t e, std::int64_t h, std::int64_t r) const { return data + e * entry + h * head + r * row; }
};

/// Queries of one launch. Packed: of the sequences [first, last), wholly, or some of one; dense: of all entries.
struct Stretch {
  std::int64_t first = 0, last = 1;      ///< sequences
  std::int64_t q_first = 0, q_last = 0;  ///< positions in each
  std::int64_t row = 0;                  ///< of the first, on this rank
};

/// Keys lie at their positions in memory as long as the whole call's, of which what no query needs stays 0. So kernels
/// take them as they take any keys, each tile of queries meets the tiles that it meets on one rank, and results have
/// the same bits.
class DeviceRank : protected Rank {
 protected:
  template <class Asked>
  DeviceRank(const detail::Ranks& plan, const PartMods& parts, const Call& of, const Asked& call, const Means& means)
      : Rank(plan, of), device_(cuda::facts(call.q.device.index)), current_(device_.index),
        stream_(static_cast<cuda::cu::Stream>(means.stream)), part_mods_(parts), means_(means),
        room_(room_of(plan, device_.index)), lock_(room_->mutex), q_(call.q), k_(call.k), v_(call.v),
        users_(of.args.params), size_(static_cast<std::int64_t>(size_of(call.k.dtype))),
        one_(codegen::is_latent(problem_.d, problem_.dv, values_within_keys(call.k, call.v))) {
    if (cuda::is_captured(means.stream))
      throw Error("stream-capture", "a call over ranks cannot be captured into a graph", {},
                  "ranks meet while it is put on its streams", "call it without a graph");
  }

  ~DeviceRank() {
    if (ended_) return;
    // A call that failed: what it has put on its streams still uses the memory.
    try {
      end();
    } catch (...) {
      // The driver fails, and says so to the next call.
    }
  }
  DeviceRank(const DeviceRank&) = delete;
  DeviceRank& operator=(const DeviceRank&) = delete;

  static std::shared_ptr<DeviceRoom> room_of(const detail::Ranks& plan, int device) {
    const std::lock_guard lock(plan.room_mutex);
    if (!plan.room || plan.room->device() != device) plan.room = std::make_shared<DeviceRoom>(device);
    return plan.room;
  }
  /// Are values the first columns of keys? Those of latent heads are, and travel with them. A rank that holds no keys
  /// goes by the widths alone.
  bool values_within_keys(const Tensor& k, const Tensor& v) const {
    return plan_.kv_rows(me_) == 0 || compiler::values_within_keys(k, v);
  }

  KeyHeads heads_of(std::int64_t group, std::int64_t groups) const {
    return {problem_.kv_heads * group / groups, problem_.kv_heads * (group + 1) / groups};
  }

  // ---- Memory.

  /// Are the rows of a head contiguous, and heads apart from each other, one behind another?
  bool has_rows(const Tensor& t) const {
    const auto last = as_size(t.rank) - 1, rows = packed() ? std::size_t{0} : std::size_t{2};
    return (t.shape[last] <= 1 || t.strides[last] == 1) && (t.shape[rows] <= 1 || t.strides[rows] == t.shape[last]) &&
           (t.shape[1] <= 1 || t.strides[1] >= t.shape[rows] * t.shape[last]);
  }
  /// The same of numbers, [B, H, S] or packed [H, T].
  bool has_numbers(const Tensor& t) const {
    const auto last = as_size(t.rank) - 1, head = packed() ? std::size_t{0} : std::size_t{1};
    return (t.shape[last] <= 1 || t.strides[last] == 1) && (t.shape[head] <= 1 || t.strides[head] >= t.shape[last]);
  }
  /// A tensor with contiguous rows, as HeadRows. Packed [T, H, D], dense [B, H, S, D].
  HeadRows head_rows(const Tensor& t) const {
    const auto size = static_cast<std::int64_t>(size_of(t.dtype));
    const std::int64_t row = t.shape[as_size(t.rank) - 1] * size;
    const auto* at = static_cast<std::byte*>(t.data);
    return packed() ? HeadRows{const_cast<std::byte*>(at), 0, t.strides[1] * size, row}
                    : HeadRows{const_cast<std::byte*>(at), t.strides[0] * size, t.strides[1] * size, row};
  }
  HeadRows head_numbers(const Tensor& t) const {
    const auto size = static_cast<std::int64_t>(size_of(t.dtype));
    auto* const at = static_cast<std::byte*>(t.data);
    return packed() ? HeadRows{at, 0, t.strides[0] * size, size}
                    : HeadRows{at, t.strides[0] * size, t.strides[1] * size, size};
  }
  /// The batch entries of q.
  std::int64_t q_entries() const { return packed() ? 1 : problem_.batch; }
  Tensor placed_numbers(std::byte* at, std::int64_t heads, std::int64_t rows) const {
    return packed() ? Tensor(at, DType::f32, {heads, rows}, {}, q_.device)
                    : Tensor(at, DType::f32, {q_entries(), heads, rows}, {}, q_.device);
  }
  /// A tensor of `rows` rows that begins there, heads one after the other.
  Tensor placed(std::byte* at, DType type, std::int64_t heads, std::int64_t rows, std::int64_t width,
                std::int64_t entries) const {
    return packed() ? Tensor(at, type, {rows, heads, width}, {width, rows * width, 1}, q_.device)
                    : Tensor(at, type, {entries, heads, rows, width}, {}, q_.device);
  }
  std::int64_t key_bytes(const KeyHeads& heads, std::int64_t width, std::int64_t size) const {
    return key_entries() * heads.count() * plan_.kv.rows * width * size;
  }

  /// Where the rank's own keys and values can be sent from: where they are, or a copy with contiguous rows.
  struct Own {
    Room<std::byte> k_copy, v_copy;
    HeadRows k, v;
  };
  void lay_out(Own& own, WorkspaceLayout& space) const {
    const std::int64_t rows = key_entries() * problem_.kv_heads * plan_.kv_rows(me_) * size_;
    if (!has_rows(k_)) own.k_copy = space.take<std::byte>(rows * problem_.d);
    if (!has_rows(v_) && !one_) own.v_copy = space.take<std::byte>(rows * problem_.dv);
  }
  void put_own(Own& own, std::byte* memory) const {
    const auto put = [&](const Tensor& t, const Room<std::byte>& copy, std::int64_t width) {
      if (has_rows(t) || plan_.kv_rows(me_) == 0) return head_rows(t);
      const Tensor to = placed(copy.in(memory), t.dtype, problem_.kv_heads, plan_.kv_rows(me_), width, key_entries());
      cuda::copy_elements(device_, t, to, stream_);
      return head_rows(to);
    };
    own.k = put(k_, own.k_copy, problem_.d);
    own.v = one_ ? own.k : put(v_, own.v_copy, problem_.dv);
  }

  /// The keys and values of some heads at their positions.
  struct Keys {
    Room<std::byte> k_room, v_room;
    Tensor k, v;
    std::vector<cuda::Moment> used;  ///< once these have passed, they may be overwritten
  };
  void lay_out(Keys& keys, const KeyHeads& most, WorkspaceLayout& space) const {
    keys.k_room = space.take<std::byte>(key_bytes(most, problem_.d, size_));
    if (!one_) keys.v_room = space.take<std::byte>(key_bytes(most, problem_.dv, size_));
  }

  void place(Keys& keys, const KeyHeads& heads, std::byte* memory) const {
    keys.k = placed(keys.k_room.in(memory), k_.dtype, heads.count(), plan_.kv.rows, problem_.d, key_entries());
    keys.v = one_ ? keys.k
                  : placed(keys.v_room.in(memory), v_.dtype, heads.count(), plan_.kv.rows, problem_.dv, key_entries());
    if (one_) keys.v.shape[as_size(keys.v.rank) - 1] = problem_.dv;
  }

  // ---- Exchanges.

  /// Is there a row that the rank does not need?
  bool has_holes() const {
    for (std::size_t table = 0; table < layer_.needs->tables(); ++table)
      for (std::size_t g = 0; g < plan_.kv.grains.size(); ++g)
        if (!layer_.needs->of(table, me_).has(g)) return true;
    return false;
  }

  /// What a rank needs, all `heads` in one piece where they need the same.
  std::vector<std::pair<Piece, std::int64_t>> pieces_of(int rank, const KeyHeads& heads) const {
    const bool alike = layer_.needs->heads == 1 && heads.count() > 0;
    std::vector<std::pair<Piece, std::int64_t>> out;
    for (const Piece& piece : pieces(rank, heads.first, alike ? heads.first + 1 : heads.last, needed()))
      out.emplace_back(piece, alike ? heads.count() : 1);
    return out;
  }
  static Transport::Part part(int peer, const HeadRows& rows, std::int64_t e, std::int64_t h, std::int64_t row,
                              std::int64_t count, std::int64_t heads) {
    return {.peer = peer,
            .data = rows.at(e, h, row),
            .bytes = as_size(count * rows.row * heads),
            .runs = as_size(heads),
            .stride = as_size(rows.head)};
  }
  static cuda::Runs runs_of(const Transport::Part& of) {
    return {.first = of.data, .bytes = of.bytes / of.runs, .count = of.runs, .stride = of.stride};
  }
  void exchange(const std::vector<Transport::Part>& send, const std::vector<Transport::Part>& receive) const {
    if (count() > 1) plan_.transport.exchange(send, receive, room_->travel());
  }

  /// Brings the keys of these heads to `into`, others' on the stream for travel and its own on another; returns when
  /// both are there.
  std::array<cuda::Moment, 2> bring(const Own& own, const KeyHeads& heads, std::byte* memory, Keys& into) {
    const cuda::cu::Stream travel = room_->travel(), within = room_->within();
    for (const cuda::Moment& moment : std::exchange(into.used, {})) {
      moment.awaited_by(travel);
      moment.awaited_by(within);
    }
    place(into, heads, memory);
    if (clears_) {
      cuda::clear_bytes(into.k.data, as_size(key_bytes(heads, problem_.d, size_)), travel);
      if (!one_) cuda::clear_bytes(into.v.data, as_size(key_bytes(heads, problem_.dv, size_)), travel);
      cuda::Moment(travel).awaited_by(within);
    }
    std::vector<std::pair<HeadRows, HeadRows>> both{{own.k, head_rows(into.k)}};
    if (!one_) both.emplace_back(own.v, head_rows(into.v));
    std::vector<Transport::Part> send, receive;
    for (int peer = 0; peer < count(); ++peer) {
      if (peer == me_) continue;
      for (const auto& [piece, wide] : pieces_of(peer, heads))
        if (piece.owner == me_)
          for (const auto& [from, to] : both)
            send.push_back(part(peer, from, piece.entry, piece.head, kv_local_[piece.first], piece.rows, wide));
    }
    for (const auto& [piece, wide] : pieces_of(me_, heads))
      for (const auto& [from, to] : both) {
        const Transport::Part there = part(piece.owner, to, piece.entry, piece.head - heads.first,
                                           plan_.kv.grains[piece.first].row, piece.rows, wide);
        if (piece.owner != me_)
          receive.push_back(there);
        else
          cuda::copy_runs(runs_of(part(me_, from, piece.entry, piece.head, kv_local_[piece.first], piece.rows, wide)),
                          runs_of(there), within);
      }
    exchange(send, receive);
    return {cuda::Moment(travel), cuda::Moment(within)};
  }

  // ---- Launches.

  /// The rank's queries, a launch each; those with the latest positions, which meet most keys under most masks, first.
  std::vector<Stretch> stretches() const {
    const auto by_sequence = own_queries();
    std::vector<Stretch> out;
    for (std::size_t s = 0; s < by_sequence.size(); ++s) {
      const auto number = static_cast<std::int64_t>(s);
      const bool whole = packed() && is_whole(by_sequence[s], number);
      if (whole && !out.empty() && out.back().last == number && is_whole(out.back())) {
        out.back().last = number + 1;
        continue;
      }
      if (whole && by_sequence[s].empty()) continue;  // no queries, and no launch to be part of
      for (const compiler::Held::Rows& rows : by_sequence[s])
        out.push_back({number, number + 1, rows.first, rows.last, rows.row});
    }
    std::ranges::stable_sort(out, std::ranges::greater{}, &Stretch::q_last);
    return out;
  }

  /// The sizes of one launch, which computes these queries of these key heads.
  compiler::Problem problem_of(const Stretch& of, const KeyHeads& heads) const {
    compiler::Problem p = problem_;
    p.kv_heads = heads.count();
    p.q_heads = heads.count() * problem_.group;
    p.q_offset = static_cast<std::int32_t>(problem_.q_offset + of.q_first);
    if (!packed()) {
      p.q.length = of.q_last - of.q_first;
      return p;
    }
    p.batch = of.last - of.first;
    p.q.total = plan_.q_rows(me_);
    p.q.starts = {of.row};
    p.kv.starts.assign(problem_.kv.starts.begin() + of.first, problem_.kv.starts.begin() + of.last + 1);
    p.q.length = p.kv.length = 0;
    for (std::int64_t s = of.first; s < of.last; ++s) {
      const auto i = as_size(s);
      const std::int64_t queries = is_whole(of) ? problem_.q.starts[i + 1] - problem_.q.starts[i]
                                                : of.q_last - of.q_first;
      p.q.starts.push_back(p.q.starts.back() + queries);
      p.q.length = std::max(p.q.length, queries);
      p.kv.length = std::max(p.kv.length, problem_.kv.starts[i + 1] - problem_.kv.starts[i]);
    }
    return p;
  }
  compiler::Part part_of(const Stretch& of, const KeyHeads& heads) const {
    const std::int64_t queries = !packed() ? problem_.q.length
                                 : is_whole(of)
                                     ? of.q_last - of.q_first
                                     : problem_.q.starts[as_size(of.last)] - problem_.q.starts[as_size(of.first)];
    return {.first_batch = packed() ? of.first : 0,
            .first_head = heads.first * problem_.group,
            .more_queries = queries - (of.q_last - of.q_first)};
  }
  std::vector<double> params_of(const compiler::LoweredMod& part, const compiler::Part& values) const {
    return compiler::params_of(part.mod, users_, values);
  }

  /// The rows and heads of one launch, of a tensor like q. `numbers`: a number a row, as lse has it.
  Tensor view(Tensor t, const Stretch& of, std::int64_t first_head, std::int64_t heads, bool numbers = false) const {
    if (!t.given()) return t;
    const std::size_t head = packed() && numbers ? 0 : 1;
    std::int64_t offset = first_head * t.strides[head];
    t.shape[head] = heads;
    if (!packed()) {
      offset += of.row * t.strides[2];
      t.shape[2] = of.q_last - of.q_first;
    }
    t.data = static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
    return t;
  }

  cuda::cu::Stream launch_stream() {
    const std::size_t i = next_++ % (DeviceRoom::beside_count + 1);
    return i == 0 ? stream_ : room_->beside(i - 1);
  }
  template <class Body>
  void on_all_streams(const Body& body) const {
    body(stream_);
    for (std::size_t i = 0; i < DeviceRoom::beside_count; ++i) body(room_->beside(i));
  }
  /// All launches from now on wait for these.
  void wait_for(std::span<const cuda::Moment> moments) const {
    on_all_streams([&](cuda::cu::Stream s) {
      for (const cuda::Moment& moment : moments) moment.awaited_by(s);
    });
  }
  /// The end of all launches so far.
  std::vector<cuda::Moment> launched() const {
    std::vector<cuda::Moment> out;
    on_all_streams([&](cuda::cu::Stream s) { out.emplace_back(s); });
    return out;
  }

  /// Takes memory, which begins with keys of so many groups; 0: with something else.
  std::byte* begin(const WorkspaceLayout& space, std::int64_t groups) {
    std::byte* const memory = room_->memory(space.bytes());
    room_->last.awaited_by(stream_);
    const DeviceRoom::Filled filled = groups > 0 ? DeviceRoom::Filled{&layer_, groups, one_} : DeviceRoom::Filled{};
    clears_ = room_->filled != filled && has_holes();
    room_->filled = filled;
    return memory;
  }
  /// Lets the streams of our own wait for what the caller's stream has been given.
  void start_streams() const {
    const std::array inputs{cuda::Moment(stream_)};
    inputs[0].awaited_by(room_->travel());
    inputs[0].awaited_by(room_->within());
    wait_for(inputs);
  }
  /// The same where the caller's stream has all launches.
  void start_travel() const { cuda::Moment(stream_).awaited_by(room_->travel()); }
  /// The caller's stream waits for all of ours.
  void end() {
    for (const cuda::Moment& moment : launched()) moment.awaited_by(stream_);
    end_travel();
  }
  void end_travel() {
    cuda::Moment(room_->travel()).awaited_by(stream_);
    cuda::Moment(room_->within()).awaited_by(stream_);
    room_->last = cuda::Moment(stream_);
    ended_ = true;
  }

  Means means_of(cuda::cu::Stream stream, Used* used) const {
    Means out = means_;
    out.stream = stream;
    out.workspace = {};
    out.used = means_.used ? used : nullptr;
    return out;
  }
  /// A slice of the call, with a mod, tensors and sizes of its own.
  template <class Asked>
  Call slice(const compiler::LoweredMod& mod, const Asked& call, const compiler::Problem& p) const {
    Call out = call_of(mod, call, p);
    out.exact = of_.exact;
    out.purpose = of_.purpose;
    out.whole = &problem_;
    return out;
  }

  const cuda::Facts& device_;
  const cuda::Current current_;
  cuda::cu::Stream stream_;
  const PartMods& part_mods_;
  const Means& means_;
  std::shared_ptr<DeviceRoom> room_;
  std::unique_lock<std::mutex> lock_;
  const Tensor &q_, &k_, &v_;
  std::vector<double> users_;  ///< parameters
  std::int64_t size_;          ///< of an element of k and v, in bytes
  bool one_;                   ///< values are columns of the keys
  bool ended_ = false;         ///< the caller's stream waits for all that the call put on others
  bool clears_ = false;        ///< memory for keys may hold others' rows where this layer needs none
  std::size_t next_ = 0;

 private:
  bool is_whole(const std::vector<compiler::Held::Rows>& rows, std::int64_t sequence) const {
    const std::int64_t length = problem_.q.starts[as_size(sequence) + 1] - problem_.q.starts[as_size(sequence)];
    return length == 0 || (rows.size() == 1 && rows[0].first == 0 && rows[0].last == length);
  }
  bool is_whole(const Stretch& of) const {
    return of.last - of.first > 1 || (of.q_first == 0 && of.q_last == problem_.q.starts[as_size(of.first) + 1] -
                                                                          problem_.q.starts[as_size(of.first)]);
  }
};

}  // namespace attune::runtime::ranks
