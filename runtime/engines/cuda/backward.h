// runtime/engines/cuda/backward.h — a backward call on a device: its kernels, its memory, its launches
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/reads.h"
#include "compiler/bind.h"
#include "ir/node.h"
#include "runtime/engines/cuda/consider.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/maps.h"
#include "runtime/engines/cuda/memory.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/cuda/order.h"
#include "runtime/engines/workspace.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/options.h"
#include "runtime/machine/purpose.h"
#include "runtime/machine/threads.h"

namespace attune::runtime::cuda {
using codegen::Way, compiler::Args, compiler::LoweredMod, compiler::Problem;

inline void check_operands(const Backward& call) {
  require_writable("dq", call.dq);
  require_writable("dk", call.dk);
  require_writable("dv", call.dv);
  require_f32_rows("lse", call.lse);
  require_f32_rows("grad_lse", call.grad_lse);
  if (call.grad_o.dtype != call.q.dtype)
    throw Error("engine-type", "the CUDA engine takes grad_o in the type of q", {},
                fmt::format("grad_o holds {}, and q {}", name_of(call.grad_o.dtype), name_of(call.q.dtype)),
                fmt::format("convert grad_o to {}", name_of(call.q.dtype)));
  if (call.o.given() && call.o.dtype == DType::f64)
    throw Error("engine-type", "the CUDA engine does not read o as f64", {}, "it computes in f32",
                "give it elements of f32, or leave out o and lse");
  for (const Backward::Captured& one : call.captured) require_writable("the gradient of a captured tensor", one.into);
}

inline Gradient gradient(const Tensor& t, compiler::Layout layout) {
  return t.given() ? Gradient{strided(t, layout), stored(t.dtype)} : Gradient{};
}

/// A captured tensor whose gradient is asked for: all slots that hold it.
struct Captured {
  const Tensor* into = nullptr;
  std::vector<std::uint32_t> slots;
  Room<unsigned long long> sums;
};

inline std::vector<Captured> captured_of(const Args& args, const Backward& call) {
  std::vector<Captured> out;
  for (const Backward::Captured& asked : call.captured) {
    if (asked.into.size() == 0) continue;
    Captured one{.into = &asked.into, .slots = {}, .sums = {}};
    for (std::uint32_t slot = 0; slot < args.captures.size(); ++slot)
      if (is_of(asked, args, slot)) one.slots.push_back(slot);
    out.push_back(std::move(one));
  }
  return out;
}

inline codegen::Wanted wanted_of(const Args& args, std::span<const Captured> captured) {
  codegen::Wanted out(args.captures.size());
  for (const Captured& one : captured)
    for (const std::uint32_t slot : one.slots) out[slot] = true;
  return out;
}

inline BackwardWants wants_of(const Facts& device, const Call& of) {
  const Backward& call = of.backward();
  const Problem &p = of.problem, &whole = of.whole ? *of.whole : p;
  return {.spec = {.arch = device.arch(),
                   .dtype = call.q.dtype,
                   .out = call.o.given() ? call.o.dtype : DType::f32,
                   .d = p.d,
                   .dv = p.dv,
                   .packed = p.q.packed(),
                   .boxes = has_boxes(call.q) && has_boxes(call.k) && has_boxes(call.v) && has_boxes(call.grad_o),
                   .load = copied_bytes({&call.q, &call.k, &call.v, &call.grad_o}),
                   .scale_positive = static_cast<float>(p.scale) > 0,
                   .exact = codegen::is_exact(of.exact, call.q.dtype),
                   .wide = codegen::reach_far(of.args.captures)},
          .length = codegen::length_of(whole.q.length, whole.kv.length)};
}

inline KernelKey key_of(Way way, const Facts& device, const Call& of, const BackwardWants& wants, const Means& means,
                        const codegen::Wanted& wanted) {
  KernelKey key{.device = device.index,
                .way = way,
                .spec = codegen::backward_spec(wants.spec),
                .mod = of.mod.digest,
                .length = wants.length,
                .preference = {},
                .wanted = wanted};
  if (means.preference && codegen::takes(*means.preference, way)) key.preference = *means.preference;
  return key;
}

/// A number for each row of queries, of all heads.
inline Tensor rows_of(const Backward& call, const Problem& p, void* at) {
  if (p.q.packed()) return {at, DType::f32, {p.q_heads, p.q.total}, {}, call.q.device};
  return {at, DType::f32, {p.batch, p.q_heads, p.q.length}, {}, call.q.device};
}

/// The most words that a table of visits may have, half a GB, and the most sums along diagonals, 4 GB.
constexpr std::int64_t most_visits = std::int64_t{1} << 27, most_diagonals = std::int64_t{1} << 30;

/// Maps of the tensors that a kernel's copy engine reads.
inline void put_maps(BackwardArgs& args, const Backward& call, const std::optional<codegen::BoxRows>& boxes) {
  if (!boxes) return;
  args.q_map = boxes_of(call.q, boxes->q);
  args.k_map = boxes_of(call.k, boxes->k);
  args.v_map = boxes_of(call.v, boxes->v);
  args.grad_o_map = boxes_of(call.grad_o, boxes->o);
}

/// One of the kernels that walk pairs, with the lists that its tiles need.
struct Walker {
  std::shared_ptr<const LoadedKernel> kernel;
  CoverLists lists{};
  Room<int> room{};
  BackwardArgs arguments{};
  CoverArgs cover{};

