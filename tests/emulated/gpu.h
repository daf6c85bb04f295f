// tests/emulated/gpu.h — engines whose GPU is emulated, for tests that compare with the oracle
#pragma once

#include <algorithm>

#include <fmt/format.h>

#include "codegen/choose/kind.h"
#include "runtime/platform/emulated/compiler.h"
#include "runtime/platform/emulated/emulated.h"
#include "tests/catch.h"
#include "tests/numerics/engines.h"
#include "tests/turn.h"

namespace attune::tests {

/// True, with a message, if nothing here compiles kernels for the host.
inline bool skipped_without_compiler() {
  const auto& compiler = runtime::emulated::host_compiler();
  if (!compiler.version.empty()) return false;
  WARN("[skip] no compiler of C++: " << compiler.refusal);
  return true;
}

/// An engine on a GPU that is emulated. Each of its calls makes that GPU the process's device: several engines can be
/// compared with one result of the oracle and of dense attention, which take as long as the kernels.
inline Engine emulated_engine(const runtime::emulated::Gpu& gpu) {
  runtime::emulated::emulate(gpu);
  Engine out = cuda_engine();
  out.name = fmt::format("emulated sm_{} with {} SMs", gpu.arch, gpu.sms);
  out.forward = [gpu, forward = out.forward](const auto&... of) {
    runtime::emulated::emulate(gpu);
    forward(of...);
  };
  out.backward = [gpu, backward = out.backward](const auto&... of) {
    runtime::emulated::emulate(gpu);
    backward(of...);
  };
  return out;
}

/// The same; forwards, or backwards, run this kernel, such as backward_sm90:m=80,order=3.
inline Engine emulated_engine(const runtime::emulated::Gpu& gpu, const std::string& kernel) {
  Engine out = emulated_engine(gpu);
  out.name += ", " + kernel;
  const codegen::Preference preference{codegen::variant(kernel), true, ""};
  const auto run = [=](const Subject& subject, const auto& call, const compiler::Problem& problem) {
    runtime::emulated::emulate(gpu);
    on_device(subject, call, problem, {.preference = &preference});
  };
  if (kernel.starts_with("forward"))
    out.forward = run;
  else
    out.backward = run;
  return out;
}

}  // namespace attune::tests
