// runtime/platform/platform.h — the driver and the compiler that the engine uses: NVIDIA's, unless they were replaced
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/platform/nvidia/driver.h"
#include "runtime/platform/nvidia/nvrtc.h"

namespace attune::runtime::cuda {

struct Platform {
  const Found& (*driver)() = nullptr;
  /// A number that changes whenever the devices change.
  std::uint64_t (*generation)() = nullptr;
  int first_device = 0;                 ///< number of the first device in this process
  std::string kind;                     ///< the kind of compiled code, in the cache
  std::string (*compiler)() = nullptr;  ///< the compiler's exact version; empty: there is no compiler
  std::string (*refusal)() = nullptr;   ///< the reason why there is no compiler
  /// The compiler's input in addition to the generated source and the library's device files.
  std::string (*further)() = nullptr;
  Binary (*compile)(const codegen::Source& source, Ptx ptx) = nullptr;
  bool splices = false;  ///< kernels can be spliced: its machine code is made from PTX
};

/// NVIDIA's libraries.
const Platform& nvidia();
const Platform& platform();
/// The platform that options().emulated names. It is defined in emulated/, which depends on this folder and not the
/// reverse.
const Platform& emulated_platform(const std::string& gpu);
/// Sets the platform for all threads from now on. Earlier calls must have ended, and none of their kernels is used
/// again.
void use(const Platform& other);

/// While this object lives, the calling thread uses another platform than the others; null: it does not.
class OnPlatform {
 public:
  explicit OnPlatform(const Platform* other);
  ~OnPlatform();
  OnPlatform(const OnPlatform&) = delete;
  OnPlatform& operator=(const OnPlatform&) = delete;

 private:
  const Platform* before_;
};
/// The platform of this thread alone; null if it has none. Threads that work for a call take it over.
const Platform* platform_of_thread();
/// Calls work(0) to work(count - 1) on as many threads as there are CPUs, which work for this thread's call.
void at_once(std::size_t count, const std::function<void(std::size_t)>& work);
/// Makes driver() return this driver at once from now on, unless some threads have platforms of their own.
void remember(const Driver& driver);

}  // namespace attune::runtime::cuda
