// runtime/ranks/carry/device.cpp — a rank's part of a call on a device: launches of the usual kernels, overlapped with
// exchanges
#include "runtime/ranks/carry/carry.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/choose/choose.h"
#include "codegen/facts/parts.h"
#include "runtime/engines/cuda/combine.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/platform/memory.h"
#include "runtime/ranks/carry/queries.h"
#include "runtime/ranks/schedule/schedule.h"

namespace attune::runtime::ranks {

/// What calls over ranks share on a device: streams, and memory for keys.
class DeviceState {
 public:
  /// Makes streams of the current context, which must be the device's.
  explicit DeviceState(int device);
  /// Waits for the work that still uses the memory.
  ~DeviceState();
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  int device() const { return device_; }

  /// For exchanges. Its priority is higher: an exchange begins before launches that become ready at the same time.
  cuda::cu::Stream travel() const { return travel_.get(); }
  /// For copies of the rank's own keys, concurrent with the exchange of other ranks' keys.
  cuda::cu::Stream within() const { return within_.get(); }
  /// The launches of a group use the caller's stream and these streams in turn, so that one launch fills the SMs that
  /// the last tiles of another launch leave idle.
  static constexpr std::size_t beside_count = 3;
  cuda::cu::Stream beside(std::size_t i) const { return beside_[i].get(); }

  /// At least `bytes` bytes, which were 0 when they were allocated. Throws the Error `device-memory`.
  std::byte* memory(std::size_t bytes);

  std::mutex mutex;   ///< held while a call is put on its streams
  cuda::Moment last;  ///< the end of the previous call
  /// The keys at the beginning of the memory. Rows that a call with these keys does not need are still 0.
  struct Filled {
    const void* layer = nullptr;
    std::int64_t groups = 0;
    bool one = false;  ///< true if values are columns of keys
    bool operator==(const Filled&) const = default;
  };
  Filled filled;

 private:
  int device_;
  cuda::OwnStream travel_{cuda::OwnStream::Priority::high}, within_{cuda::OwnStream::Priority::high};
  std::array<cuda::OwnStream, beside_count> beside_{cuda::OwnStream(cuda::OwnStream::Priority::usual),
                                                    cuda::OwnStream(cuda::OwnStream::Priority::usual),
                                                    cuda::OwnStream(cuda::OwnStream::Priority::usual)};
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

DeviceState::DeviceState(int device) : device_(device) {}

DeviceState::~DeviceState() {
  try {
    const cuda::Current current(device_);
    last.wait();
  } catch (...) {
    // At process exit the driver may already be unloaded, and the memory is then gone too.
  }
}

std::byte* DeviceState::memory(std::size_t bytes) {
  if (bytes > bytes_) {
    // Freeing does not wait for launches that still use the memory.
    last.wait();
    memory_.reset();
    bytes_ = 0;
    memory_ = cuda::allocate(device_, bytes);
    if (!memory_)
      throw Error("device-memory", fmt::format("cuda:{} has no {} bytes left", device_, bytes), {},
                  "a rank allocates memory for the keys of two groups of heads, at the length of the whole call",
                  "send keys in more groups (Sharding::How::groups), or free memory");
    bytes_ = bytes;
    filled = {};
  }
  return static_cast<std::byte*>(memory_.get());
}

namespace {

using cuda::Moment;

/// A rank allocates room for all keys of the call, copies the keys it needs to their usual positions and leaves the
/// rest zero. Kernels need no special case: each tile of queries meets the same tiles of keys as on one rank, and
/// results have the same bits.
class DeviceCarrier : public Carrier {
 public:
  DeviceCarrier(const Rank& rank, const PartMods& mods, const Means& means)
      : Carrier(rank, means), device_(cuda::facts(rank.call().q().device.index)), current_(device_.index),
        stream_(static_cast<cuda::cu::Stream>(means.stream)), mods_(mods), room_(room_of(rank.ranks(), device_.index)),
        lock_(room_->mutex), one_(has_one_tensor()) {
    if (cuda::is_captured(means.stream))
      throw Error("stream-capture", "a call over ranks cannot be captured into a graph", {},
                  "ranks wait for one another while it is enqueued", "call it without a graph");
  }
  ~DeviceCarrier() override {
    if (ended_) return;
    // After a failed call, work on its streams may still use the memory.
    try {
      join();
    } catch (...) {
      // A driver that fails here also fails the next call, which reports it.
    }
  }

