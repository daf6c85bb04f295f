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
  /// Next to a picture, whose lengths are `--q-len` and `--kv-len`, a call's are `--seq` and `--kv-seq` alone.
  void add_to(CLI::App& verb, bool beside_picture = false);
  void check() const;
  /// What kernels are chosen by: of such a call's tensors, of which none has memory. `otherwise`: the arch if none is
  /// given.
  codegen::CallSpec spec(const compiler::LoweredMod& lowered, int otherwise = 90) const;
};

}  // namespace attune::tools
