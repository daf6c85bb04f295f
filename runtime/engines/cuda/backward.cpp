// runtime/engines/cuda/backward.cpp — a backward on a device: its kernels, its memory, its launches
#include "runtime/engines/cuda/backward.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/reads.h"
#include "runtime/engines/cuda/platform.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/options.h"
#include "runtime/machine/purpose.h"
#include "runtime/machine/threads.h"

namespace attune::runtime::cuda {
namespace {

using codegen::Companion, codegen::Way;

/// The most words that a table of visits may have, half a GB, and the most sums along diagonals, 4 GB.
constexpr std::int64_t most_visits = std::int64_t{1} << 27, most_diagonals = std::int64_t{1} << 30;

template <class T>
void clear_words(Launches& launches, const Region<T>& region, std::byte* memory) {
  constexpr std::size_t words = sizeof(T) / sizeof(unsigned);
  if (region.count > 0)
    launches.clear(reinterpret_cast<unsigned*>(region.in(memory)), words * static_cast<std::size_t>(region.count));
}

}  // namespace

BackwardWalk::BackwardWalk(const KernelKey& key, const Call& of, const Means& means)
    : kernel(loaded_kernel(key, of.mod, static_cast<cu::Stream>(means.stream), of.purpose)) {
  if (kernel->writes_lists()) lists = CoverLists(plan(), of.mod.cover, of.problem, codegen::cover_form(key.way));
}

bool BackwardWalk::can() const {
  return kernel && plan().kernel &&
         (lists.what != CoverForm::visits || (lists.ints() <= most_visits && lists.rows <= Visit::most_tiles));
}

void BackwardWalk::put(Launches& launches, Walk& walk, std::byte* memory, const Starts& starts) {
  if (walk.call.blocks == 0) return;
  if (kernel->writes_lists() && lists.rows > 0 && lists.blocks > 0) {
    lists.at = region.in(memory);
    cover = cover_arguments(lists, entries_of(walk.call.problem, starts.q, starts.kv), nullptr);
    cover.visited = arguments.visited;
    walk.lists = &lists;
    walk.cover = &cover;
  }
  lists.put(arguments);
  walk.arguments = &arguments;
  put_kernel(launches, walk);
}

BackwardRun::BackwardRun(const Facts& device, const Call& of, const Means& means)
    : of_(of), call_(of.backward()), p_(of.problem), means_(means), device_(device),
      captured_(captured_of(of.args, call_)), starts_(space_, p_, QueryTiles({.queries = 1}, p_)) {
  const auto stream = static_cast<cu::Stream>(means.stream);
  const codegen::CallSpec asked = backward_call_spec(device, of, captured_);
  choose(asked);
  if (!walks()) return;
  if (captured_.size() > (stores_ds() ? 1 : 0))
    sums_kernel_ = loaded_plain(device.index, codegen::captured_sums.name, {.arch = device.arch()}, stream, &of.mod.mod,
                                of.purpose);
  const codegen::RowsSpec rows_spec = codegen::rows_spec(asked.spec, walkers().front()->delta_of_o);
  rows_kernel_ = loaded_plain(device.index, codegen::delta_rows.name, rows_spec, stream, &of.mod.mod, of.purpose);
  delta_ = space_.take<float>(rows());
  if (!call_.o.given()) take_results();
}

void BackwardRun::take_sums() {
  std::int64_t words = 0;
  const auto count = [&](const Captured& one) { return &one == dense_.of ? 0 : one.into->size() * exact_words; };
  for (const Captured& one : captured_) words += count(one);
  sums_ = space_.take<unsigned long long>(words);
  std::size_t next = sums_.offset;
  for (Captured& one : captured_) {
    one.sums = {next, count(one)};
    next += static_cast<std::size_t>(one.sums.count) * sizeof(unsigned long long);
  }
}

void BackwardRun::choose(const codegen::CallSpec& asked) {
  if (!asks_keys() && !asks_queries()) return;
  const auto key = [&](Way way) { return backward_key(way, device_, of_, asked, means_); };
  // The requested kernel may be a kernel for one part of the backward.
  const bool may_be_whole = !means_.preference || codegen::takes(*means_.preference, Way::backward);
  if (!is_loaded(key(may_be_whole ? Way::backward : asks_keys() ? Way::keys : Way::queries)))
    load_at_once(asked, may_be_whole);
  if (may_be_whole) whole_ = BackwardWalk(key(Way::backward), of_, means_);
  if (!whole_.can() || diagonals() > most_diagonals || !plan_ds()) return choose_parts(asked);
  take_sums();
  space_.align(128);  // whole lines of the L2 cache, which a kernel may discard
  added_ = space_.take<float>(q_tiles() * whole_.kernel->choice.sums);
  counters_ = space_.take<unsigned>(next_items_of_further() + (stores_ds() ? first_tile() / dense_.tiles : 0));
  diagonals_ = space_.take<float>(diagonals());
  if (stores_ds() && !dense_.is_ds) ds_ = space_.take<unsigned short>(ds_tensor(nullptr).size());
  whole_.take(space_);
}

void BackwardRun::choose_parts(const codegen::CallSpec& asked) {
  if (means_.preference && whole_.kernel && !codegen::takes(*means_.preference, Way::queries))
    throw Error(
        "bad-kernel", "the requested kernel does not support this call", {.name = means_.preference->variant.text()},
        whole_.plan().kernel ? "its table of tiles to visit, or its sums along diagonals, would be too large, or a "
                               "gradient has another shape than the pairs"
                             : whole_.kernel->story.front(),
        "name another, or leave the choice to attune");
  whole_ = {};
  take_sums();
  const auto chosen = [&](Way way) {
    BackwardWalk out(backward_key(way, device_, of_, asked, means_), of_, means_);
    out.take(space_);
    return out;
  };
  if (asks_keys()) keys_ = chosen(Way::keys);
  // If deltas are not products with o, the kernel of the queries also sums them for the kernel of the keys.
  if (asks_queries() || !keys_.kernel->delta_of_o) queries_ = chosen(Way::queries);
  take_split();
  for (const BackwardWalk* one : {&queries_, &keys_})
    if (counters_.count == 0 && one->kernel && one->kernel->has(codegen::repair_part))
      counters_ = space_.take<unsigned>(1);
}

void BackwardRun::take_results() {
  own_o_ = space_.take<std::byte>(rows() * p_.dv * static_cast<std::int64_t>(sizeof(float)));
  own_lse_ = space_.take<float>(rows());
  own_max_ = space_.take<float>(rows());
  const Forward first = forward_call(nullptr);
  forward_space_ = space_.take<std::byte>(
      rows() > 0 ? static_cast<std::int64_t>(forward_workspace(first_call(first), forward_means({}))) : 0);
}

std::vector<Held<LoadedKernel>> BackwardRun::walkers() const {
  std::vector<Held<LoadedKernel>> out;
  for (const BackwardWalk* one : {&whole_, &queries_, &keys_})
    if (one->kernel) out.push_back(one->kernel);
  return out;
}

void BackwardRun::put(std::byte* memory) {
  if (!walks()) return;
  const auto stream = static_cast<cu::Stream>(means_.stream);
  starts_.require_no_capture(stream);
  if (!call_.o.given() && rows() > 0) {
    const std::span<std::byte> region(forward_space_.in(memory), static_cast<std::size_t>(forward_space_.count));
    const Forward first = forward_call(memory);
    forward(first_call(first), forward_means(region));
  }
  for (const BackwardWalk* one : {&whole_, &queries_, &keys_})
    if (one->kernel) one->kernel->used_on(stream);
  Launches launches;
  const Starts starts = starts_.send(launches, memory, p_, {.queries = 1}, false, call_.cu_seqlens_q,
                                     call_.cu_seqlens_kv);
  clear_words(launches, sums_, memory);
  clear_words(launches, diagonals_, memory);
  clear_words(launches, counters_, memory);
  // In any order, no tile of keys is the first, which would overwrite the sums.
  if (whole_.kernel && whole_.plan().variant.of("ordered") == 0) clear_words(launches, added_, memory);
  if (stores_ds() && dense_.cleared) clear_ds(launches, memory);
  // The arguments of the whole-backward kernel, if there is one; otherwise the arguments that the other kernels share.
  BackwardArgs& common = whole_.arguments;
  common = args_of_call(memory, starts);
  if (whole_.kernel) fill_whole(common, memory);
  const codegen::KernelPlan& plan = walkers().front()->choice.plan;
  if (const codegen::Grid grid = codegen::delta_rows.grid({.problem = p_, .plan = plan}); rows() > 0 && grid[0] > 0)
    launches.launch(
        {.kernel = rows_kernel_.get(), .grid = grid, .threads = codegen::delta_rows.threads, .arguments = &common});
  put_walks(launches, memory, starts);
  std::vector<std::byte> user = user_bytes(memory, first_tile());
  launches.put(stream, user);
  if (first_tile() > 0) put_other_keys(memory);
  put_sums(memory);
}

void BackwardRun::put_walks(Launches& launches, std::byte* memory, const Starts& starts) {
  if (whole_.kernel) {
    Walk walk = walk_whole();
    whole_.put(launches, walk, memory, starts);
    if (first_tile() > 0) return put_companion(launches, walk, codegen::sum_ds);
    return put_after(launches, walk);
  }
  split_rows_ = split_args(memory);
  if (queries_.kernel) {
    Walk walk = walk_queries();
    if (splits(queries_)) walk.split_rows = &split_rows_;
    queries_.put(launches, walk, memory, starts);
  }
  if (keys_.kernel) {
    Walk walk = walk_keys();
    // The kernel of the queries may have had them split already.
    if (splits(keys_) && !splits(queries_)) walk.split_rows = &split_rows_;
    keys_.put(launches, walk, memory, starts);
  }
  // The results of both kernels are repaired once, with the arguments that they share.
  for (const BackwardWalk* one : {&queries_, &keys_})
    if (one->kernel && one->kernel->has(codegen::repair_part)) {
      Walk walk = walk_of(*one, 0);
      walk.arguments = &whole_.arguments;
      return put_after(launches, walk);
    }
}

std::vector<std::byte> BackwardRun::user_bytes(std::byte* memory, std::int64_t first_tile) const {
  const compiler::Args& args = of_.args;
  // By slot, as in codegen::source_sums(): of each tensor whose gradient is asked for and is not made of stored dS.
  std::vector<std::optional<void*>> of_slots(args.captures.size());
  for (const Captured& one : captured_)
    for (const std::uint32_t slot : one.slots) of_slots[slot] = one.sums.in(memory);
  if (stores_ds()) of_slots[dense_.slot].reset();
  std::vector<void*> sums;
  for (const std::optional<void*>& one : of_slots)
    if (one) sums.push_back(*one);
  if (whole_.kernel && whole_.kernel->has(codegen::spread_diagonals)) sums.push_back(diagonals_.in(memory));
  const std::optional<StoredDs> ds = stores_ds() ? std::optional(stored_ds(memory, first_tile)) : std::nullopt;
  return codegen::user_bytes(of_.mod.mod, args.captures, args.params, static_cast<float>(p_.scale),
                             codegen::reach_far(args.captures), sums, ds ? &*ds : nullptr);
}

void BackwardRun::put_sums(std::byte* memory) const {
  for (const Captured& one : captured_) {
    if (&one == dense_.of) continue;
    SumsArgs store = sums_args(one, memory);
    const int threads = codegen::captured_sums.threads;
    Launches last;
    last.launch({.kernel = sums_kernel_.get(),
                 .grid = {static_cast<unsigned>(ceil_div(one.into->size(), threads)), 1, 1},
                 .threads = threads,
                 .arguments = &store});
    last.put(static_cast<cu::Stream>(means_.stream), {});
  }
}

Call BackwardRun::first_call(const Forward& first) const {
  return {.mod = of_.mod,
          .args = of_.args,
          .problem = p_,
          .what = first,
          .exact = of_.exact,
          .purpose = of_.purpose ? of_.purpose->of_forward : nullptr,
          .whole = of_.whole};
}

void BackwardRun::load_at_once(const codegen::CallSpec& asked, bool may_be_whole) const {
  const auto stream = static_cast<cu::Stream>(means_.stream);
  // A capture is refused below, and with compiling off everything comes from bundles, which takes no time.
  if (capturing(stream) || !objects().jit()) return;
  const codegen::KernelSpec spec = codegen::backward_spec(asked.spec);
  const codegen::GpuParts parts = codegen::gpu_parts(of_.mod, spec.scale_positive, &*asked.backward, false);
  const bool of_o = parts.gradient->delta_of_o;
  std::vector<std::function<void()>> loads;
  const auto walker = [&](Way way) {
    loads.emplace_back(
        [&, way] { loaded_kernel(backward_key(way, device_, of_, asked, means_), of_.mod, stream, of_.purpose); });
  };
  if (may_be_whole && codegen::ways_of_backward(spec, parts.facts).front() == Way::backward) {
    walker(Way::backward);
  } else {
    if (asks_keys()) walker(Way::keys);
    if (asks_queries() || !of_o) walker(Way::queries);
  }
  if (!call_.o.given() && rows() > 0)
    loads.emplace_back([&] {
      const Forward first = forward_call(nullptr);
      forward_workspace(first_call(first), forward_means({}));
    });
  loads.emplace_back([&] {
    loaded_plain(device_.index, codegen::delta_rows.name, codegen::rows_spec(asked.spec, of_o), stream, &of_.mod.mod,
                 of_.purpose);
  });
  const bool stores = may_be_whole && parts.gradient->ds;
  if (captured_.size() > (stores ? 1 : 0))
    loads.emplace_back([&] {
      loaded_plain(device_.index, codegen::captured_sums.name, {.arch = device_.arch()}, stream, &of_.mod.mod,
                   of_.purpose);
    });
  const Current here(device_.index);
  std::atomic<std::size_t> next = 0;
  on_threads(std::min(loads.size(), static_cast<std::size_t>(usable_cpus())), [&, own = platform_of_thread()] {
    const OnPlatform same(own);
    const Recording recording;
    const Current current(here.context());
    for (std::size_t i; (i = next++) < loads.size();) loads[i]();
  });
}

}  // namespace attune::runtime::cuda