  /// The plan's schedule, if a device supports it. Instead of a ring, a device gathers: a ring would save the memory of
  /// one group's keys, and more groups save more. Decode requires that each rank's keys are one run, and that the call
  /// runs on the kernel that supports keys which do not begin at 0. All ranks must decide alike, so the decision may
  /// not depend on addresses.
  Travel takes(Travel planned) const override {
    const compiler::Problem& p = rank_.problem();
    const bool in_sixteens = size_of(rank_.call().q().dtype) == 2 && p.d % 8 == 0 && p.dv % 8 == 0;
    const bool to_keys = is_decode() && !rank_.packed() && !one_ && in_sixteens &&
                         codegen::linear_in_p(rank_.call().mod.mod.prob) &&
                         std::ranges::all_of(rank_.ranks().kv_of, [](const auto& runs) { return runs.size() <= 1; });
    return planned == Travel::heads || (planned == Travel::decode && to_keys) ? planned : Travel::gather;
  }
  /// A decode call has one group: the number of heads decides how a decode kernel splits the keys among its blocks.
  std::int64_t groups(std::int64_t planned) const override { return is_decode() ? 1 : planned; }
  Keys::Places places() const override { return Keys::Places::whole; }
  bool is_ahead() const override { return true; }
  bool values_within_keys() const override { return one_; }
  /// Decode kernels read keys in units of 16 bytes.
  bool reads(const Rows& keys) const override { return cuda::copied_bytes({&keys.tensor}) >= 16; }
  /// True if the rows of a head are contiguous, and heads do not overlap and are in increasing order.
  bool sends(const Rows& of) const override {
    const Tensor& t = of.tensor;
    const auto last = as_size(t.rank) - 1;
    const std::int64_t width = of.width();
    if (t.shape[last] > 1 && t.strides[last] != 1) return false;
    if (!of.numbers && of.count() > 1 && t.strides[of.row_dimension()] != width) return false;
    return of.heads() <= 1 || t.strides[of.head_dimension()] >= of.count() * width;
  }
  DType number() const override { return DType::f32; }
  std::size_t launches() const override { return slices().size(); }

  std::byte* begin(const WorkspaceLayout& space, std::int64_t groups) override {
    std::byte* const memory = room_->memory(space.bytes());
    room_->last.awaited_by(stream_);
    const DeviceState::Filled filled = groups > 0 ? DeviceState::Filled{&rank_.layer(), groups, one_}
                                                  : DeviceState::Filled{};
    clears_ = room_->filled != filled && rank_.has_holes();
    room_->filled = filled;
    return memory;
  }
  bool clears() const override { return clears_; }
  void clear(void* first, std::size_t bytes, Lane lane) override { cuda::clear_bytes(first, bytes, stream_of(lane)); }
  void copy(const Tensor& from, const Tensor& to) override { cuda::copy_elements(device_, from, to, stream_); }
  void copy(const Chunk& from, const Chunk& to, Lane lane) override {
    cuda::copy_runs(runs_of(part_of(from)), runs_of(part_of(to)), stream_of(lane));
  }

  void exchange(const Exchange& of) override {
    if (rank_.count() == 1) return;
    std::vector<Transport::Chunk> send, receive;
    for (const Chunk& chunk : of.send) send.push_back(part_of(chunk));
    for (const Chunk& chunk : of.receive) receive.push_back(part_of(chunk));
    rank_.ranks().transport.exchange(send, receive, room_->travel());
  }

  Moments mark(Lane lane) const override {
    Moments out;
    each_stream(lane, [&](cuda::cu::Stream s) { out.push_back(std::make_shared<const Moment>(s)); });
    return out;
  }
  void wait(Lane lane, const Moments& moments) const override {
    each_stream(lane, [&](cuda::cu::Stream s) {
      for (const auto& moment : moments) static_cast<const Moment*>(moment.get())->awaited_by(s);
    });
  }
  void ended() override {
    room_->last = Moment(stream_);
    ended_ = true;
  }

  void run(const Forward& part, const Slice& of) override {
    const KeyHeads& heads = of.keys.wanted.heads;
    Forward call = part;
    call.k = of.keys.k;
    call.v = of.keys.v;
    if (of.all_queries) {
      compiler::Problem p = rank_.problem();
      p.kv_heads = heads.count();
      p.q_heads = heads.count() * p.group;
      return compute(call, p, {.first_head = heads.first * p.group}, compiler::PartSink::kept, stream_);
    }
    for (const QuerySlice& one : slices()) {
      for (Tensor Forward::*t : {&Forward::q, &Forward::o}) call.*t = rows_of(rank_.rows(part.*t), one);
      for (Tensor Forward::*t : {&Forward::lse, &Forward::max}) call.*t = rows_of(rank_.numbers(part.*t), one);
      compute(call, problem_of(rank_, one, heads), ranks::slice_of(rank_, one, heads), compiler::PartSink::kept,
              launch_stream());
    }
  }