  Walker() = default;
  Walker(const KernelKey& key, const Call& of, const Means& means)
      : kernel(loaded_kernel(key, of.mod, static_cast<cu::Stream>(means.stream), of.purpose)) {
    if (kernel->cover_kernel)
      lists = CoverLists(kernel->choice.plan, of.mod.cover, of.problem, codegen::cover_form(key.way));
  }
  Walker(const KernelKey& key, const Call& of, const Means& means, WorkspaceLayout& space) : Walker(key, of, means) {
    take(space);
  }
  void take(WorkspaceLayout& space) { room = space.take<int>(lists.ints()); }

  const codegen::KernelPlan& plan() const { return kernel->choice.plan; }
  /// Has it a kernel that takes the call, and lists that are no larger than tables may be?
  bool can() const {
    return kernel && plan().kernel &&
           (lists.what != CoverForm::visits || (lists.ints() <= most_visits && lists.rows <= Visit::most_tiles));
  }

  /// Puts the launch that writes the lists, for one that gets these arguments. Early: as Launch has it.
  void put_lists(Launches& launches, std::byte* memory, BackwardArgs& to, const Problem& p, const Starts& starts,
                 bool early = false) {
    if (kernel->cover_kernel && lists.rows > 0 && lists.blocks > 0) {
      lists.at = room.in(memory);
      cover = cover_arguments(lists, p, starts, nullptr);
      cover.visited = to.visited;
      Launch launch = cover_launch(kernel->cover_kernel->kernel, lists, cover);
      launch.early = early;
      launches.launch(launch);
    }
    to.tiles = lists.at;
    to.tile_stride = lists.stride;
    to.tile_batches = lists.batches;
    to.tile_heads = lists.heads;
  }

