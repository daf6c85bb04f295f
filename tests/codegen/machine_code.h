// tests/codegen/machine_code.h — how many instructions of a kind a kernel's machine code has
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "runtime/platform/nvidia/nvrtc.h"

namespace attune::tests {

/// Instructions of compute capability 7.0 and later, by the nine bits that name them: 16 bytes each.
class MachineCode {
 public:
  /// Of the kernel `symbol` of a cubin. None if it is not there.
  MachineCode(std::string_view cubin, std::string_view symbol) {
    const std::string_view code = runtime::cuda::Cubin(cubin).code(symbol);
    for (std::size_t at = 0; at + 16 <= code.size(); at += 16) {
      std::uint64_t one = 0;
      std::memcpy(&one, code.data() + at, sizeof(one));
      ++counts_[one & 0x1ff];
      ++all_;
    }
  }

  int all() const { return all_; }
  int fadd() const { return counts_[0x21]; }
  int fmul() const { return counts_[0x20]; }
  int ffma() const { return counts_[0x23]; }
  int mufu() const { return counts_[0x108]; }  ///< of the special-function unit
  int wgmma() const { return counts_[0x1f0]; }
  int loads() const { return counts_[0x181]; }  ///< from global memory

 private:
  std::array<int, 512> counts_{};
  int all_ = 0;
};

}  // namespace attune::tests
