// runtime/platform/emulated/memory.cpp — shared memory by its addresses, copies of threads into it, and numbers that
// keep their denormals
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "runtime/platform/emulated/runner.h"

namespace attune::runtime::emulated {

std::byte* shared_bytes(Runner& runner, Block& block, unsigned at, unsigned bytes, Site from) {
  if (at < first_shared || at > block.end || bytes > block.end - at)
    runner.fail(fmt::format("it touches {} bytes of shared memory at {}, beyond the {} that the block has", bytes,
                            static_cast<long long>(at) - first_shared, block.end - first_shared),
                from);
  return block.memory.data() + at;
}

void require_none(Runner& runner, const Conflict& conflict, Site at) {
  if (!conflict.what) return;
  runner.fail(fmt::format("{} thread {} at {}:{}", conflict.what, 32 * conflict.with.warp + conflict.with.lane,
                          conflict.at.file, conflict.at.line),
              at);
}

namespace {

void* placed(unsigned address, unsigned bytes, Site at) {
  Runner& runner = *running;
  if (address % bytes != 0)
    runner.fail(fmt::format("it touches {} bytes of shared memory at {}, which is no multiple of {}", bytes,
                            static_cast<long long>(address) - first_shared, bytes),
                at);
  return shared_bytes(runner, runner.block(), address, bytes, at);
}

void* shared(unsigned address, unsigned bytes, Touch touch, Site at) {
  Runner& runner = *running;
  auto* const out = static_cast<std::byte*>(placed(address, bytes, at));
  if (touch == Touch::flag) return out;
  Shadow& shadow = *runner.block().shadow;
  const Toucher by = toucher(runner.lane(), runner.block());
  if (touch == Touch::write) {
    require_none(runner, shadow.write(address, bytes, by, runner.warp().known, at), at);
    return out;
  }
  // Kernels load some unwritten memory without using it. Writes through pointers are not seen, but they hardly equal
  // the initial fill.
  if (shadow.unwritten(address, bytes) && std::all_of(out, out + bytes, [](std::byte x) { return x == unknown_byte; }))
    runner.doubt({"it reads shared memory where nothing was written", {}, {}}, at);
  require_none(runner, shadow.read(address, bytes, by, runner.warp().known, at), at);
  return out;
}

void* shared_variable(const char* name, unsigned bytes, unsigned alignment) {
  Runner& runner = *running;
  Block& block = runner.block();
  const auto [found, is_new] = block.variables.try_emplace(name, 0);
  if (is_new) {
    found->second = (block.end + alignment - 1) / alignment * alignment;
    block.end = found->second + bytes;
    if (block.end > block.memory.size()) runner.fail(fmt::format("no room for the shared variable {}", name), {});
  }
  return block.memory.data() + found->second;
}

unsigned shared_address(const void* pointer, Site at) {
  Runner& runner = *running;
  Block& block = runner.block();
  const auto offset = static_cast<const std::byte*>(pointer) - block.memory.data();
  if (offset < first_shared || offset > block.end) runner.fail("a pointer that is none into its shared memory", at);
  return static_cast<unsigned>(offset);
}

// ---- copies that arrive by themselves -------------------------------------------------------------------------------

void arrive(Runner& runner, const AsyncCopy& one) {
  std::byte* const to = runner.block().memory.data() + one.to;
  const auto there = static_cast<std::size_t>(std::clamp(one.count, 0, one.bytes)),
             all = static_cast<std::size_t>(one.bytes);
  if (there > 0) std::memcpy(to, one.from, there);
  std::memset(to + there, 0, all - there);
}

void copy_async(unsigned to, const void* from, int bytes, int count, Site at) {
  Runner& runner = *running;
  if (count > 0 && reinterpret_cast<std::uintptr_t>(from) % static_cast<unsigned>(bytes) != 0)
    runner.fail(fmt::format("cp.async of {} bytes from an address that is no multiple of that", bytes), at);
  if (count < 0 || count > bytes) runner.fail(fmt::format("cp.async of {} of {} bytes", count, bytes), at);
  placed(to, static_cast<unsigned>(bytes), at);
  require_none(runner,
               runner.block().shadow->begin_copy(to, static_cast<unsigned>(bytes),
                                                 toucher(runner.lane(), runner.block()), runner.warp().known, at),
               at);
  AsyncCopy one{to, from, bytes, count};
  // The copy may arrive at once, or as late as possible.
  if (runner.chance(6)) {
    arrive(runner, one);
    one.arrived = true;
  }
  runner.lane().copies.back().push_back(one);
}

void copy_wait(int pending, Site) {
  Runner& runner = *running;
  auto& groups = runner.lane().copies;
  while (groups.size() > static_cast<std::size_t>(pending) + 1) {
    auto& group = groups.front();
    while (!group.empty()) {
      const std::size_t i = runner.below(group.size());
      if (!group[i].arrived) arrive(runner, group[i]);
      runner.block().shadow->end_copy(group[i].to, static_cast<unsigned>(group[i].bytes));
      group[i] = group.back();
      group.pop_back();
    }
    groups.pop_front();
  }
}

// ---- numbers --------------------------------------------------------------------------------------------------------

// Converts by bits, because the processor is set to flush denormal numbers to 0.
double f64_of_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7f800000u) != 0 || (bits & 0x7fffffu) == 0) return static_cast<double>(x);
  const double size = static_cast<double>(bits & 0x7fffffu) * 0x1p-149;
  return bits >> 31 ? -size : size;
}

float f32_of_f64(double x, bool towards_zero) {
  const double size = std::fabs(x);
  std::uint32_t sign = std::signbit(x) ? 0x80000000u : 0;
  if (size < 0x1p-126) {
    const double steps = size * 0x1p149;
    return std::bit_cast<float>(sign | static_cast<std::uint32_t>(towards_zero ? std::trunc(steps) : std::rint(steps)));
  }
  const float nearest = static_cast<float>(x);
  if (!towards_zero || std::isnan(x) || std::isinf(x) || std::fabs(static_cast<double>(nearest)) <= size)
    return nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) - 1);
}

}  // namespace

void fill_in_memory(Machine& machine) {
  machine.dynamic_shared = [] {
    return reinterpret_cast<unsigned char*>(running->block().memory.data() + first_shared);
  };
  machine.shared_variable = &shared_variable;
  machine.shared_address = &shared_address;
  machine.shared_pointer = [](unsigned address, Site at) -> void* {
    return shared_bytes(*running, running->block(), address, 0, at);
  };
  machine.shared = &shared;
  machine.copy_async = &copy_async;
  machine.copy_commit = [](Site) { running->lane().copies.emplace_back(); };
  machine.copy_wait = &copy_wait;
  machine.f64_of_f32 = &f64_of_f32;
  machine.f32_of_f64 = &f32_of_f64;
}

}  // namespace attune::runtime::emulated
