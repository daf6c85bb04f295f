// tests/emulated/gpu.h — engines whose GPU is emulated, for tests that compare with the oracle
#pragma once

#include <algorithm>

#include "codegen/variant.h"
#include "runtime/engines/emulated/compiler.h"
#include "runtime/engines/emulated/emulated.h"
#include "tests/catch.h"
#include "tests/numerics/engines.h"

namespace attune::tests {

/// True, with a message, if nothing here compiles kernels for the host.
inline bool skipped_without_compiler() {
  const auto& compiler = runtime::emulated::host_compiler();
  if (!compiler.version.empty()) return false;
  WARN("[skip] no compiler of C++: " << compiler.refusal);
  return true;
}

/// An engine on a GPU that is emulated; from now on it is this process's device.
inline Engine emulated_engine(const runtime::emulated::Gpu& gpu) {
  runtime::emulated::emulate(gpu);
  return cuda_engine();
}

/// The same; backwards run this kernel, such as backward_sm90:m=80,order=3.
inline Engine emulated_engine(const runtime::emulated::Gpu& gpu, const std::string& backward) {
  Engine out = emulated_engine(gpu);
  out.backward = [preference = codegen::Preference{codegen::variant(backward), true, ""}](
                     const Subject& subject, const Backward& call, const compiler::Problem& problem) {
    on_device(subject, call, problem, {.preference = &preference});
  };
  return out;
}

}  // namespace attune::tests