  void put(Launches& launches, std::byte* memory, const BackwardArgs& common, const Backward& call, const Problem& p,
           const Starts& starts, int section, std::int64_t blocks) {
    if (blocks == 0) return;
    if (blocks > std::numeric_limits<int>::max())
      throw Error("too-long", "the call has too many tiles for one launch", {},
                  fmt::format("they are {}, and a grid has fewer than 2^31 blocks", blocks), "split the call");
    arguments = common;
    arguments.section = section;
    put_maps(arguments, call, kernel->choice.boxes);
    put_lists(launches, memory, arguments, p, starts);
    launches.launch({.kernel = &kernel->kernel,
                     .grid = {static_cast<unsigned>(blocks), 1, 1},
                     .threads = kernel->choice.threads,
                     .shared_bytes = kernel->choice.shared_bytes,
                     .arguments = &arguments});
  }
};

/// A call with its kernels. Its memory is laid out here, once; `put` fills it in and puts the launches on a stream.
class BackwardCall {
 public:
  BackwardCall(const Facts& device, const Call& of, const Means& means)
      : of_(of), lowered_(of.mod), args_(of.args), call_(of.backward()), p_(of.problem), means_(means), device_(device),
        captured_(captured_of(args_, call_)), starts_(space_, p_, QueryTiles({.queries = 1}, p_)) {
    const Backward& call = call_;
    const Problem& p = p_;
    const auto stream = static_cast<cu::Stream>(means.stream);
    const codegen::Wanted wanted = wanted_of(args_, captured_);
    const BackwardWants wants = wants_of(device, of);
    const auto key = [&](Way way) { return key_of(way, device, of, wants, means, wanted); };
    std::int64_t words = 0;
    for (const Captured& one : captured_) words += one.into->size() * exact_words;
    sums_ = space_.take<unsigned long long>(words);
    std::size_t next = sums_.offset;
    for (Captured& one : captured_) {
      one.sums = {next, one.into->size() * exact_words};
      next += static_cast<std::size_t>(one.sums.count) * sizeof(unsigned long long);
    }
    const bool has_captured = !captured_.empty(), of_kv = call.dk.given() || call.dv.given(), of_q = call.dq.given();
    // A kernel that is asked for may be one of those that do a part.
    const bool may_be_whole = (of_kv || of_q || has_captured) &&
                              (!means.preference || codegen::takes(*means.preference, Way::backward));
    const Way asked_first = may_be_whole ? Way::backward : of_kv || has_captured ? Way::keys : Way::queries;
    if ((of_kv || of_q || has_captured) && !is_loaded(key(asked_first))) load_at_once(wants, wanted, may_be_whole);
    if (may_be_whole) whole_ = Walker(key(Way::backward), of, means);
    if (whole_.can() && diagonals() <= most_diagonals) {
      const std::int64_t tiles = sets_of_q() * q_places();
      added_ = space_.take<float>(tiles * whole_.kernel->choice.sums);
      counters_ = space_.take<unsigned>(tiles + 3);
      diagonals_ = space_.take<float>(diagonals());
      whole_.take(space_);
    } else {
      if (means.preference && whole_.kernel && !codegen::takes(*means.preference, Way::queries))
        throw Error("bad-kernel", "the kernel that is asked for cannot take this call",
                    {.name = means.preference->variant.text()},
                    whole_.plan().kernel
                        ? "its table of tiles to visit, or its sums along diagonals, would be too large"
                        : whole_.kernel->story.front(),
                    "name another, or leave the choice to attune");
      whole_ = {};
      if (of_kv || has_captured) keys_ = Walker(key(Way::keys), of, means, space_);
      // Where deltas are no products with o, the walk of the queries sums them for the keys too.
      if (of_q || has_captured || (keys_.kernel && !keys_.kernel->delta_of_o))
        queries_ = Walker(key(Way::queries), of, means, space_);
      for (const Walker* one : {&queries_, &keys_})
        if (counters_.count == 0 && one->kernel && one->kernel->repair) counters_ = space_.take<unsigned>(1);
      if (!walks()) return;
    }
    if (has_captured) sums_kernel_ = loaded_sums(device.index, device.arch(), of.mod.mod, stream, of.purpose);
    const Walker& first_walker = whole_.kernel ? whole_ : queries_.kernel ? queries_ : keys_;
    const bool of_o = first_walker.kernel->delta_of_o;
    rows_kernel_ = loaded_rows(device.index, codegen::rows_spec(wants.spec, of_o), of.mod.mod, stream, of.purpose);
    delta_ = space_.take<float>(rows());
    if (call.o.given()) return;
    own_o_ = space_.take<std::byte>(rows() * p.dv * static_cast<std::int64_t>(sizeof(float)));
    own_lse_ = space_.take<float>(rows());
    own_max_ = space_.take<float>(rows());
    const Forward first = forward_call(nullptr);
    forward_space_ = space_.take<std::byte>(
        rows() > 0 ? static_cast<std::int64_t>(forward_workspace(first_call(first), forward_means({}))) : 0);
  }

