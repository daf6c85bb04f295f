// runtime/platform/emulated/together.cpp — the collective operations of a warp, of a block and of a cluster
#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "runtime/platform/emulated/runner.h"

namespace attune::runtime::emulated {
namespace {

void carry_out(Runner& runner, Warp& warp, std::size_t nth, const Lane* but) {
  const Meeting meeting = warp.meetings[nth];
  warp.meetings.erase(warp.meetings.begin() + static_cast<std::ptrdiff_t>(nth));
  meeting.run(meeting.parts.data(), meeting.here);
  // Only such a meeting tells lanes of each other's memory accesses.
  if (meeting.orders) {
    tick(warp);
    for (unsigned rest = meeting.here; rest; rest &= rest - 1)
      hear(*warp.lanes[static_cast<std::size_t>(std::countr_zero(rest))], {});
  }
  for (unsigned rest = meeting.here; rest; rest &= rest - 1) {
    Lane& lane = *warp.lanes[static_cast<std::size_t>(std::countr_zero(rest))];
    if (&lane != but) runner.wake(lane);
  }
}

bool is_syncwarp(std::string_view what) { return what == "__syncwarp"; }

void together(unsigned mask, const char* what, Together* run, void* mine, Site at) {
  Runner& runner = *running;
  Lane& lane = runner.lane();
  Warp& warp = *lane.warp;
  const unsigned bit = 1u << lane.lane;
  if (!(mask & bit)) runner.fail(fmt::format("{} of lanes {:#x}, of which it is none", what, mask), at);
  auto found = std::ranges::find(warp.meetings, mask, &Meeting::mask);
  if (found == warp.meetings.end()) {
    warp.meetings.push_back({.mask = mask, .what = what, .run = run, .at = at, .orders = is_syncwarp(what)});
    found = warp.meetings.end() - 1;
  } else if (found->run != run || found->at.line != at.line) {
    // Two copies of one place in the source, e.g. from an unrolled loop, count as one place.
    runner.fail(fmt::format("lanes of a warp part: this one is at {}, and another one at {} at {}:{}", what,
                            found->what, found->at.file, found->at.line),
                at);
  }
  found->here |= bit;
  found->parts[static_cast<std::size_t>(lane.lane)] = mine;
  if ((mask & warp.live & ~found->here) == 0)
    return carry_out(runner, warp, static_cast<std::size_t>(found - warp.meetings.begin()), &lane);
  runner.wait(what, at);
}

// ---- a block --------------------------------------------------------------------------------------------------------

void pass(Runner& runner, NamedBarrier& barrier, Lane* but) {
  for (Lane* one : barrier.waiting) {
    one->votes = barrier.votes;
    hear(*one, barrier.known);
    if (one != but) runner.wake(*one);
  }
  barrier = {};
}

int meet(int id, int threads, bool waits, bool yes, Site at) {
  Runner& runner = *running;
  Lane& lane = runner.lane();
  Block& block = runner.block();
  if (id < 0 || id >= static_cast<int>(block.barriers.size()))
    runner.fail(fmt::format("there is no barrier {}", id), at);
  NamedBarrier& barrier = block.barriers[static_cast<std::size_t>(id)];
  const bool all = threads == 0;
  if (all) threads = -1;
  if (!all && threads % 32 != 0)
    runner.fail(fmt::format("barrier {} of {} threads, no multiple of 32", id, threads), at);
  if (barrier.here > 0 && barrier.threads != threads)
    runner.fail(fmt::format("barrier {} of {} threads, which another one calls one of {} at {}:{}", id, threads,
                            barrier.threads, barrier.at.file, barrier.at.line),
                at);
  if (barrier.here == 0) {
    barrier.threads = threads;
    barrier.at = at;
  }
  barrier.known.hear(lane.warp->known);
  tick(*lane.warp);
  ++barrier.here;
  barrier.votes += yes;
  if (waits) barrier.waiting.push_back(&lane);
  if (barrier.here == (all ? block.live : threads)) {
    pass(runner, barrier, waits ? &lane : nullptr);
  } else if (waits) {
    runner.wait(all ? "__syncthreads" : "a named barrier", at);
  }
  return lane.votes;
}

// ---- a cluster ------------------------------------------------------------------------------------------------------

void meet_cluster(Site at) {
  Runner& runner = *running;
  Lane& lane = runner.lane();
  Cluster& cluster = *runner.block().cluster;
  // For a block's own memory: the threads now know the union of what they knew.
  for (const auto& warp : runner.block().warps)
    if (warp.get() != lane.warp) warp->known.hear(lane.warp->known);
  tick(*lane.warp);
  cluster.waiting.push_back(&lane);
  if (static_cast<int>(cluster.waiting.size()) < cluster.live) return runner.wait("the cluster", at);
  for (Lane* one : cluster.waiting)
    if (one != &lane) runner.wake(*one);
  cluster.waiting.clear();
}

unsigned address_in_cluster(unsigned mine, int nth, Site at) {
  Runner& runner = *running;
  const auto blocks = static_cast<int>(runner.block().cluster->blocks.size());
  if (nth < 0 || nth >= blocks) runner.fail(fmt::format("block {} of a cluster of {}", nth, blocks), at);
  return mine | static_cast<unsigned>(nth + 1) << 24;
}

void* cluster_shared(unsigned address, unsigned bytes, Site at) {
  Runner& runner = *running;
  const unsigned nth = address >> 24;
  Block& block = nth == 0 ? runner.block() : *runner.block().cluster->blocks.at(nth - 1);
  if (block.live == 0) runner.fail("it reads shared memory of a block that has ended", at);
  return shared_bytes(runner, block, address & 0xffffff, bytes, at);
}

}  // namespace

void lane_has_ended(Runner& runner, Warp& warp) {
  for (std::size_t i = 0; i < warp.meetings.size();)
    if (const Meeting& one = warp.meetings[i]; (one.mask & warp.live & ~one.here) == 0)
      carry_out(runner, warp, i, nullptr);
    else
      ++i;
  NamedBarrier& all = warp.block->barriers[0];
  if (all.here > 0 && all.threads == -1 && all.here == warp.block->live) pass(runner, all, nullptr);
  Cluster& cluster = *warp.block->cluster;
  if (!cluster.waiting.empty() && static_cast<int>(cluster.waiting.size()) == cluster.live) {
    for (Lane* one : cluster.waiting) runner.wake(*one);
    cluster.waiting.clear();
  }
}

void fill_in_threads(Machine& machine) {
  machine.together = &together;
  machine.meet = &meet;
  machine.meet_cluster = &meet_cluster;
  machine.leave = [] { running->end_lane(); };
  machine.let_others_run = [](const char* what, const void*, Site at) {
    running->lane().waits_for = what;
    running->lane().waits_at = at;
    running->let_others_run();
  };
  machine.address_in_cluster = &address_in_cluster;
  machine.cluster_shared = &cluster_shared;
  machine.let_next_start = [](Site) { running->let_next_start(); };
  machine.wait_for_kernel_before = [](Site) { running->wait_for_previous(); };
}

Machine& machine() {
  static Machine made = [] {
    Machine out{};
    fill_in_threads(out);
    fill_in_memory(out);
    fill_in_products(out);
    fill_in_copies(out);
    return out;
  }();
  return made;
}

}  // namespace attune::runtime::emulated
