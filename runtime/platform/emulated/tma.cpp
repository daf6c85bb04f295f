// runtime/platform/emulated/tma.cpp — mbarriers, and TMA: boxes of tensors and contiguous bytes, which arrive in any
// order
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "runtime/platform/emulated/grid.h"
#include "runtime/platform/emulated/runner.h"

namespace attune::runtime::emulated {
namespace {

constexpr unsigned row_bytes = 128;

PhaseBarrier& phase_barrier(Runner& runner, Block& block, unsigned at, Site from) {
  const auto found = block.phases.find(at);
  if (found == block.phases.end())
    runner.fail(fmt::format("there is no mbarrier at {} of shared memory: none was initialised", at - first_shared),
                from, block);
  return found->second;
}

/// Ends the phase if all have arrived.
void end_phase(Runner& runner, Shadow& shadow, PhaseBarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  barrier.known = std::exchange(barrier.next, {});
  for (const auto& [at, bytes] : barrier.copies) shadow.end_copy(at, bytes);
  barrier.copies.clear();
  std::erase_if(barrier.waiting, [&](const auto& one) {
    if ((barrier.phase & 1) == one.second) return false;
    hear(*one.first, barrier.known);
    runner.wake(*one.first);
    return true;
  });
}

void barrier_init(unsigned at, unsigned arrivals, Site from) {
  Runner& runner = *running;
  if (arrivals == 0) runner.fail("an mbarrier for which no one arrives", from);
  machine().shared(at, 8, Touch::write, from);
  PhaseBarrier& barrier = runner.block().phases[at];
  if (!barrier.waiting.empty()) runner.fail("an mbarrier that threads wait for is initialised", from);
  barrier = {.arrivals = arrivals, .missing = arrivals, .made = from, .last = from};
}

void barrier_arrive(unsigned at, unsigned bytes, Site from) {
  Runner& runner = *running;
  PhaseBarrier& barrier = phase_barrier(runner, runner.block(), at, from);
  if (barrier.missing == 0)
    runner.fail(fmt::format("the mbarrier that was made at {}:{} has its {} arrivals, and this is one more",
                            barrier.made.file, barrier.made.line, barrier.arrivals),
                from);
  barrier.last = from;
  barrier.next.hear(runner.warp().known);
  tick(runner.warp());
  barrier.bytes += bytes;
  --barrier.missing;
  end_phase(runner, *runner.block().shadow, barrier);
  runner.may_let_others_run();
}

void barrier_wait(unsigned at, unsigned parity, Site from) {
  Runner& runner = *running;
  PhaseBarrier& barrier = phase_barrier(runner, runner.block(), at, from);
  if (parity > 1) runner.fail(fmt::format("an mbarrier has phases of parity 0 and 1, not {}", parity), from);
  if ((barrier.phase & 1) != parity) return hear(runner.lane(), barrier.known);
  barrier.waiting.emplace_back(&runner.lane(), parity);
  runner.wait("an mbarrier", from);
}

// ---- boxes ----------------------------------------------------------------------------------------------------------

/// Calls body with the address in shared memory, swizzled, and the place in global memory (null: outside of the tensor)
/// of each 16 bytes of a box.
template <class Body>
void each_piece(const Map& map, const Box& box, unsigned into, const Body& body) {
  constexpr unsigned piece = 16;
  std::array<unsigned, 5> i{};
  const auto rank = static_cast<std::size_t>(map.rank);
  unsigned row = 0;
  while (true) {
    const std::byte* at = map.first;
    bool inside = true;
    for (std::size_t d = 1; d < rank; ++d) {
      const long long place = static_cast<long long>(box.at[d]) + i[d];
      inside = inside && place >= 0 && place < static_cast<long long>(map.extents[d]);
      at += place * static_cast<long long>(map.strides[d - 1]);
    }
    for (unsigned byte = 0; byte < row_bytes; byte += piece) {
      const unsigned plain = into + row * row_bytes + byte;
      const long long first = static_cast<long long>(box.at[0]) * map.element + byte,
                      end = static_cast<long long>(map.extents[0]) * map.element;
      const auto count = inside && first >= 0 ? std::clamp<long long>(end - first, 0, piece) : 0;
      body(plain ^ (plain >> 7 & 7) << 4, count > 0 ? at + first : nullptr, static_cast<std::size_t>(count));
    }
    ++row;
    std::size_t d = 1;
    for (; d < rank && ++i[d] == map.box[d]; ++d) i[d] = 0;
    if (d == rank) return;
  }
}

void require_fitting(Runner& runner, const Map& map, const Box& box, unsigned at, Site from) {
  if (map.magic != Map::right) runner.fail("TMA gets a tensor map that is none", from);
  if (map.rank != box.rank)
    runner.fail(fmt::format("a box of rank {} of a tensor of rank {}", box.rank, map.rank), from);
  if (map.box[0] * map.element != row_bytes)
    runner.fail("not emulated yet: boxes whose rows are other than 128 bytes", from);
  if (at % row_bytes != 0) runner.fail("a box's place in shared memory is no multiple of 128", from);
  machine().shared_pointer(at, from);
  shared_bytes(runner, runner.block(), at, map.bytes(), from);
}

void begin_load(Load load) {
  Runner& runner = *running;
  phase_barrier(runner, runner.block(), load.barrier, load.at);
  load.known = runner.warp().known;
  require_none(runner,
               runner.block().shadow->begin_copy(load.into, load.bytes, toucher(runner.lane(), runner.block()),
                                                 load.known, load.at),
               load.at);
  if (runner.chance(5))
    arrive(runner, runner.block(), load);
  else
    runner.block().loads.push_back(load);
}

void load_box(unsigned into, const Box* box, unsigned barrier, Site at) {
  Load load{.box = *box, .into = into, .barrier = barrier, .at = at};
  std::memcpy(load.map.data(), box->map, load.map.size());
  load.bytes = map_of(load.map).bytes();
  require_fitting(*running, map_of(load.map), *box, into, at);
  begin_load(load);
}

void require_sixteens(const void* global, unsigned shared, unsigned bytes, Site at) {
  if (bytes % 16 != 0 || shared % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0)
    running->fail("a bulk copy whose ends are no multiples of 16", at);
  shared_bytes(*running, running->block(), shared, bytes, at);
}

void load_bulk(unsigned into, const void* from, unsigned bytes, unsigned barrier, Site at) {
  require_sixteens(from, into, bytes, at);
  begin_load({.box = {}, .from = from, .bytes = bytes, .into = into, .barrier = barrier, .at = at});
}

// ---- stores ---------------------------------------------------------------------------------------------------------

void read(Runner& runner, Block& block, Store& store) {
  if (!store.taken.empty()) return;
  if (!store.box) {
    const std::byte* const from = shared_bytes(runner, block, store.from, store.bytes, store.at);
    store.taken.assign(from, from + store.bytes);
    return;
  }
  each_piece(map_of(store.map), *store.box, store.from, [&](unsigned from, const std::byte*, std::size_t) {
    const std::byte* const at = block.memory.data() + from;
    store.taken.insert(store.taken.end(), at, at + 16);
  });
}

void write(const Store& store) {
  const std::byte* from = store.taken.data();
  if (store.box) {
    each_piece(map_of(store.map), *store.box, store.from, [&](unsigned, const std::byte* to, std::size_t count) {
      if (count > 0) std::memcpy(const_cast<std::byte*>(to), from, count);
      from += 16;
    });
  } else if (store.add) {
    auto* const to = static_cast<float*>(store.to);
    for (std::size_t i = 0; i < store.bytes / sizeof(float); ++i) {
      float x = 0;
      std::memcpy(&x, from + i * sizeof x, sizeof x);
      to[i] += x;
    }
  } else {
    std::memcpy(store.to, from, store.bytes);
  }
}

unsigned bytes_of(const Store& store) { return store.box ? map_of(store.map).bytes() : store.bytes; }

void begin_store(Store store) {
  Runner& runner = *running;
  Toucher by = toucher(runner.lane(), runner.block());
  by.fences = runner.lane().fences_heard;
  require_none(runner,
               runner.block().shadow->begin_store(store.from, bytes_of(store), by, runner.warp().known, store.at),
               store.at);
  if (runner.chance(5)) read(runner, runner.block(), store);
  runner.lane().stores.back().push_back(std::move(store));
}

void store_box(const Box* box, unsigned from, Site at) {
  Store store{.box = *box, .from = from, .at = at};
  std::memcpy(store.map.data(), box->map, store.map.size());
  require_fitting(*running, map_of(store.map), *box, from, at);
  begin_store(std::move(store));
}

void store_bulk(void* to, unsigned from, unsigned bytes, bool add, Site at) {
  require_sixteens(to, from, bytes, at);
  begin_store({.to = to, .from = from, .bytes = bytes, .add = add, .at = at});
}

/// Completes all groups except the last, which is not committed. A group is written when it is waited for, or at any
/// earlier time.
void store_wait(bool read_only, Site) {
  Runner& runner = *running;
  Lane& lane = runner.lane();
  for (std::size_t i = 0; i + 1 < lane.stores.size(); ++i)
    for (Store& one : lane.stores[i]) {
      read(runner, runner.block(), one);
      if (!std::exchange(one.waited_for, true)) runner.block().shadow->end_store(one.from, bytes_of(one));
    }
  if (read_only && runner.chance(8)) return;
  while (lane.stores.size() > 1) {
    for (const Store& one : lane.stores.front()) write(one);
    lane.stores.pop_front();
  }
}

}  // namespace

void arrive(Runner& runner, Block& block, const Load& load) {
  if (load.from)
    std::memcpy(block.memory.data() + load.into, load.from, load.bytes);
  else
    each_piece(map_of(load.map), load.box, load.into, [&](unsigned to, const std::byte* from, std::size_t count) {
      std::byte* const at = block.memory.data() + to;
      if (count > 0) std::memcpy(at, from, count);
      std::memset(at + count, 0, 16 - count);
    });
  PhaseBarrier& barrier = phase_barrier(runner, block, load.barrier, load.at);
  barrier.bytes -= load.bytes;
  barrier.next.hear(load.known);
  barrier.copies.emplace_back(load.into, load.bytes);
  if (barrier.missing == 0 && barrier.bytes < 0)
    runner.fail(fmt::format("a box brings {} bytes more than the mbarrier expects, as it was told at {}:{}",
                            -barrier.bytes, barrier.last.file, barrier.last.line),
                load.at, block);
  end_phase(runner, *block.shadow, barrier);
}

void require_stores_read(Runner& runner, Lane& lane) {
  for (const auto& group : lane.stores)
    for (const Store& one : group)
      if (one.taken.empty())
        runner.fail("it ends while TMA may still read its shared memory, as it was told here", one.at);
}

void finish_stores(Lane& lane) {
  for (const auto& group : lane.stores)
    for (const Store& one : group) write(one);
  lane.stores.clear();
}

void fill_in_copies(Machine& machine) {
  machine.load_box = &load_box;
  machine.store_box = &store_box;
  machine.load_bulk = &load_bulk;
  machine.store_bulk = &store_bulk;
  machine.store_commit = [](Site) { running->lane().stores.emplace_back(); };
  machine.store_wait = &store_wait;
  machine.proxy_fence = [](bool, Site) {
    Runner& runner = *running;
    ++runner.block().shadow->fences(toucher(runner.lane(), runner.block()));
  };
  machine.barrier_init = &barrier_init;
  machine.barrier_arrive = &barrier_arrive;
  machine.barrier_wait = &barrier_wait;
}

}  // namespace attune::runtime::emulated