  std::size_t bytes() const { return space_.bytes(); }
  /// Those that walk pairs, in the order of their launches.
  std::vector<std::shared_ptr<const LoadedKernel>> walkers() const {
    std::vector<std::shared_ptr<const LoadedKernel>> out;
    for (const Walker* one : {&whole_, &queries_, &keys_})
      if (one->kernel) out.push_back(one->kernel);
    return out;
  }

  void put(std::byte* memory) {
    if (!walks()) return;
    const auto stream = static_cast<cu::Stream>(means_.stream);
    starts_.require_no_capture(stream);
    if (!call_.o.given() && rows() > 0) {
      const std::span<std::byte> room(forward_space_.in(memory), static_cast<std::size_t>(forward_space_.count));
      const Forward first = forward_call(memory);
      forward(first_call(first), forward_means(room));
    }
    Launches launches;
    const Starts starts = starts_.send(launches, memory, p_, {.queries = 1}, false, call_.cu_seqlens_q,
                                       call_.cu_seqlens_kv);
    std::vector<void*> sums(args_.captures.size());
    for (const Captured& one : captured_)
      for (const std::uint32_t slot : one.slots) sums[slot] = one.sums.in(memory);
    if (sums_.count > 0)
      launches.clear(reinterpret_cast<unsigned*>(sums_.in(memory)), static_cast<std::size_t>(2 * sums_.count));
    if (diagonals_.count > 0)
      launches.clear(reinterpret_cast<unsigned*>(diagonals_.in(memory)), static_cast<std::size_t>(diagonals_.count));
    std::erase(sums, nullptr);
    BackwardArgs common = arguments(memory, starts);
    if (counters_.count > 0) {
      common.odd = counters_.in(memory);
      launches.clear(common.odd, static_cast<std::size_t>(counters_.count));
    }
    if (const std::int64_t blocks = rows() == 0 ? 0 : row_blocks(); blocks > 0)
      launches.launch({.kernel = rows_kernel_.get(),
                       .grid = {static_cast<unsigned>(blocks), 1, 1},
                       .threads = rows_threads,
                       .arguments = &common});
    if (whole_.kernel) {
      put_whole(launches, common, memory, starts);
      if (whole_.kernel->spread) sums.push_back(diagonals_.in(memory));
    }
    if (queries_.kernel) {
      const QueryTiles tiles({.queries = queries_.plan().m}, p_);
      queries_.put(launches, memory, common, call_, p_, starts,
                   section_of(tiles, p_, device_.l2_bytes, element_bytes()), tiles.count);
    }
    if (keys_.kernel) {
      const std::int64_t sets = p_.kv_heads * (p_.kv_shared ? 1 : p_.batch);
      keys_.put(launches, memory, common, call_, p_, starts, static_cast<int>(keys_section(sets)),
                sets * ceil_div(p_.kv.length, keys_.plan().n));
    }
    for (const Walker* one : {&queries_, &keys_})
      if (one->kernel && one->kernel->repair) {
        put_repair(launches, *one->kernel->repair, common);
        break;
      }
    // A kernel that does all without diagonals has no sums: of the gradients asked for, it takes those of 0 alone.
    const bool has_sums = !whole_.kernel || whole_.kernel->spread;
    std::vector<std::byte> user = user_bytes(has_sums ? std::span<void* const>(sums) : std::span<void* const>());
    launches.put(stream, user);
    for (const Captured& one : captured_) {
      SumsArgs store = store_of(one, memory);
      Launches last;
      last.launch({.kernel = sums_kernel_.get(),
                   .grid = {static_cast<unsigned>(ceil_div(one.into->size(), sums_threads)), 1, 1},
                   .threads = sums_threads,
                   .arguments = &store});
      last.put(stream, {});
    }
  }

