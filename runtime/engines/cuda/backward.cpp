// runtime/engines/cuda/backward.cpp — a backward on a device: its kernels, its memory, its launches
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/cuda/contract/schedule.cuh"
#include "codegen/facts/reads.h"
#include "runtime/engines/cuda/combine.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/cuda/kernels/keys.h"
#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/cuda/stored_ds.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/platform/memory.h"
#include "runtime/platform/platform.h"

namespace attune::runtime::cuda {
namespace {

using codegen::Tile, codegen::Way, compiler::Problem;

/// The most words that a table of visits may have, half a GB, and the most sums along diagonals, 4 GB.
constexpr std::int64_t most_visits = std::int64_t{1} << 27, most_diagonals = std::int64_t{1} << 30;

[[noreturn]] void refuse_tiles(std::int64_t count, const char* limit) {
  throw Error("too-long", "the call has too many tiles for one launch", {},
              fmt::format("they are {}, and {}", count, limit), "split the call");
}

Gradient gradient(const Tensor& t, compiler::Layout layout) {
  return t.given() ? Gradient{strided(t, layout), stored(t.dtype)} : Gradient{};
}

/// A number for each row of queries, of all heads.
Tensor rows_of(const Backward& call, const Problem& p, void* at) {
  if (p.q.packed()) return {at, DType::f32, {p.q_heads, p.q.total}, {}, call.q.device};
  return {at, DType::f32, {p.batch, p.q_heads, p.q.length}, {}, call.q.device};
}

/// torch's `o.sum().backward()` gives a grad_o of one number with strides of 0, which TMA cannot read. If only grad_o
/// keeps a call from the kernels that use TMA, contiguous rows of it go to the front of the call's workspace.
class ReadableBackward {
 public:
  explicit ReadableBackward(const Call& of) : of_(of) {
    const Backward& call = of.backward();
    const Tensor& given = call.grad_o;
    if (has_boxes(given)) return;
    const auto shape = std::span(given.shape).first(static_cast<std::size_t>(given.rank));
    const Tensor rows(nullptr, given.dtype, shape, {}, given.device);
    if (!has_boxes(rows) || !has_boxes(call.q) || !has_boxes(call.k) || !has_boxes(call.v)) return;
    space_.take<std::byte>(rows.size() * static_cast<std::int64_t>(size_of(rows.dtype)));
    backward_ = call;
    backward_->grad_o = rows;
    readable_.emplace(of);
    readable_->what = *backward_;
  }
  ReadableBackward(const ReadableBackward&) = delete;
  ReadableBackward& operator=(const ReadableBackward&) = delete;

  /// The call that kernels are chosen for. Its grad_o has no memory before copy().
  const Call& call() const { return readable_ ? *readable_ : of_; }
  std::size_t bytes() const { return space_.used(); }
  /// Loads the kernel that copies, which may not happen during a capture.
  void load(const Facts& device, cu::Stream stream) const {
    if (readable_) load_copy(device, stream);
  }
  /// Enqueues the copy to the first bytes() of `memory`, and returns the memory that follows.
  std::span<std::byte> copy(const Facts& device, std::span<std::byte> memory, cu::Stream stream) {
    if (!readable_) return memory;
    backward_->grad_o.data = memory.data();
    copy_elements(device, of_.backward().grad_o, backward_->grad_o, stream);
    return memory.subspan(bytes());
  }

 private:
  const Call& of_;
  Workspace space_;
  std::optional<Backward> backward_;
  std::optional<Call> readable_;
};

/// A kernel that visits pairs, and the lists that its tiles need.
struct PairKernel {
  Held<LoadedKernel> kernel;
  CoverLists lists{};

