// tests/codegen/occupancy.test.cpp — blocks on a multiprocessor, as CUDA's occupancy calculator gives them
#include "codegen/choose/card.h"

#include "tests/catch.h"

using namespace attune::codegen;

namespace {

struct Expected {
  int arch, threads, registers, shared_bytes;
  int blocks;
  const char* limited_by;
};

// Expected values are from cuda_occupancy.h of CUDA 13.0, with 1 KB of reserved shared memory a block.
constexpr Expected by_cuda[] = {
    {90, 384, 168, 231088, 1, "registers, shared memory"},
    {90, 128, 255, 0, 2, "registers"},
    {90, 128, 128, 50000, 4, "registers, shared memory"},
    {90, 32, 16, 0, 32, "blocks"},
    {80, 128, 128, 80000, 2, "shared memory"},
    {80, 1024, 32, 0, 2, "registers, warps"},
    {86, 256, 40, 20000, 4, "shared memory"},
    {86, 128, 24, 1000, 12, "warps"},
    {89, 128, 64, 0, 8, "registers"},
    {120, 64, 32, 99 * 1024, 1, "shared memory"},
    {90, 384, 250, 0, 0, "registers"},
};

}  // namespace

TEST_CASE("as many blocks fit as CUDA says, and what allows no more is named", "[occupancy]") {
  for (const Expected& e : by_cuda) {
    INFO(e.arch << " " << e.threads << " " << e.registers << " " << e.shared_bytes);
    const Occupancy got = occupancy(e.arch, e.threads, e.registers, e.shared_bytes);
    CHECK(got.blocks == e.blocks);
    CHECK(got.limited_by == e.limited_by);
    CHECK(got.warps == got.blocks * ((e.threads + 31) / 32));
  }
}

TEST_CASE("an unknown capability is taken for the one before it", "[occupancy]") {
  CHECK(multiprocessor(104).arch == 103);
  CHECK(multiprocessor(122).arch == 121);
  CHECK(multiprocessor(75).arch == 80);
  CHECK(multiprocessor(90).warps == 64);
}
