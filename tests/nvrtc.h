// tests/nvrtc.h — tests that compile kernels: skipped where that is impossible or not worth the time
#pragma once

#include <cstdio>

#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/sanitizers.h"

namespace attune::tests {

/// True, with a message, if there is no NVRTC.
inline bool skips_nvrtc() {
  if (runtime::cuda::nvrtc()) return false;
  std::printf("[skip] %s\n", runtime::cuda::nvrtc().refusal.c_str());
  return true;
}

/// True under sanitizers too, for tests that only check what NVRTC says.
inline bool skips_compiling() {
  if (!sanitized) return skips_nvrtc();
  std::puts("[skip] NVIDIA's compiler is not ours to sanitize; the preset dev asks it");
  return true;
}

}  // namespace attune::tests