  PairKernel() = default;
  PairKernel(const KernelKey& key, const Call& of, cu::Stream stream)
      : kernel(loaded_kernel(key, of.mod, stream, of.purpose)) {
    if (kernel->writes_lists()) lists = CoverLists(plan(), of.mod.cover, of.problem, codegen::cover_form(key.way));
  }
  explicit operator bool() const { return static_cast<bool>(kernel); }
  const codegen::KernelPlan& plan() const { return kernel->choice.plan; }
  bool has(const codegen::Companion& one) const { return kernel && kernel->has(one); }
  /// True if its operands are f32 that another kernel splits.
  bool splits() const { return kernel && plan().tile.parts > 0; }
};

/// A backward with its kernels: one for all of it, or one for each part.
class BackwardRun {
 public:
  BackwardRun(const Facts& device, const Call& of, const Means& means);
  /// Lays the call out in this workspace, and enqueues it; without `out` it only returns the bytes that it takes.
  std::size_t run(std::span<std::byte> memory = {}, Launches* out = nullptr);
  /// The kernels that visit pairs, in the order of their launches.
  std::vector<Held<LoadedKernel>> walkers() const {
    std::vector<Held<LoadedKernel>> out;
    for (const PairKernel* one : {&whole_, &queries_, &keys_})
      if (*one) out.push_back(one->kernel);
    return out;
  }

 private:
  // ---- which kernels

  bool asks_keys() const { return call_.dk.given() || call_.dv.given() || !captured_.empty(); }
  bool asks_queries() const { return call_.dq.given() || !captured_.empty(); }
  PairKernel chosen(Way way) const { return {key(way), of_, stream_}; }
  KernelKey key(Way way) const {
    return {.device = device_.index, .way = way, .call = of_way(asked_, way), .mod = of_.mod.digest};
  }
  Held<Kernel> plain(const codegen::Companion& what, const codegen::RowsSpec& spec) const {
    return loaded_plain(device_.index, what.name, spec, stream_, &of_.mod.mod, of_.purpose);
  }
  /// True if the kernel for the whole backward takes the call.
  bool plan_whole();
  void choose_parts();
  /// Compiles and loads the kernels of the first call of its kind on several threads, since each kernel takes seconds.
  void load_at_once(bool may_be_whole) const;

  // ---- memory and launches

  void whole();
  void parts();
  /// Null if there are no elements.
  template <class T>
  T* take(std::int64_t count) {
    return count > 0 ? space_.take<T>(count) : nullptr;
  }
  /// Workspace for the sums of captured gradients, except the one that is made of stored dS.
  void take_sums();
  SplitRowsArgs take_split(const Tile& tile);
  /// Takes what every backward takes last. True if launches follow; then the results of a forward are there, and sums
  /// are cleared.
  bool begin();
  /// The struct that all kernels share, before each adds its own.
  BackwardArgs& make_args(unsigned* non_finite);
  void put_deltas(const PairKernel& of, BackwardArgs& args);
  /// Adds the kernel, after the lists that it needs and the companions before it.
  void put(const PairKernel& of, const codegen::LaunchCall& launch, BackwardArgs& args, int* lists, bool early);
  codegen::LaunchCall launch_of(const PairKernel& of, std::int64_t blocks) const;
  /// Maps of the tensors that a kernel reads by TMA; of split operands also their factors.
  void put_maps(BackwardArgs& args, const PairKernel& of, const SplitRowsArgs& split) const;
  std::vector<std::byte> user_bytes(float* diagonals = nullptr, const codegen::DsArgs* ds = nullptr) const;
  void put_sums();

  Call first_call(const Forward& first) const {
    return {.mod = of_.mod,
            .args = of_.args,
            .problem = p_,
            .what = first,
            .exact = of_.exact,
            .purpose = of_.purpose ? of_.purpose->of_forward : nullptr,
            .whole = of_.whole};
  }
  /// Of a forward that the call computes first, if it is given no results.
  std::size_t first_bytes() const {
    if (call_.o.given() || codegen::all_rows(p_) == 0) return 0;
    const Forward first = first_forward(of_);
    return forward_workspace(first_call(first), {.stream = means_.stream});
  }

  // ---- for the whole-backward kernel: the number of sets of heads, and the places for their tiles, as in BackwardArgs

