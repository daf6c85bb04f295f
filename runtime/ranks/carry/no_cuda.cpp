// runtime/ranks/carry/no_cuda.cpp — ranks on devices in a build without CUDA: each call throws the CUDA engine's Error
#include <attune/ranks.h>

#include "runtime/platform/nvidia/driver.h"
#include "runtime/ranks/carry/carry.h"

namespace attune {

namespace runtime::ranks {

void run_on_device(const detail::Ranks&, const PartMods&, const Call&, const Means&) { cuda::driver(); }

}  // namespace runtime::ranks

// driver() throws.
std::array<std::byte, 128> nccl_id(Line) { return runtime::cuda::driver(), std::array<std::byte, 128>{}; }
Transport nccl(const std::array<std::byte, 128>&, int, int, int, double, Line) {
  return runtime::cuda::driver(), Transport{};
}
Transport nccl(void*, int, double, Line) { return runtime::cuda::driver(), Transport{}; }

}  // namespace attune
