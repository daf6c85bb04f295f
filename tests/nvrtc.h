// tests/nvrtc.h — skips tests that compile kernels where that is impossible or takes too long
#pragma once

#include <cstdio>

#include "runtime/cuda/nvrtc.h"
#include "tests/sanitizers.h"

namespace attune::tests {

/// True, with a message, where there is no kernel compiler.
inline bool skips_nvrtc() {
  if (runtime::cuda::nvrtc()) return false;
  std::printf("[skip] %s\n", runtime::cuda::nvrtc().refusal.c_str());
  return true;
}

/// Also true under sanitizers: for tests that check only what that compiler reports.
inline bool skips_compiling() {
  if (!sanitized) return skips_nvrtc();
  std::puts("[skip] NVIDIA's compiler is not ours to sanitize; the preset dev asks it");
  return true;
}

}  // namespace attune::tests