  /// All queries attend to the rank's own keys, which are one run.
  void attend(const Forward& part, const Slice& of, Partial& into) override {
    const auto& runs = rank_.ranks().kv_of[as_size(rank_.me())];
    const Sharding::Range keys = runs.empty() ? Sharding::Range{} : runs.front();
    compiler::Problem p = rank_.problem();
    p.kv.length = keys.end - keys.begin;
    p.kv_offset = static_cast<std::int32_t>(p.kv_offset + keys.begin);
    Forward call = part;
    call.kv_offset = p.kv_offset;
    call.k = of.keys.k;
    call.v = of.keys.v;
    call.o = into.o;
    call.lse = into.lse;
    call.max = into.max;
    by_keys_ = true;
    compute(call, p, {.more_keys = rank_.problem().kv.length - keys.end},
            into.sink ? compiler::PartSink::kept : compiler::PartSink::dropped, stream_);
  }

  /// Launches run one after another on the caller's stream: the gradients of each launch are added before the next
  /// launch begins.
  void run(const Backward& part, const Slice& of, const GradientSums& sums) override {
    const auto clear_keys = [&] {
      for (const Tensor* t : {&part.dk, &part.dv})
        if (t->given()) clear(t->data, as_size(t->size()) * sizeof(float), Lane::call);
    };
    if (slices().empty()) return clear_keys();
    if (rank_.packed()) clear_keys();  // the first launch leaves the rows of other sequences unwritten
    for (const QuerySlice& one : slices()) launch(part, of, one, sums);
  }

  void add(const Sum& of, const Tensor& to) override {
    cuda::add_parts(device_, {.first = of.first, .parts = of.parts, .part_stride = of.stride, .adds = of.adds}, to,
                    stream_);
  }
  void clear(const Partial&) override {}  // kernels write all of it
  void merge(const Partials& of, const Forward& into) override {
    cuda::combine_ranks(device_,
                        {.o = static_cast<const float*>(of.o.data),
                         .lse = static_cast<const float*>(of.lse.data),
                         .max = static_cast<const float*>(of.max.data),
                         .parts = of.count},
                        into.o, into.lse, into.max, stream_);
  }

 private:
  static std::shared_ptr<DeviceState> room_of(const detail::Ranks& ranks, int device) {
    const std::lock_guard lock(ranks.room_mutex);
    if (!ranks.device_state || ranks.device_state->device() != device)
      ranks.device_state = std::make_shared<DeviceState>(device);
    return ranks.device_state;
  }
  /// True if values are the first columns of keys, as for MLA; they then travel with the keys. A rank that holds no
  /// keys can only compare the widths.
  bool has_one_tensor() const {
    return rank_.call().what.visit([&](const auto& call) {
      const bool within = rank_.kv_rows() == 0 || compiler::values_within_keys(call.k, call.v);
      return codegen::is_mla(rank_.problem().d, rank_.problem().dv, within);
    });
  }
  bool is_decode() const { return codegen::is_decode(rank_.problem().q.length, rank_.problem().group); }
  const std::vector<QuerySlice>& slices() const {
    if (!slices_) slices_ = slices_of(rank_);
    return *slices_;
  }

  /// The rows of one head of a chunk are one run.
  static Transport::Chunk part_of(const Chunk& chunk) {
    const Rows& of = chunk.of;
    const Tensor& t = of.tensor;
    const auto size = static_cast<std::int64_t>(size_of(t.dtype));
    const std::int64_t row = of.width() * size, head = t.strides[of.head_dimension()] * size,
                       entry = of.packed() ? 0 : t.strides[0] * size, runs = chunk.at.heads * chunk.at.entries;
    if (chunk.at.entries > 1 && entry != of.heads() * head) throw Bug("entries of a chunk are not evenly spaced");
    return {.peer = chunk.peer,
            .data = static_cast<std::byte*>(t.data) + chunk.at.entry * entry + chunk.at.head * head +
                    chunk.at.row * row,
            .bytes = as_size(chunk.at.rows * row * runs),
            .runs = as_size(runs),
            .stride = as_size(head)};
  }
  static cuda::Runs runs_of(const Transport::Chunk& of) {
    return {.first = of.data, .bytes = of.bytes / of.runs, .count = of.runs, .stride = of.stride};
  }

  cuda::cu::Stream stream_of(Lane lane) const {
    return lane == Lane::travel ? room_->travel() : lane == Lane::own ? room_->within() : stream_;
  }
  template <class Body>
  void each_stream(Lane lane, const Body& body) const {
    body(stream_of(lane));
    for (std::size_t i = 0; lane == Lane::launches && i < DeviceState::beside_count; ++i) body(room_->beside(i));
  }
  cuda::cu::Stream launch_stream() {
    const std::size_t i = next_++ % (DeviceState::beside_count + 1);
    return i == 0 ? stream_ : room_->beside(i - 1);
  }

