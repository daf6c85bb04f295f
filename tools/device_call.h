// tools/device_call.h — options that describe the GPU call to choose a kernel for, with or without a GPU
#pragma once

#include <optional>
#include <string>

#include "codegen/choose.h"
#include "tools/text.h"

namespace attune::tools {

struct DeviceCall {
  std::string dtype = "bf16";
  std::int64_t d = 128, seq = 8192;
  std::optional<std::int64_t> dv, kv_seq;
  std::optional<int> arch;
  std::optional<std::string> kernel;
  ExactOption exact;
  bool max = false, packed = false;

  /// Beside a picture, whose lengths are `--q-len` and `--kv-len`, a call's are `--seq` and `--kv-seq` alone.
  void add_to(CLI::App& verb, bool beside_picture = false);
  void check() const;
  /// `otherwise`: the arch if none is given; `group`: query heads of a key head.
  codegen::KernelSpec spec(int otherwise, std::int64_t group = 1) const;
  codegen::Length length() const { return codegen::length_of(seq, kv_seq.value_or(seq)); }
  std::optional<codegen::Preference> preference() const;
};

}  // namespace attune::tools
