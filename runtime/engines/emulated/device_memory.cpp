// runtime/engines/emulated/device_memory.cpp — the memory of an emulated device, and its contents at earlier times
#include "runtime/engines/emulated/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "runtime/engines/emulated/grid.h"

namespace attune::runtime::emulated {

Mutex device_mutex;

namespace {

namespace cu = cuda::cu;

std::map<cu::Address, std::size_t> taken;  ///< bytes

std::byte* at(cu::Address address) { return reinterpret_cast<std::byte*>(address); }

/// Fills memory that the previous kernel was the first to write with large numbers: with NaN, kernels would recompute
/// tiles.
void hide(std::vector<std::byte>& before, const std::vector<std::byte>& after) {
  constexpr std::uint32_t never_written = ~0u;
  for (std::size_t i = 0; i + sizeof(float) <= before.size(); i += sizeof(float)) {
    std::uint32_t word = 0;
    std::memcpy(&word, &before[i], sizeof word);
    if (word == never_written && std::memcmp(&before[i], &after[i], sizeof word) != 0)
      std::memcpy(&before[i], &unknown_number, sizeof unknown_number);
  }
}

}  // namespace

cu::Result take(cu::Address* into, std::size_t bytes) {
  constexpr std::size_t grain = 256;
  void* const made = std::aligned_alloc(grain, (bytes + grain) / grain * grain);
  if (!made) return cu::Result::out_of_memory;
  // Memory that was never written is NaN.
  std::memset(made, 0xff, bytes);
  *into = reinterpret_cast<cu::Address>(made);
  const std::lock_guard lock(device_mutex);
  taken.emplace(*into, bytes);
  return cu::Result::success;
}

cu::Result give_back(cu::Address address) {
  {
    const std::lock_guard lock(device_mutex);
    if (!taken.erase(address)) return cu::Result::invalid_value;
  }
  std::free(at(address));
  return cu::Result::success;
}

Contents contents() {
  constexpr std::size_t most = 64 << 20;
  std::size_t all = 0;
  for (const auto& [address, bytes] : taken) all += bytes;
  Contents out;
  if (all > most) return out;
  for (const auto& [address, bytes] : taken) out.emplace_back(address, std::vector(at(address), at(address) + bytes));
  return out;
}

std::function<void()> put_back(const Contents& earlier) {
  struct Piece {
    std::byte* memory;
    std::vector<std::byte> before, after;
  };
  auto all = std::make_shared<std::vector<Piece>>();
  for (const auto& [address, bytes] : earlier) {
    const auto now = taken.find(address);
    if (now == taken.end() || now->second != bytes.size()) continue;
    std::byte* const memory = at(address);
    all->push_back({memory, bytes, std::vector(memory, memory + bytes.size())});
    hide(all->back().before, all->back().after);
    std::ranges::copy(all->back().before, memory);
  }
  return [all] {
    for (const Piece& one : *all)
      for (std::size_t i = 0; i < one.before.size(); ++i)
        if (one.memory[i] == one.before[i]) one.memory[i] = one.after[i];
  };
}

}  // namespace attune::runtime::emulated
