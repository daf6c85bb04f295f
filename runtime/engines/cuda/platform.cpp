// runtime/engines/cuda/platform.cpp — the driver and the compiler that the engine uses: NVIDIA's, unless they were
// replaced
#include "runtime/engines/cuda/platform.h"

#include <atomic>

#include <fmt/format.h>

#include "runtime/machine/options.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<const Platform*> used{nullptr};

}  // namespace

const Platform& nvidia() {
  static const Platform& all = *new Platform{
      .driver = &find_nvidia_driver,
      .generation = [] { return std::uint64_t{0}; },
      .kind = "cubin",
      .compiler =
          [] { return nvrtc() ? fmt::format("{} {}.{}", nvrtc().build, nvrtc().major, nvrtc().minor) : std::string(); },
      .refusal = [] { return nvrtc().refusal; },
      .further = [] { return std::string(); },
      .compile = [](const codegen::Source& source, Ptx ptx) { return compile(source, ptx); }};
  return all;
}

const Platform& platform() {
  if (const Platform* const other = used) return *other;
  static const Platform& usual = options().emulated.empty() ? nvidia() : emulated_platform(options().emulated);
  return usual;
}

void use(const Platform& other) {
  used = &other;
  driver_in_use = nullptr;
}

}  // namespace attune::runtime::cuda