  std::int64_t sets_of_q() const { return p_.q_heads * (p_.q.packed() ? 1 : p_.batch); }
  std::int64_t sets_of_kv() const { return p_.kv_heads * (p_.kv_shared || p_.kv.packed() ? 1 : p_.batch); }
  std::int64_t places(const compiler::Positions& of, int positions) const {
    return of.packed() ? packed_places(of.total, p_.batch, positions) : ceil_div(of.length, positions);
  }
  std::int64_t q_tiles() const { return sets_of_q() * places(p_.q, whole_.plan().tile.m); }
  std::int64_t kv_places() const { return places(p_.kv, whole_.plan().tile.n); }
  /// As in spread_diagonals.cuh.
  std::int64_t diagonals() const {
    if (!whole_.has(codegen::spread_diagonals)) return 0;
    const Tile& tile = whole_.plan().tile;
    return sets_of_q() * kv_places() * (round_up(p_.q.length, tile.m) + tile.n);
  }
  /// How often two items of the same tile of dq are apart, in tiles of keys.
  int section_of_whole() const;
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(size_of(call_.q.dtype)); }

  const Call& of_;
  const Backward& call_;
  const Problem& p_;
  const Means& means_;
  const Facts& device_;
  const cu::Stream stream_;
  std::vector<Captured> captured_;
  const codegen::CallSpec asked_;
  PairKernel whole_;                     ///< if one kernel computes the whole backward
  PairKernel queries_, keys_;            ///< otherwise
  std::optional<DenseGradients> dense_;  ///< if the kernel stores dS
  Held<Kernel> rows_kernel_, sums_kernel_;
  std::size_t first_bytes_ = 0;

