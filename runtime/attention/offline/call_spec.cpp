// runtime/attention/offline/call_spec.cpp — the spec that selects a call's kernels, for a GPU that need not be in this
// machine
#include "runtime/attention/offline/call_spec.h"

#include "runtime/engines/cuda/keys.h"

namespace attune::runtime {

codegen::CallSpec call_spec(const compiler::LoweredMod& lowered, const What& asked, int arch,
                            std::optional<bool> exact) {
  cuda::Facts device;
  device.major = arch / 10;
  device.minor = arch % 10;
  const auto checked = [&](const auto& call) { return compiler::check(lowered, call, {}); };
  const compiler::Problem problem = asked.visit(checked);
  const Call call{.mod = lowered,
                  .args = asked.visit([&](const auto& of) { return compiler::args_of(lowered, of); }),
                  .problem = problem,
                  .what = asked,
                  .exact = exact};
  if (call.is_forward()) {
    const cuda::KernelKey key = cuda::forward_key(device, call, {});
    return {.spec = key.spec, .length = key.length};
  }
  return cuda::backward_call_spec(device, call, cuda::captured_of(call.args, call.backward()));
}

}  // namespace attune::runtime