 private:
  /// Compiles and loads what the first call of its kind needs, on several threads: a kernel takes seconds.
  void load_at_once(const BackwardWants& wants, const codegen::Wanted& wanted, bool may_be_whole) const {
    const auto stream = static_cast<cu::Stream>(means_.stream);
    // Refused below; and what is found in a bundle takes no time.
    if (capturing(stream) || !objects().jit()) return;
    const codegen::KernelSpec spec = codegen::backward_spec(wants.spec);
    const auto parts_of = [&](bool keeps_keys) {
      return codegen::gpu_parts(lowered_, spec.scale_positive, &wanted, keeps_keys);
    };
    const codegen::GpuParts parts = parts_of(false);
    const bool of_o = parts.gradient->delta_of_o;
    std::vector<std::function<void()>> loads;
    const auto walker = [&](Way way, bool listed) {
      loads.emplace_back(
          [&, way] { loaded_kernel(key_of(way, device_, of_, wants, means_, wanted), lowered_, stream, of_.purpose); });
      if (listed)
        loads.emplace_back([&, way] {
          binary_of(cover_page(lowered_, spec.wide, spec.arch, codegen::cover_form(way)),
                    {.mod = &lowered_.mod, .kernel = "cover", .arch = spec.arch, .purpose = of_.purpose});
        });
    };
    const bool has_captured = !captured_.empty();
    if (may_be_whole && codegen::ways_of_backward(spec, parts.facts).front() == Way::backward) {
      walker(Way::backward, parts.facts.listed);
    } else {
      if (call_.dk.given() || call_.dv.given() || has_captured) walker(Way::keys, parts_of(true).facts.listed);
      if (call_.dq.given() || has_captured || !of_o) walker(Way::queries, parts.facts.listed);
    }
    if (!call_.o.given() && rows() > 0)
      loads.emplace_back([&] {
        const Forward first = forward_call(nullptr);
        forward_workspace(first_call(first), forward_means({}));
      });
    loads.emplace_back(
        [&] { loaded_rows(device_.index, codegen::rows_spec(wants.spec, of_o), lowered_.mod, stream, of_.purpose); });
    if (has_captured)
      loads.emplace_back([&] { loaded_sums(device_.index, device_.arch(), lowered_.mod, stream, of_.purpose); });
    const Current here(device_.index);
    std::atomic<std::size_t> next = 0;
    on_threads(std::min(loads.size(), static_cast<std::size_t>(usable_cpus())), [&] {
      const Telling telling;
      const Current current(here.context());
      for (std::size_t i; (i = next++) < loads.size();) loads[i]();
    });
  }

  bool walks() const { return whole_.kernel || queries_.kernel || keys_.kernel; }
  std::vector<std::byte> user_bytes(std::span<void* const> sums) const {
    return codegen::user_bytes(lowered_.mod, args_.captures, args_.params, static_cast<float>(p_.scale),
                               codegen::reach_far(args_.captures), sums);
  }
  /// For one kernel that does all: sets of heads, and places for their tiles as BackwardArgs has them.
  std::int64_t sets_of_q() const { return p_.q_heads * (p_.q.packed() ? 1 : p_.batch); }
  std::int64_t sets_of_kv() const { return p_.kv_heads * (p_.kv_shared || p_.kv.packed() ? 1 : p_.batch); }
  std::int64_t places(const compiler::Positions& of, int positions) const {
    return of.packed() ? packed_places(of.total, p_.batch, positions) : ceil_div(of.length, positions);
  }
  std::int64_t q_places() const { return places(p_.q, whole_.plan().m); }

