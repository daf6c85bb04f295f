// codegen/choose/occupancy.cpp — how many blocks of a kernel fit on a multiprocessor, and what limits them
#include "codegen/choose/occupancy.h"

#include <algorithm>
#include <array>
#include <utility>

#include "codegen/ceil_div.h"

namespace attune::codegen {
namespace {

constexpr int kb = 1024;
constexpr std::array<Multiprocessor, 10> all{{{80, 64, 32, 164 * kb},
                                              {86, 48, 16, 100 * kb},
                                              {87, 48, 16, 164 * kb},
                                              {89, 48, 24, 100 * kb},
                                              {90, 64, 32, 228 * kb},
                                              {100, 64, 32, 228 * kb},
                                              {103, 64, 32, 228 * kb},
                                              {110, 48, 24, 228 * kb},
                                              {120, 48, 24, 100 * kb},
                                              {121, 48, 24, 100 * kb}}};

// The same since 8.0: four partitions, each with its own registers, which warps get in units of 256; shared memory in
// units of 128 bytes, of which CUDA takes 1 KB per block.
constexpr int sectors = 4, registers_of_part = 16 * kb, register_unit = 256, shared_unit = 128, shared_of_cuda = kb;

}  // namespace

std::span<const Multiprocessor> multiprocessors() { return all; }

const Multiprocessor& multiprocessor(int arch) {
  const auto newer = std::ranges::find_if(all, [&](const Multiprocessor& m) { return m.arch > arch; });
  return newer == all.begin() ? all.front() : *(newer - 1);
}

Occupancy occupancy(int arch, int threads, int registers, int shared_bytes) {
  const Multiprocessor& m = multiprocessor(arch);
  const int warps = std::max(1, ceil_div(threads, 32));
  const int warps_of_part = registers_of_part / round_up(std::max(1, registers) * 32, register_unit);
  const std::array limits{
      std::pair{"registers", sectors * warps_of_part / warps},
      std::pair{"shared memory", m.shared_bytes / (round_up(shared_bytes, shared_unit) + shared_of_cuda)},
      std::pair{"warps", m.warps / warps}, std::pair{"blocks", m.blocks}};
  Occupancy out{.most_warps = m.warps, .limited_by = {}};
  out.blocks = std::ranges::min(limits, {}, [](const auto& limit) { return limit.second; }).second;
  out.warps = out.blocks * warps;
  for (const auto& [what, blocks] : limits)
    if (blocks == out.blocks) out.limited_by += (out.limited_by.empty() ? "" : ", ") + std::string(what);
  return out;
}

}  // namespace attune::codegen
