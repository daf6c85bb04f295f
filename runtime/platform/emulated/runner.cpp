// runtime/platform/emulated/runner.cpp — the scheduler of a launch: decides which thread runs next
#include "runtime/platform/emulated/runner.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/mutex.h"
#include "runtime/platform/emulated/emulated.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace attune::runtime::emulated {

Runner* running = nullptr;

namespace {

constexpr std::size_t lanes_of_warp = 32;
/// The number of times that all runnable threads may poll before the previous kernel ends.
constexpr std::size_t most_beside_previous = 1000;
/// The number of times that all runnable threads may poll without any change, before the launch counts as hung.
constexpr std::size_t most_quiet = 1000000;

Stacks& stacks() {
  static auto& made = *new Stacks;
  return made;
}

/// While this object lives, denormal numbers count as 0, as the kernels' options want it.
class Flushed {
 public:
#if defined(__SSE__)
  Flushed() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~Flushed() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

std::string place_of(Site at) { return *at.file ? fmt::format("{}:{}", at.file, at.line) : "its end"; }

Mutex doubts_mutex;
std::vector<std::string> doubts;  ///< the first of them

std::string name_of(const Lane& lane) {
  return fmt::format("thread {} of block ({}, {}, {})", lane.index.x, lane.block.x, lane.block.y, lane.block.z);
}

}  // namespace

void on_fiber() {
  Runner& runner = *running;
  runner.launch_.kernel->run(runner.launch_.arguments);
  runner.end_lane();
}

Runner::Runner(const LaunchOf& launch)
    : launch_(launch), dice_(launch.seed * 0x9e3779b97f4a7c15ull + 1), mode_(static_cast<unsigned>(dice_() % 4)),
      previous_ended_(!launch.end_previous) {
  running = this;
  *launch.kernel->machine = &machine();
}

Runner::~Runner() {
  for (const auto& cluster : clusters_)
    for (const auto& block : cluster->blocks)
      for (const auto& warp : block->warps)
        for (const auto& lane : warp->lanes)
          if (lane->stack) stacks().give_back(lane->stack);
  machine().now = nullptr;
  running = nullptr;
}

void Runner::begin_block(Cluster& cluster, unsigned nth) {
  // What follows may throw: ~Runner() gives back the stacks of all blocks that clusters have.
  Block* const block = cluster.blocks.emplace_back(std::make_unique<Block>()).get();
  const Extent& grid = launch_.blocks;
  block->cluster = &cluster;
  block->rank = static_cast<int>(cluster.blocks.size()) - 1;
  block->index = {nth % grid.x, nth / grid.x % grid.y, nth / grid.x / grid.y};
  block->dynamic_end = block->end = first_shared + launch_.shared_bytes;
  block->memory.assign(block->dynamic_end + room_for_variables, unknown_byte);
  block->shadow = std::make_unique<Shadow>(block->memory.size());
  block->live = launch_.threads;
  for (int first = 0; first < launch_.threads; first += static_cast<int>(lanes_of_warp)) {
    Warp* const warp = block->warps.emplace_back(std::make_unique<Warp>()).get();
    warp->block = block;
    warp->index = first / static_cast<int>(lanes_of_warp);
    for (int i = 0; i < static_cast<int>(lanes_of_warp) && first + i < launch_.threads; ++i) {
      Lane* const lane = warp->lanes.emplace_back(std::make_unique<Lane>()).get();
      lane->thread() = {{static_cast<unsigned>(first + i), 0, 0},
                        block->index,
                        {static_cast<unsigned>(launch_.threads), 1, 1},
                        grid,
                        i};
      lane->warp = warp;
      lane->stack = stacks().take();
      lane->fiber = new_fiber(lane->stack, &on_fiber);
      warp->live |= 1u << i;
    }
    warp->ready = warp->live;
    tick(*warp);
    list(*warp);
  }
  cluster.live += launch_.threads;
}

void Runner::begin_cluster(unsigned nth) {
  Cluster& cluster = *clusters_.emplace_back(std::make_unique<Cluster>());
  for (unsigned i = 0; i < static_cast<unsigned>(launch_.cluster); ++i)
    begin_block(cluster, nth * static_cast<unsigned>(launch_.cluster) + i);
}

void Runner::list(Warp& warp) {
  if (warp.listed) return;
  warp.listed = true;
  ready_.push_back(&warp);
}

void Runner::wake(Lane& lane) {
  lane.warp->ready |= 1u << lane.lane;
  quiet_ = 0;
  list(*lane.warp);
}

/// A thread that can run; null if there is none.
Lane* Runner::next() {
  while (!ready_.empty()) {
    std::size_t i = 0;
    // Lanes of the running warp go first, so that a warp's lanes stay together as long as nothing separates them.
    if (now_ && now_->warp->ready && mode_ != 3) {
      Warp& warp = *now_->warp;
      const int lane = std::countr_zero(warp.ready);
      warp.ready &= warp.ready - 1;
      return warp.lanes[static_cast<std::size_t>(lane)].get();
    }
    switch (mode_) {
      case 1: i = 0; break;
      case 2: i = ready_.size() - 1; break;
      default: i = below(ready_.size());
    }
    Warp& warp = *ready_[i];
    if (!warp.ready) {
      warp.listed = false;
      ready_[i] = ready_.back();
      ready_.pop_back();
      continue;
    }
    const int lane = std::countr_zero(warp.ready);
    warp.ready &= warp.ready - 1;
    return warp.lanes[static_cast<std::size_t>(lane)].get();
  }
  return nullptr;
}

void Runner::go(Lane& to) {
  if (now_ == &to) return;
  Fiber& from = now_ ? now_->fiber : main_;
  now_ = &to;
  machine().now = &to.thread();
  switch_fibers(from, to.fiber);
}

void Runner::wait(const char* what, Site at) {
  Lane& mine = *now_;
  mine.waits_for = what;
  mine.waits_at = at;
  while (true) {
    if (chance(1)) arrive_some();
    if (Lane* const other = next()) {
      go(*other);
      break;
    }
    if (arrive_some()) continue;
    // The main fiber begins other blocks, or reports which thread waits for what.
    now_ = nullptr;
    switch_fibers(mine.fiber, main_);
    break;
  }
  mine.waits_for = "";
}

void Runner::let_next_start() {
  if (ended_.let_next_start) return;
  ended_ = {.let_next_start = true, .had_waited = previous_ended_};
}
void Runner::wait_for_previous() {
  if (previous_ended_) return;
  waiting_for_previous_.push_back(now_);
  wait("the previous kernel", {});
}
/// Only when nothing else is left to do: a kernel that does not wait sees none of the previous kernel's writes.
void Runner::end_previous() {
  previous_ended_ = true;
  launch_.end_previous();
  for (Lane* one : waiting_for_previous_) wake(*one);
  waiting_for_previous_.clear();
}

void Runner::let_others_run() {
  if (!previous_ended_ && quiet_ > most_beside_previous) end_previous();
  if (++quiet_ > most_quiet) {
    now_->waits_for = "memory that another thread changes";
    fail("threads wait for memory that no one changes", now_->waits_at);
  }
  const std::size_t before = quiet_;
  step_back();
  quiet_ = std::max(quiet_, before);
}

/// Lets another warp run first; this thread continues later.
void Runner::step_back() {
  Lane& mine = *now_;
  const std::size_t before = quiet_;
  if (chance(4)) arrive_some();
  Warp* other = nullptr;
  for (std::size_t tries = 0; tries < 4 && !ready_.empty() && !other; ++tries) {
    Warp* const one = ready_[below(ready_.size())];
    if (one->ready && one != mine.warp) other = one;
  }
  if (!other) arrive_some();
  wake(mine);
  quiet_ = before;
  if (!other) {
    // The main fiber may begin other blocks.
    now_ = nullptr;
    switch_fibers(mine.fiber, main_);
    return;
  }
  const int lane = std::countr_zero(other->ready);
  other->ready &= other->ready - 1;
  go(*other->lanes[static_cast<std::size_t>(lane)]);
}

/// Lets one of the boxes in flight arrive. False if there are none.
bool Runner::arrive_some() {
  std::size_t count = 0;
  for (const auto& cluster : clusters_)
    for (const auto& block : cluster->blocks) count += block->loads.size();
  if (count == 0) return false;
  std::size_t nth = below(count);
  for (const auto& cluster : clusters_)
    for (const auto& block : cluster->blocks) {
      if (nth >= block->loads.size()) {
        nth -= block->loads.size();
        continue;
      }
      const Load load = block->loads[nth];
      block->loads.erase(block->loads.begin() + static_cast<std::ptrdiff_t>(nth));
      arrive(*this, *block, load);
      return true;
    }
  return true;
}

void Runner::end_lane() {
  Lane& mine = *now_;
  Warp& warp = *mine.warp;
  require_stores_read(*this, mine);
  finish_stores(mine);
  mine.ended = true;
  mine.waits_for = "nothing: it has ended";
  warp.live &= ~(1u << mine.lane);
  --warp.block->live;
  --warp.block->cluster->live;
  lane_has_ended(*this, warp);
  now_ = nullptr;
  switch_fibers(mine.fiber, main_);
  throw Bug("a thread that has ended goes on");
}

void Runner::fail(const std::string& what, Site at) {
  stop(fmt::format("{}: {}, at {}", name_of(*now_), what, place_of(at)));
}
void Runner::fail(const std::string& what, Site at, const Block& of) {
  stop(fmt::format("block ({}, {}, {}): {}, at {}", of.index.x, of.index.y, of.index.z, what, place_of(at)));
}
void Runner::doubt(const Conflict& conflict, Site at) {
  constexpr std::size_t most = 8;
  std::string text = fmt::format("{}: {}, at {}: {}", launch_.kernel->name, name_of(*now_), place_of(at),
                                 conflict.what);
  if (*conflict.at.file)
    text += fmt::format(" thread {} at {}", 32 * conflict.with.warp + conflict.with.lane, place_of(conflict.at));
  const std::lock_guard lock(doubts_mutex);
  if (doubts.size() < most) doubts.push_back(text);
}
void Runner::stop(std::string why) {
  failed_ = std::move(why);
  if (!now_) refuse();
  Lane& mine = *now_;
  now_ = nullptr;
  switch_fibers(mine.fiber, main_);
  throw Bug("a launch that has failed goes on");
}
void Runner::refuse() const {
  throw Error("emulated-kernel", fmt::format("{}, emulated, does what a GPU does not allow", launch_.kernel->name), {},
              failed_, fmt::format("fix it there; this seed reproduces it: {}", launch_.seed));
}

void Runner::deadlock() {
  std::map<std::string, std::pair<int, std::string>> waits;
  for (const auto& cluster : clusters_)
    for (const auto& block : cluster->blocks)
      for (const auto& warp : block->warps)
        for (const auto& lane : warp->lanes) {
          if (lane->ended) continue;
          auto& [count, first] = waits[fmt::format("{} at {}", lane->waits_for, place_of(lane->waits_at))];
          if (count++ == 0) first = name_of(*lane);
        }
  std::string all;
  for (const auto& [what, who] : waits)
    all += fmt::format("{}{} thread{} ({}{}) wait for {}", all.empty() ? "" : "; ", who.first,
                       who.first == 1 ? "" : "s", who.first == 1 ? "" : "the first: ", who.second, what);
  failed_ = "no thread can go on: " + all;
}

/// Frees the memory of blocks whose threads have all ended.
void Runner::end_blocks() {
  std::erase_if(clusters_, [&](const std::unique_ptr<Cluster>& cluster) {
    if (cluster->live > 0) return false;
    for (const auto& block : cluster->blocks) {
      if (!block->loads.empty())
        failed_ = fmt::format(
            "block ({}, {}, {}) ends while a box is on its way into its shared memory, asked for at {}", block->index.x,
            block->index.y, block->index.z, place_of(block->loads[0].at));
      for (const auto& warp : block->warps) {
        if (warp->listed) {
          ready_.erase(std::find(ready_.begin(), ready_.end(), warp.get()));
          warp->listed = false;
        }
        for (const auto& lane : warp->lanes) {
          stacks().give_back(lane->stack);
          lane->stack = nullptr;
        }
      }
    }
    return true;
  });
}

Ended Runner::run() {
  const Flushed flushed;
  const unsigned all = launch_.blocks.x * launch_.blocks.y * launch_.blocks.z,
                 count = all / static_cast<unsigned>(launch_.cluster),
                 most = std::max(1u, static_cast<unsigned>(launch_.sms / launch_.cluster));
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::shuffle(order, dice_);
  std::size_t begun = 0;
  while (failed_.empty()) {
    end_blocks();
    while (begun < order.size() && clusters_.size() < most) begin_cluster(order[begun++]);
    if (clusters_.empty()) break;
    if (Lane* const one = next())
      go(*one);
    else if (arrive_some())
      continue;
    else if (!previous_ended_)
      end_previous();
    else
      deadlock();
  }
  if (!previous_ended_) end_previous();
  if (!failed_.empty()) refuse();
  return ended_;
}

std::vector<std::string> take_doubts() {
  const std::lock_guard lock(doubts_mutex);
  return std::exchange(doubts, {});
}

Ended run(const LaunchOf& launch) { return Runner(launch).run(); }

}  // namespace attune::runtime::emulated