  /// One kernel adds dq up in memory, a tile of keys after another; another one makes dq of the sums.
  void put_whole(Launches& launches, BackwardArgs& args, std::byte* memory, const Starts& starts) {
    const codegen::KernelChoice& choice = whole_.kernel->choice;
    const std::int64_t q_tiles = sets_of_q() * q_places(), kv_places = places(p_.kv, choice.plan.n),
                       sets = sets_of_kv();
    if (std::max(q_tiles, sets * kv_places) > std::numeric_limits<int>::max())
      throw Error("too-long", "the call has too many tiles for one launch", {},
                  fmt::format("they are {}, and there may be fewer than 2^31", std::max(q_tiles, sets * kv_places)),
                  "split the call");
    unsigned* const counters = counters_.in(memory);
    put_maps(args, call_, choice.boxes);
    args.sums = added_.in(memory);
    args.next = counters + 1;
    args.visited = counters + 2;
    args.turns = counters + 3;
    args.q_places = static_cast<int>(q_places());
    args.kv_places = static_cast<int>(kv_places);
    // From here on each kernel starts as the one before it drains.
    whole_.put_lists(launches, memory, args, p_, starts, true);
    // Blocks take items of one set some 2 us apart, which is what a tile of queries needs to pass from one to the next,
    // if so many items start between two of them. The kernel's page in docs/kernels has what other numbers gave; bits
    // depend on them.
    const bool masked = !ir::is_literal(lowered_.cover.may_drop, 0);
    const std::int64_t apart = choice.plan.m == 64 ? 128 : masked ? 512 : 256;
    args.section = static_cast<int>(
        std::max<std::int64_t>(1, apart / std::max<std::int64_t>(1, ceil_div(p_.kv.length, choice.plan.n))));
    const std::int64_t most = means_.blocks ? std::min(means_.blocks, device_.sms) : device_.sms;
    launches.launch({.kernel = &whole_.kernel->kernel,
                     .grid = {static_cast<unsigned>(std::min(sets * kv_places, most)), 1, 1},
                     .threads = choice.threads,
                     .shared_bytes = choice.shared_bytes,
                     .arguments = &args,
                     .early = true});
    const std::int64_t tiles = ceil_div(p_.q.length, choice.plan.m);
    if (call_.dq.given())
      launches.launch(
          {.kernel = whole_.kernel->end.get(),
           .grid = {static_cast<unsigned>(tiles), static_cast<unsigned>(p_.q_heads), static_cast<unsigned>(p_.batch)},
           .threads = 256,
           .arguments = &args,
           .early = true});
    if (whole_.kernel->repair) put_repair(launches, *whole_.kernel->repair, args, true);
    if (whole_.kernel->spread) put_spread(launches, args);
  }

  /// As cuda/spread_diagonals.cuh has them.
  std::int64_t diagonals() const {
    if (!whole_.kernel->spread) return 0;
    const codegen::KernelPlan& plan = whole_.plan();
    return sets_of_q() * places(p_.kv, plan.n) * (round_up(p_.q.length, plan.m) + plan.n);
  }
  void put_spread(Launches& launches, BackwardArgs& args) const {
    launches.launch({.kernel = whole_.kernel->spread.get(),
                     .grid = {static_cast<unsigned>(ceil_div(p_.q.length + p_.kv.length + 3, 4 * diagonals_threads)),
                              static_cast<unsigned>(p_.q_heads), static_cast<unsigned>(p_.batch)},
                     .threads = diagonals_threads,
                     .arguments = &args,
                     .early = true});
  }

  /// Its blocks end at once unless a kernel before it has set args.odd.
  void put_repair(Launches& launches, const Kernel& kernel, BackwardArgs& args, bool early = false) const {
    launches.launch({.kernel = &kernel,
                     .grid = {static_cast<unsigned>(4 * device_.sms), 2, 1},
                     .threads = 128,
                     .arguments = &args,
                     .early = early});
  }

