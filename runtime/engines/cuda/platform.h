// runtime/engines/cuda/platform.h — what the engine works on: a driver, and what compiles for it; NVIDIA's, unless
// another one was put in their place
#pragma once

#include <cstdint>
#include <string>

#include "runtime/engines/cuda/driver.h"
#include "runtime/engines/cuda/nvrtc.h"

namespace attune::runtime::cuda {

struct Platform {
  const Found& (*driver)() = nullptr;
  /// Another number where the devices have become others.
  std::uint64_t (*generation)() = nullptr;
  std::string kind;                     ///< of what is compiled, in the cache
  std::string (*compiler)() = nullptr;  ///< its exact version; empty: there is none
  std::string (*refusal)() = nullptr;   ///< why there is none
  /// What the compiler is given besides the page and the library's device files.
  std::string (*further)() = nullptr;
  Binary (*compile)(const codegen::Source& source, Ptx ptx) = nullptr;
};

/// NVIDIA's libraries.
const Platform& nvidia();
const Platform& platform();
/// The one that options().emulated names: of the room emulated, which knows this one.
const Platform& emulated_platform(const std::string& gpu);
/// From now on, for all threads. Calls that were made before must have ended, and none of their kernels is used again.
void use(const Platform& other);

}  // namespace attune::runtime::cuda