  Means means_on(cuda::cu::Stream stream) const {
    Means out = means_;
    out.stream = stream;
    out.workspace = {};
    out.used = nullptr;
    return out;
  }
  /// A slice of the call, as a call with its own mod, tensors and sizes.
  template <class Asked>
  Call slice(const compiler::LoweredMod& mod, const Asked& part, const compiler::Problem& p) const {
    Call out = call_of(mod, part, p);
    out.exact = rank_.call().exact;
    out.purpose = rank_.call().purpose;
    out.whole = &rank_.problem();
    return out;
  }
  template <class Asked>
  void put(Asked& part, const compiler::LoweredMod& mod, const compiler::Problem& p, const compiler::Slice& at,
           Means means) {
    const std::vector<double> params = compiler::params_of(mod.mod, rank_.call().args.params, at);
    part.params = params;
    Used used;
    if (means_.used) means.used = &used;
    cuda::engine.run(slice(mod, part, p), means);
    remember(used);
  }

  /// Enqueues a part of the call on a stream: `call` has the part's tensors, `p` its sizes.
  void compute(Forward& call, const compiler::Problem& p, const compiler::Slice& part, compiler::PartSink sink,
               cuda::cu::Stream stream) {
    const compiler::LoweredMod& mod = mods_(sink);
    // A part must use the kernel that the whole call would use on one rank. Chosen for the part, it could differ where
    // registers are scarce, although the expressions are the same.
    if (mod.mod.whole && !by_keys_ && !kernel_)
      kernel_ = {.variant = cuda::forward_variant(slice(rank_.call().mod, call, rank_.problem()), means_on(stream_)),
                 .only = true,
                 .origin = {}};
    Means means = means_on(stream);
    means.preference = kernel_ ? &*kernel_ : nullptr;
    put(call, mod, p, part, means);
  }

  void launch(const Backward& part, const Slice& of, const QuerySlice& one, const GradientSums& sums) {
    const KeyHeads& heads = of.keys.wanted.heads;
    Backward call = part;
    for (Tensor* t : {&call.q, &call.o, &call.grad_o, &call.dq}) *t = rows_of(rank_.rows(*t), one);
    for (Tensor* t : {&call.lse, &call.grad_lse}) *t = rows_of(rank_.numbers(*t), one);
    call.k = of.keys.k;
    call.v = of.keys.v;
    const bool further = &one != slices().data();
    if (further && call.dk.given()) call.dk = sums.dk_launch;
    if (further && call.dv.given()) call.dv = sums.dv_launch;
    put(call, mods_(compiler::PartSink::kept), problem_of(rank_, one, heads), ranks::slice_of(rank_, one, heads),
        means_on(stream_));
    if (further) {
      add_keys(one, call.dk, part.dk);
      add_keys(one, call.dv, part.dv);
    }
    for (std::size_t i = 0; i < sums.captured.size(); ++i)
      add({.first = part.captured[i].into, .adds = true}, sums.captured[i]);
  }
  /// Adds a launch's gradient to the gradient of the earlier launches.
  void add_keys(const QuerySlice& of, Tensor from, Tensor to) {
    if (!from.given()) return;
    if (rank_.packed()) {
      // The launch did not write the rows of other sequences.
      const std::vector<std::int64_t>& starts = rank_.problem().kv.starts;
      const std::int64_t first = starts[as_size(of.first)], last = starts[as_size(of.last)];
      for (Tensor* t : {&from, &to}) {
        t->data = static_cast<float*>(t->data) + first * t->strides[0];
        t->shape[0] = last - first;
      }
    }
    add({.first = from, .adds = true}, to);
  }

  const cuda::Facts& device_;
  const cuda::Current current_;
  cuda::cu::Stream stream_;
  const PartMods& mods_;
  std::shared_ptr<DeviceState> room_;
  std::unique_lock<std::mutex> lock_;
  const bool one_;        ///< values are columns of the keys
  bool ended_ = false;    ///< true once the caller's stream waits for the call's work on all other streams
  bool clears_ = false;   ///< true if memory for keys may hold old rows at positions that this layer does not need
  bool by_keys_ = false;  ///< true if queries were sent to the ranks that hold the keys
  std::size_t next_ = 0;  ///< number of the next launch
  mutable std::optional<std::vector<QuerySlice>> slices_;
  std::optional<codegen::Preference> kernel_;  ///< the kernel that one rank would use, if parts have separate kernels
};

}  // namespace

void run_on_device(const detail::Ranks& ranks, const PartMods& parts, const Call& call, const Means& means) {
  const Rank rank(ranks, call);
  DeviceCarrier carrier(rank, parts, means);
  run(rank, carrier);
}

}  // namespace attune::runtime::ranks