  Workspace space_;
  Launches* out_ = nullptr;
  Starts starts_;
  std::span<unsigned long long> sums_;  ///< of all captured tensors
  Strided o_;                           ///< of the forward
  Rows lse_, delta_;
};

// ---- which kernels --------------------------------------------------------------------------------------------------

BackwardRun::BackwardRun(const Facts& device, const Call& of, const Means& means)
    : of_(of), call_(of.backward()), p_(of.problem), means_(means), device_(device),
      stream_(static_cast<cu::Stream>(means.stream)), captured_(captured_of(of.args, call_)),
      asked_(backward_call_spec(device, of, captured_, means)) {
  if (!asks_keys() && !asks_queries()) return;
  // The requested kernel may be a kernel for one part of the backward.
  const bool may_be_whole = !means.preference || codegen::takes(*means.preference, Way::backward);
  if (!is_loaded(key(may_be_whole ? Way::backward : asks_keys() ? Way::keys : Way::queries)))
    load_at_once(may_be_whole);
  if (may_be_whole) whole_ = chosen(Way::backward);
  if (!whole_ || !plan_whole()) choose_parts();
  const PairKernel& first = whole_ ? whole_ : queries_ ? queries_ : keys_;
  rows_kernel_ = plain(codegen::delta_rows, codegen::rows_spec(asked_.spec, first.kernel->delta_degree));
  if (captured_.size() > (dense_ ? dense_->each.size() : 0))
    sums_kernel_ = plain(codegen::captured_sums, {.arch = device.arch()});
  first_bytes_ = first_bytes();
}

bool BackwardRun::plan_whole() {
  const CoverLists& lists = whole_.lists;
  if (!whole_.plan().kernel || diagonals() > most_diagonals) return false;
  if (lists.what == CoverForm::visits && (lists.ints() > most_visits || lists.rows > Visit::most_tiles)) return false;
  if (whole_.has(codegen::sum_ds)) dense_ = dense_gradients(of_, captured_, *whole_.kernel, q_tiles(), means_.ds_bytes);
  return true;
}

void BackwardRun::choose_parts() {
  if (means_.preference && whole_ && !codegen::takes(*means_.preference, Way::queries))
    throw Error("bad-kernel", "the requested kernel does not support this call",
                {.name = means_.preference->variant.text()},
                whole_.plan().kernel ? "its table of tiles to visit, or its sums along diagonals, would be too large"
                                     : whole_.kernel->story.front(),
                "name another, or leave the choice to attune");
  whole_ = {};
  if (asks_keys()) keys_ = chosen(Way::keys);
  // If deltas are not products with o, the kernel of the queries also sums them for the kernel of the keys.
  if (asks_queries() || keys_.kernel->delta_degree == 0) queries_ = chosen(Way::queries);
}

void BackwardRun::load_at_once(bool may_be_whole) const {
  // A capture is refused below, and with compiling off everything comes from bundles, which takes no time.
  if (capturing(stream_) || !objects().jit()) return;
  const codegen::GpuParts parts = codegen::parts_of(of_.mod, asked_, Way::backward);
  const double delta_degree = parts.gradient->delta_degree;
  const bool all_exact = !may_be_whole && !captured_.empty();
  std::vector<std::function<void()>> loads;
  const auto walker = [&](Way way) { loads.emplace_back([&, way] { chosen(way); }); };
  if (may_be_whole &&
      codegen::ways_of_backward(codegen::backward_spec(asked_.spec), parts.facts).front() == Way::backward) {
    walker(Way::backward);
  } else {
    if (asks_keys()) walker(Way::keys);
    if (asks_queries() || delta_degree == 0) walker(Way::queries);
  }
  loads.emplace_back([&] { first_bytes(); });
  loads.emplace_back([&] { plain(codegen::delta_rows, codegen::rows_spec(asked_.spec, delta_degree)); });
  if (all_exact || parts.gradient->sums_exactly())
    loads.emplace_back([&] { plain(codegen::captured_sums, {.arch = device_.arch()}); });
  const Current here(device_.index);
  at_once(loads.size(), [&](std::size_t i) {
    const Current current(here.context());
    loads[i]();
  });
}

// ---- memory and launches --------------------------------------------------------------------------------------------

std::size_t BackwardRun::run(std::span<std::byte> memory, Launches* out) {
  space_ = Workspace(memory);
  out_ = out;
  if (p_.q.packed())
    starts_ = starts_of(space_, out, stream_, p_, QueryTiles({.queries = 1}, p_), 1, false, call_.cu_seqlens_q,
                        call_.cu_seqlens_kv);
  if (whole_)
    whole();
  else if (queries_ || keys_)
    parts();
  return space_.used();
}

void BackwardRun::take_sums() {
  const auto words = [&](const Captured& one) {
    return dense_ && dense_->has(one) ? 0 : one.into->size() * exact_words;
  };
  std::int64_t all = 0;
  for (const Captured& one : captured_) all += words(one);
  auto* next = take<unsigned long long>(all);
  sums_ = {next, static_cast<std::size_t>(all)};
  if (!next) return;
  for (Captured& one : captured_) {
    one.sums = next;
    next += words(one);
  }
}

SplitRowsArgs BackwardRun::take_split(const Tile& tile) {
  const auto rows = [&](const Tensor& t, const compiler::Positions& of, std::int64_t batch, std::int64_t heads,
                        std::int64_t width, int columns) {
    SplitRows out{.from = strided(t, of.layout),
                  .to = nullptr,
                  .factors = nullptr,
                  .batch = static_cast<int>(batch),
                  .heads = static_cast<int>(heads),
                  .length = static_cast<int>(of.length),
                  .width = static_cast<int>(width),
                  .lines = static_cast<int>(round_up(of.length, std::int64_t{split_lines}))};
    out.to = take<unsigned short>(batch * heads * of.length * tile.parts * columns);
    out.factors = take<float>(batch * heads * out.lines);
    return out;
  };
  const std::int64_t kv_batch = p_.kv_shared ? 1 : p_.batch;
  return {.q = rows(call_.q, p_.q, p_.batch, p_.q_heads, p_.d, tile.d),
          .k = rows(call_.k, p_.kv, kv_batch, p_.kv_heads, p_.d, tile.d),
          .v = rows(call_.v, p_.kv, kv_batch, p_.kv_heads, p_.dv, tile.dv),
          .grad_o = rows(call_.grad_o, p_.q, p_.batch, p_.q_heads, p_.dv, tile.dv),
          .non_finite = nullptr};
}

bool BackwardRun::begin() {
  const std::int64_t rows = codegen::all_rows(p_);
  delta_ = cuda::rows(rows_of(call_, p_, take<float>(rows)), p_.q.layout);
  if (call_.o.given()) {
    o_ = strided(call_.o, p_.q.layout);
    lse_ = cuda::rows(call_.lse, p_.q.layout);
  } else {
    auto* const o = take<std::byte>(rows * p_.dv * static_cast<std::int64_t>(sizeof(float)));
    auto *const lse = take<float>(rows), *const max = take<float>(rows);
    auto* const room = take<std::byte>(static_cast<std::int64_t>(first_bytes_));
    const Forward first = first_forward(of_, o, lse, max);
    if (out_ && rows > 0) forward(first_call(first), {.workspace = {room, first_bytes_}, .stream = means_.stream});
    o_ = strided(first.o, p_.q.layout);
    lse_ = cuda::rows(first.lse, p_.q.layout);
  }
  if (!out_) return false;
  for (const PairKernel* one : {&whole_, &queries_, &keys_})
    if (*one) one->kernel->used_on(stream_);
  out_->clear(reinterpret_cast<unsigned*>(sums_.data()), sums_.size_bytes() / sizeof(unsigned));
  return true;
}

BackwardArgs& BackwardRun::make_args(unsigned* non_finite) {
  auto& args = out_->make<BackwardArgs>();
  set_entries(args, entries_of(p_, starts_.q, starts_.kv));
  args.q = strided(call_.q, p_.q.layout);
  args.k = strided(call_.k, p_.kv.layout);
  args.v = strided(call_.v, p_.kv.layout);
  args.o = o_;
  args.grad_o = strided(call_.grad_o, p_.q.layout);
  args.lse = lse_;
  args.grad_lse = rows(call_.grad_lse, p_.q.layout);
  args.delta = delta_;
  args.grad_q = gradient(call_.dq, p_.q.layout);
  args.grad_k = gradient(call_.dk, p_.kv.layout);
  args.grad_v = gradient(call_.dv, p_.kv.layout);
  args.scale = static_cast<float>(p_.scale);
  args.q_heads = static_cast<int>(p_.q_heads);
  args.kv_heads = static_cast<int>(p_.kv_heads);
  args.d = static_cast<int>(p_.d);
  args.dv = static_cast<int>(p_.dv);
  args.non_finite = non_finite;
  return args;
}

void BackwardRun::put_deltas(const PairKernel& of, BackwardArgs& args) {
  out_->launch({.kernel = rows_kernel_.get(),
                .grid = codegen::delta_rows.grid(launch_of(of, 0)),
                .threads = codegen::delta_rows.threads,
                .arguments = &args});
}

codegen::LaunchCall BackwardRun::launch_of(const PairKernel& of, std::int64_t blocks) const {
  if (blocks > std::numeric_limits<int>::max()) refuse_tiles(blocks, "a grid has fewer than 2^31 blocks");
  return {.problem = p_, .plan = of.plan(), .sms = device_.sms, .blocks = blocks, .gives_dq = call_.dq.given()};
}

void BackwardRun::put(const PairKernel& of, const codegen::LaunchCall& launch, BackwardArgs& args, int* lists,
                      bool early) {
  if (launch.blocks == 0) return;
  if (lists) {
    CoverLists there = of.lists;
    there.at = lists;
    put_cover(*out_, *of.kernel, there, args, nullptr, args.visited);
    there.put(args);
  }
  out_->before(*of.kernel, launch, &args);
  out_->kernel(*of.kernel, launch, &args, early);
}

std::vector<std::byte> BackwardRun::user_bytes(float* diagonals, const codegen::DsArgs* ds) const {
  const compiler::Args& args = of_.args;
  // By slot, as in codegen::source_sums(): of each tensor whose gradient is asked for and is not made of stored dS.
  std::vector<std::optional<void*>> of_slots(args.captures.size());
  for (const Captured& one : captured_)
    for (const std::uint32_t slot : one.slots) of_slots[slot] = one.sums;
  if (dense_)
    for (const DenseGradient& one : dense_->each) of_slots[one.slot].reset();
  std::vector<void*> sums;
  for (const std::optional<void*>& one : of_slots)
    if (one) sums.push_back(*one);
  if (whole_.has(codegen::spread_diagonals)) sums.push_back(diagonals);
  return codegen::user_bytes(of_.mod.mod, args.captures, args.params, static_cast<float>(p_.scale),
                             codegen::reach_far(args.captures), sums, ds);
}

void BackwardRun::put_sums() {
  for (const Captured& one : captured_) {
    if (dense_ && dense_->has(one)) continue;
    const Tensor& to = *one.into;
    SumsArgs args{.sums = one.sums,
                  .to = to.data,
                  .type = stored(to.dtype),
                  .count = to.size(),
                  .extent = {1, 1, 1, 1},
                  .stride = {}};
    for (int d = 0; d < to.rank; ++d) {
      const int last = SumsArgs::most_rank - to.rank + d;
      args.extent[last] = to.shape[static_cast<std::size_t>(d)];
      args.stride[last] = to.strides[static_cast<std::size_t>(d)];
    }
    out_->launch({.kernel = sums_kernel_.get(),
                  .grid = {static_cast<unsigned>(ceil_div(to.size(), codegen::captured_sums.threads)), 1, 1},
                  .threads = codegen::captured_sums.threads,
                  .arguments = &args});
    out_->put(stream_, {});
  }
}

// ---- one kernel, which accumulates dq in memory, one tile of keys after another

int BackwardRun::section_of_whole() const {
  const Tile& tile = whole_.plan().tile;
  const bool skips = whole_.kernel->skips;
  // Several heads are visited on the way back: a tile of dq then has two steps to pass on, as a tile of 64 queries.
  const bool two_steps = tile.returns && p_.group > 1;
  // Twice the sets halve the time in which the first items of a set wait for one another: 2 to 7 % of a call of 80
  // queries and up to 112 columns. At 128 columns a section then takes 34 MB of the L2 cache: without a mask it gained
  // 1 to 4 % at 8192 positions, nothing at 4096 and 16384, and lost 2 % at 2048; under a causal mask it lost up to 4 %.
  // With shared keys it takes several times as much, and a third of the rate was lost.
  const bool fits = tile.d < 128 || (!skips && p_.kv.length > 4096);
  const std::int64_t times = tile.m == turned_queries && fits && p_.group == 1 ? 2 : 1,
                     apart = times * items_apart(two_steps ? 64 : tile.m, skips),
                     tiles = dense_ && !p_.kv.packed() ? dense_->tiles : ceil_div(p_.kv.length, tile.n);
  return static_cast<int>(std::max<std::int64_t>(1, apart / std::max<std::int64_t>(1, tiles)));
}

void BackwardRun::whole() {
  const LoadedKernel& kernel = *whole_.kernel;
  const bool ordered = whole_.plan().variant.of("ordered") != 0;
  const std::int64_t kv_tiles = kv_places(), tiles_of_dq = q_tiles(), dq_sums = tiles_of_dq * kernel.choice.sums,
                     diagonal_sums = diagonals();
  // Where dS is stored, a launch has some of the keys: launches go from the last keys to the first.
  const std::int64_t all_keys = dense_ ? ceil_div(p_.kv.length, std::int64_t{whole_.plan().tile.n}) : kv_tiles,
                     of_launch = dense_ ? dense_->tiles : std::max<std::int64_t>(kv_tiles, 1),
                     further = dense_ ? (all_keys - 1) / of_launch : 0;
  // A flag that a result is non-finite, the next item, the number of visits, the tiles of keys added to each tile of
  // dq, and the next item of each further launch.
  enum Counter : std::int64_t { non_finite, next_item, visits, added_tiles };
  const std::int64_t counter_words = added_tiles + tiles_of_dq + further;

  take_sums();
  space_.align(128);  // whole lines of the L2 cache, which a kernel may discard
  auto* const added = take<float>(dq_sums);
  auto* const counters = take<unsigned>(counter_words);
  auto* const along_diagonals = take<float>(diagonal_sums);
  if (dense_ && !dense_->is_gradient) dense_->ds.data = take<unsigned short>(dense_->ds.size());
  auto* const lists = take<int>(whole_.lists.ints());
  if (!begin()) return;

  const auto clear = [&](auto* first, std::int64_t words) {
    out_->clear(reinterpret_cast<unsigned*>(first), static_cast<std::size_t>(words));
  };
  clear(along_diagonals, diagonal_sums);
  clear(counters, counter_words);
  // In any order, no tile of keys is the first, which would overwrite the sums.
  if (!ordered) clear(added, dq_sums);
  if (const std::int64_t most = std::max(tiles_of_dq, sets_of_kv() * kv_tiles); most > std::numeric_limits<int>::max())
    refuse_tiles(most, "there may be fewer than 2^31");
  BackwardArgs& args = make_args(counters + non_finite);
  put_maps(args, whole_, {});
  args.sums = added;
  args.visited = counters + visits;
  args.added = counters + added_tiles;
  // Without a mask, every tile of queries visits all tiles of keys.
  const bool all = !kernel.skips && !p_.q.packed() && !p_.kv.packed() && !dense_;
  args.complete_at = all && ordered ? static_cast<unsigned>(kv_tiles) : 0;
  args.q_places = static_cast<int>(places(p_.q, whole_.plan().tile.m));
  args.section = section_of_whole();
  const std::vector<SumOfDs> sums_of_ds = dense_ ? dense_->sums() : std::vector<SumOfDs>();
  const std::int64_t most_blocks = means_.blocks ? std::min(means_.blocks, device_.sms) : device_.sms;
  for (std::int64_t nth = further; nth >= 0; --nth) {
    const bool first = nth == further;
    // A launch for packed sequences passes over the tiles of other keys.
    const std::int64_t first_tile = nth * of_launch, tiles = p_.kv.packed() ? kv_tiles
                                                             : first        ? kv_tiles - first_tile
                                                                            : of_launch;
    args.next = first ? counters + next_item : counters + added_tiles + tiles_of_dq + nth;
    args.kv_places = static_cast<int>(tiles);
    const codegen::LaunchCall launch = launch_of(whole_, std::min(sets_of_kv() * tiles, most_blocks));
    if (first) {
      put_deltas(whole_, args);
      put(whole_, launch, args, lists, true);
    } else {
      out_->kernel(kernel, launch, &args, false);
    }
    if (nth > 0)
      out_->companion(kernel, codegen::sum_ds, launch, &args);
    else
      out_->after(kernel, launch, &args);
    std::optional<codegen::DsArgs> ds;
    if (dense_) ds = {dense_->stored(whole_.plan(), first_tile), sums_of_ds};
    std::vector<std::byte> user = user_bytes(along_diagonals, ds ? &*ds : nullptr);
    out_->put(stream_, user);
  }
  put_sums();
}

// ---- a kernel for the gradient of q, and one for those of k and v

void BackwardRun::put_maps(BackwardArgs& args, const PairKernel& of, const SplitRowsArgs& split) const {
  const auto& boxes = of.kernel->choice.boxes;
  if (!boxes) return;
  if (!of.splits()) {
    args.q_map = boxes_of(call_.q, boxes->q);
    args.k_map = boxes_of(call_.k, boxes->k);
    args.v_map = boxes_of(call_.v, boxes->v);
    args.grad_o_map = boxes_of(call_.grad_o, boxes->o);
    return;
  }
  const Tile& tile = of.plan().tile;
  const auto put = [&](TensorMap& map, Strided& factors, const SplitRows& from, int columns, int rows) {
    const Tensor parts(from.to, DType::f16, {from.batch, from.heads, from.length, tile.parts * columns});
    map = boxes_of(parts, rows);
    factors = {.data = from.factors, .batch = std::int64_t{from.heads} * from.lines, .head = from.lines, .position = 1};
  };
  put(args.q_map, args.q, split.q, tile.d, boxes->q);
  put(args.k_map, args.k, split.k, tile.d, boxes->k);
  put(args.v_map, args.v, split.v, tile.dv, boxes->v);
  put(args.grad_o_map, args.grad_o, split.grad_o, tile.dv, boxes->o);
}

void BackwardRun::parts() {
  take_sums();
  auto* const lists_of_keys = take<int>(keys_.lists.ints());
  auto* const lists_of_queries = take<int>(queries_.lists.ints());
  SplitRowsArgs split{};
  if (queries_.splits() || keys_.splits()) split = take_split((queries_.splits() ? queries_ : keys_).plan().tile);
  const PairKernel* const repairs = queries_.has(codegen::repair_part) ? &queries_
                                    : keys_.has(codegen::repair_part)  ? &keys_
                                                                       : nullptr;
  auto* const non_finite = take<unsigned>(repairs ? 1 : 0);
  if (!begin()) return;

  if (non_finite) out_->clear(non_finite);
  split.non_finite = non_finite;
  BackwardArgs& shared = make_args(non_finite);
  put_deltas(queries_ ? queries_ : keys_, shared);
  bool was_split = false;
  const auto put_part = [&](const PairKernel& of, std::int64_t blocks, int* lists, int section) {
    const codegen::LaunchCall launch = launch_of(of, blocks);
    auto& args = out_->make<BackwardArgs>();
    args = shared;
    args.section = section;
    put_maps(args, of, split);
    if (blocks > 0 && of.splits() && !std::exchange(was_split, true))
      out_->companion(*of.kernel, codegen::split_rows, launch, &split);
    put(of, launch, args, lists, false);
  };
  if (queries_) {
    const QueryTiles tiles({.queries = queries_.plan().tile.m}, p_);
    put_part(queries_, tiles.count, lists_of_queries, section_of(tiles, p_, device_.l2_bytes, element_bytes()));
  }
  if (keys_) {
    const std::int64_t sets = p_.kv_heads * (p_.kv_shared ? 1 : p_.batch);
    // The queries of a section's key heads fill half of the L2 cache.
    const std::int64_t head = (p_.q.packed() ? p_.q.total : p_.q.length) * p_.group * (p_.d + p_.dv) * element_bytes(),
                       section = device_.l2_bytes / 2 / std::max<std::int64_t>(head, 1);
    put_part(keys_, sets * ceil_div(p_.kv.length, keys_.plan().tile.n), lists_of_keys,
             static_cast<int>(std::clamp<std::int64_t>(section, 1, std::max<std::int64_t>(sets, 1))));
  }
  // The results of both kernels are repaired once, with the arguments that they share.
  if (repairs) out_->after(*repairs->kernel, launch_of(*repairs, 0), &shared);
  std::vector<std::byte> user = user_bytes();
  out_->put(stream_, user);
  put_sums();
}

}  // namespace

