// runtime/engines/cuda/launches.cpp — the work that a call enqueues on its stream: copies, cleared counters and
// kernels, in order
#include "runtime/engines/cuda/launches.h"

#include <algorithm>
#include <utility>

#include <attune/error.h>

#include "runtime/engines/cuda/lists.h"

namespace attune::runtime::cuda {
namespace {

using codegen::Companion;

cu::Address address(const void* p) { return reinterpret_cast<cu::Address>(p); }

void start(const Launch& one, cu::Stream stream, std::span<std::byte> user) {
  std::array<void*, 2> arguments{one.arguments, user.data()};
  std::array<cu::LaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (one.early) attributes[count++] = {.key = cu::LaunchAttributeKey::early, .value = {1}};
  if (one.cluster > 1)
    attributes[count++] = {.key = cu::LaunchAttributeKey::cluster, .value = {static_cast<int>(one.cluster), 1, 1}};
  const cu::LaunchConfig config{.grid = {one.grid[0], one.grid[1], one.grid[2]},
                                .block = {static_cast<unsigned>(one.threads), 1, 1},
                                .shared_bytes = static_cast<unsigned>(one.shared_bytes),
                                .stream = stream,
                                .attributes = attributes.data(),
                                .attribute_count = count};
  // The driver accepts a library's kernel where it expects a function.
  driver().cuLaunchKernelEx(&config, reinterpret_cast<cu::Function>(one.kernel->handle), arguments.data(), nullptr);
}

/// The companion's argument struct, or null if the call does not launch it.
void* arguments_of(const Companion& companion, const Walk& walk) {
  using enum Companion::For;
  if (companion.launched_for == shared_tiles && !walk.shares_tiles) return nullptr;
  if (companion.launched_for == dq && !walk.gives_dq) return nullptr;
  if (companion.launched_for == ds && !walk.sums_ds) return nullptr;
  switch (companion.args) {
    case Companion::Args::of_kernel: return walk.arguments;
    case Companion::Args::lists: return walk.cover;
    case Companion::Args::gather: return walk.gather;
    case Companion::Args::transpose: return walk.transpose;
    case Companion::Args::split: return walk.split;
    case Companion::Args::split_rows: return walk.split_rows;
    case Companion::Args::clear: return walk.clear;
    case Companion::Args::sums:
    case Companion::Args::append: return nullptr;
  }
  return nullptr;
}

Launch launch_of(const LoadedCompanion& one, const Walk& walk, void* arguments) {
  const Companion& what = *one.what;
  return {.kernel = &one.kernel,
          .grid = what.grid ? what.grid(walk.call) : codegen::Grid{1, 1, 1},
          .threads = what.threads,
          .arguments = arguments};
}

void put(Launches& launches, const Walk& walk, Companion::When when) {
  for (const LoadedCompanion& one : walk.kernel.companions) {
    const Companion& what = *one.what;
    void* const arguments = what.when == when ? arguments_of(what, walk) : nullptr;
    if (!arguments) continue;
    Launch launch = what.args == Companion::Args::lists ? cover_launch(one.kernel, *walk.lists, *walk.cover)
                                                        : launch_of(one, walk, arguments);
    launch.early = what.early;
    launches.launch(launch);
  }
}

}  // namespace

void Launches::refuse_more() { throw Bug("a call has more steps than Launches holds"); }

void Launches::send(int* to, std::vector<int> from) {
  if (!sent_.empty()) throw Bug("a call sends twice");
  sent_ = std::move(from);
  add({.of = Step::Of::send, .to = to});
}

void Launches::put(cu::Stream stream, std::span<std::byte> user) const {
  for (const Slot& slot : std::span(slots_).first(count_)) {
    const Step& step = slot.step;
    switch (step.of) {
      case Step::Of::send:
        driver().cuMemcpyAsync(address(step.to), address(sent_.data()), sent_.size() * sizeof(int), stream);
        break;
      case Step::Of::clear: driver().cuMemsetD32Async(address(step.to), 0, step.count, stream); break;
      case Step::Of::launch: start(step.launch, stream, user); break;
    }
  }
}

void put_kernel(Launches& launches, const Walk& walk) {
  put(launches, walk, Companion::When::before);
  if (walk.cleared) launches.clear(walk.cleared, walk.cleared_count);
  const codegen::KernelChoice& choice = walk.kernel.choice;
  launches.launch({.kernel = &walk.kernel.kernel,
                   .grid = {static_cast<unsigned>(walk.call.blocks), 1, 1},
                   .threads = choice.threads,
                   .shared_bytes = choice.shared_bytes,
                   .arguments = walk.arguments,
                   .cluster = walk.cluster,
                   .early = walk.early});
}

void put_companion(Launches& launches, const Walk& walk, const Companion& what) {
  const auto one = std::ranges::find(walk.kernel.companions, &what, &LoadedCompanion::what);
  if (one == walk.kernel.companions.end()) throw Bug("a kernel lacks a companion of its call");
  Launch launch = launch_of(*one, walk, walk.arguments);
  launch.early = what.early;
  launches.launch(launch);
}

void put_after(Launches& launches, const Walk& walk) { put(launches, walk, Companion::When::after); }

std::vector<std::byte> user_of(const Call& of, const LoadedKernel& kernel) {
  return codegen::user_bytes(of.mod.mod, of.args.captures, of.args.params, static_cast<float>(of.problem.scale),
                             kernel.choice.plan.spec.offsets64);
}

void put_call(Launches& launches, Walk& walk, const Call& of, std::span<std::byte> arguments, cu::Stream stream) {
  alignas(TensorMap) std::array<std::byte, codegen::most_own_args> own;
  walk.arguments = arguments.data();
  if (const codegen::OwnArgs* const its = walk.call.plan.kernel->own) {
    std::ranges::copy(arguments, own.begin());
    its->fill(own.data(), walk.call, walk.own);
    walk.arguments = own.data();
  }
  put_kernel(launches, walk);
  put_after(launches, walk);
  std::vector<std::byte> user = user_of(of, walk.kernel);
  launches.put(stream, user);
}

}  // namespace attune::runtime::cuda