  /// Rows of all heads.
  std::int64_t rows() const { return p_.q_heads * (p_.q.packed() ? p_.q.total : p_.batch * p_.q.length); }
  std::int64_t row_blocks() const { return p_.q_heads * p_.batch * ceil_div(p_.q.length, rows_of_block); }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(size_of(call_.q.dtype)); }
  /// Key heads whose queries together fill half of the cache.
  std::int64_t keys_section(std::int64_t sets) const {
    const std::int64_t queries = p_.q.packed() ? p_.q.total : p_.q.length;
    const std::int64_t head = std::max<std::int64_t>(queries * p_.group * (p_.d + p_.dv) * element_bytes(), 1);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(device_.l2_bytes) / 2 / head, 1,
                                    std::max<std::int64_t>(sets, 1));
  }

  /// The forward, into the workspace; with `memory` null, to ask what it needs.
  Forward forward_call(std::byte* memory) const {
    return first_forward(of_, own_o_.in(memory), own_lse_.in(memory), own_max_.in(memory));
  }
  Call first_call(const Forward& first) const {
    return {.mod = lowered_,
            .args = args_,
            .problem = p_,
            .what = first,
            .exact = of_.exact,
            .purpose = of_.purpose ? of_.purpose->of_forward : nullptr,
            .whole = of_.whole};
  }
  Means forward_means(std::span<std::byte> workspace) const {
    return {.workspace = workspace, .stream = means_.stream};
  }

  BackwardArgs arguments(std::byte* memory, const Starts& starts) const {
    BackwardArgs args{};
    args.q = strided(call_.q, p_.q.layout);
    args.k = strided(call_.k, p_.kv.layout);
    args.v = strided(call_.v, p_.kv.layout);
    const Forward first = call_.o.given() ? Forward{.o = call_.o, .lse = call_.lse} : forward_call(memory);
    args.o = strided(first.o, p_.q.layout);
    args.grad_o = strided(call_.grad_o, p_.q.layout);
    args.lse = cuda::rows(first.lse, p_.q.layout);
    args.grad_lse = cuda::rows(call_.grad_lse, p_.q.layout);
    args.delta = cuda::rows(rows_of(call_, p_, delta_.in(memory)), p_.q.layout);
    args.grad_q = gradient(call_.dq, p_.q.layout);
    args.grad_k = gradient(call_.dk, p_.kv.layout);
    args.grad_v = gradient(call_.dv, p_.kv.layout);
    args.scale = static_cast<float>(p_.scale);
    args.batch = static_cast<int>(p_.batch);
    args.q_heads = static_cast<int>(p_.q_heads);
    args.group = static_cast<int>(p_.group);
    args.q_len = static_cast<int>(p_.q.length);
    args.kv_len = static_cast<int>(p_.kv.length);
    args.q_offset = p_.q_offset;
    args.kv_shared = p_.kv_shared;
    args.kv_heads = static_cast<int>(p_.kv_heads);
    args.d = static_cast<int>(p_.d);
    args.dv = static_cast<int>(p_.dv);
    args.q_starts = starts.q;
    args.kv_starts = starts.kv;
    return args;
  }

  static SumsArgs store_of(const Captured& one, std::byte* memory) {
    const Tensor& to = *one.into;
    SumsArgs out{.sums = one.sums.in(memory),
                 .to = to.data,
                 .type = stored(to.dtype),
                 .count = to.size(),
                 .extent = {1, 1, 1, 1},
                 .stride = {}};
    for (int d = 0; d < to.rank; ++d) {
      const int last = SumsArgs::most_rank - to.rank + d;
      out.extent[last] = to.shape[static_cast<std::size_t>(d)];
      out.stride[last] = to.strides[static_cast<std::size_t>(d)];
    }
    return out;
  }

  const Call& of_;
  const LoweredMod& lowered_;
  const Args& args_;
  const Backward& call_;
  const Problem& p_;
  const Means& means_;
  const Facts& device_;
  std::vector<Captured> captured_;
  WorkspaceLayout space_;
  StartsRoom starts_;
  Walker whole_;           ///< where one kernel does all
  Walker queries_, keys_;  ///< else
  std::shared_ptr<const Kernel> rows_kernel_, sums_kernel_;
  Room<unsigned long long> sums_;  ///< of all captured tensors
  Room<float> diagonals_;          ///< sums along diagonals, where one kernel does all
  Room<float> added_;              ///< sums of dq, where one kernel does all
  Room<unsigned>
      counters_;  ///< of any kernel whether a result is odd; of one that does all its next item, its visits, its turns
  Room<float> delta_;
  Room<std::byte> own_o_;  ///< the forward's results, where the call has none
  Room<float> own_lse_, own_max_;
  Room<std::byte> forward_space_;
};

}  // namespace attune::runtime::cuda