// ---- the engine's ---------------------------------------------------------------------------------------------------

Forward first_forward(const Call& backward, void* o, void* lse, void* max) {
  const Backward& call = backward.backward();
  const Problem& p = backward.problem;
  const auto shape = std::span(call.grad_o.shape).first(static_cast<std::size_t>(call.grad_o.rank));
  return {.q = call.q,
          .k = call.k,
          .v = call.v,
          // o stays f32, not rounded: deltas are sums of products with o.
          .o = Tensor(o, DType::f32, shape, {}, call.q.device),
          .lse = rows_of(call, p, lse),
          .max = rows_of(call, p, max),
          .cu_seqlens_q = call.cu_seqlens_q,
          .cu_seqlens_kv = call.cu_seqlens_kv,
          .q_offset = call.q_offset,
          .max_q_len = call.max_q_len,
          .max_kv_len = call.max_kv_len,
          .captures = call.captures,
          .params = call.params};
}

codegen::CallSpec call_spec(const Call& call) {
  const Facts& device = facts(call.q().device.index);
  if (call.is_forward()) {
    check_outputs(call.forward());
    return forward_call_spec(device, call, {});
  }
  const ReadableBackward readable(call);
  return backward_call_spec(device, readable.call(), captured_of(call.args, call.backward()), {});
}

