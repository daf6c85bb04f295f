// runtime/engines/cuda/walk.cpp — a kernel that walks pairs with its companions: the one loop over a call's launches
#include "runtime/engines/cuda/walk.h"

namespace attune::runtime::cuda {
namespace {

using codegen::Companion;

/// Its struct, or null where the call does not launch it.
void* arguments_of(const Companion& companion, const Walk& walk) {
  using enum Companion::For;
  if (companion.launched_for == shared_tiles && !walk.shares_tiles) return nullptr;
  if (companion.launched_for == dq && !walk.gives_dq) return nullptr;
  switch (companion.args) {
    case Companion::Args::of_kernel: return walk.arguments;
    case Companion::Args::lists: return walk.cover;
    case Companion::Args::transpose: return walk.transpose;
    case Companion::Args::clear: return walk.clear;
    case Companion::Args::sums:
    case Companion::Args::append: return nullptr;
  }
  return nullptr;
}

void put(Launches& launches, const Walk& walk, Companion::When when) {
  for (const LoadedCompanion& one : walk.kernel.companions) {
    const Companion& what = *one.what;
    void* const arguments = what.when == when ? arguments_of(what, walk) : nullptr;
    if (!arguments) continue;
    Launch launch = what.args == Companion::Args::lists
                        ? cover_launch(one.kernel, *walk.lists, *walk.cover)
                        : Launch{.kernel = &one.kernel,
                                 .grid = what.grid ? what.grid(walk.call) : codegen::Grid{1, 1, 1},
                                 .threads = what.threads,
                                 .arguments = arguments};
    launch.early = what.early;
    launches.launch(launch);
  }
}

}  // namespace

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

void put_after(Launches& launches, const Walk& walk) { put(launches, walk, Companion::When::after); }

}  // namespace attune::runtime::cuda
