// tests/nvrtc.h — tests that compile kernels, where that is possible and worth its time
#pragma once

#include <cstdio>

#include "runtime/cuda/nvrtc.h"
#include "tests/sanitizers.h"

namespace attune::tests {

/// Says so where there is no compiler for kernels.
inline bool skips_nvrtc() {
  if (runtime::cuda::nvrtc()) return false;
  std::printf("[skip] %s\n", runtime::cuda::nvrtc().refusal.c_str());
  return true;
}

/// Also under sanitizers, of tests that look at nothing but what that compiler says.
inline bool skips_compiling() {
  if (!sanitized) return skips_nvrtc();
  std::puts("[skip] NVIDIA's compiler is not ours to sanitize; the preset dev asks it");
  return true;
}

}  // namespace attune::tests