std::vector<KernelStory> backward_story(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  const ReadableBackward readable(call);
  std::vector<KernelStory> out;
  for (const auto& kernel : BackwardRun(device, readable.call(), means).walkers()) out.push_back(story_of(*kernel));
  if (readable.bytes() > 0 && !out.empty())
    out.front().notes.push_back(fmt::format(
        "grad_o is copied first, {} bytes: its rows are not contiguous, or not aligned to 16 bytes", readable.bytes()));
  return out;
}

std::size_t backward_workspace(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  const ReadableBackward readable(call);
  readable.load(device, static_cast<cu::Stream>(means.stream));
  return readable.bytes() + BackwardRun(device, readable.call(), means).run();
}

void backward(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  ReadableBackward readable(call);
  BackwardRun run(device, readable.call(), means);
  const std::size_t bytes = readable.bytes() + run.run();
  if (means.used) {
    std::string names;
    for (const auto& kernel : run.walkers())
      names += (names.empty() ? "" : " ") + codegen::variant_of(kernel->choice.plan).text();
    *means.used = {target_name(device.arch()), names, bytes};
  }
  const Pooled own(device, means.workspace.empty() ? bytes : 0, stream);
  const auto memory = means.workspace.empty() ? own.bytes() : checked_workspace(means.workspace, bytes);
  Launches launches;
  run.run(readable.copy(device, memory, stream), &launches);
}

}  // namespace attune::runtime::cuda
