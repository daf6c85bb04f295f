// tools/device_call.h — options that describe the GPU call to choose a kernel for, with or without a GPU
#pragma once

#include <optional>
#include <string>

#include "codegen/call_choices.h"
#include "tools/call_options.h"

namespace attune::tools {

struct DeviceCall : CallOptions {
  std::optional<int> arch;
  std::optional<std::string> kernel;
  bool max = false, as_packed = false;

  DeviceCall() {
    dtype = "bf16";
    seq = 8192;
  }
  /// `beside_picture`: --q-len and --kv-len are the picture's, so the call's lengths are only --seq and --kv-seq.
  void add_to(CLI::App& verb, bool beside_picture = false);
  void check() const;
  /// The key by which kernels are chosen, from tensors of this call that have no memory. `otherwise`: the arch if none
  /// is given.
  codegen::CallSpec spec(const compiler::LoweredMod& lowered, int otherwise = 90) const;
};

}  // namespace attune::tools
