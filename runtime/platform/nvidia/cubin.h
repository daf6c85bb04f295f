// runtime/platform/nvidia/cubin.h — what a cubin says of its kernels: machine code, registers, local memory
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace attune::runtime::cuda {

struct KernelNeeds {
  int registers = 0;  ///< of a thread
  int frame = 0;      ///< bytes of local memory of a thread: arrays, and registers that are spilled
};

/// Reads a cubin, a 64-bit ELF file. Its bytes may be damaged, and must outlive this object.
class Cubin {
 public:
  explicit Cubin(std::string_view bytes);
  /// None: the cubin is damaged, or has no such kernel.
  std::optional<KernelNeeds> needs(std::string_view symbol) const;
  /// The machine code of a kernel; empty in the same cases.
  std::string_view code(std::string_view symbol) const;

 private:
  struct Section {
    std::string_view name, bytes;
    std::uint32_t type = 0, link = 0;
  };
  std::optional<Section> section(std::uint64_t nth) const;
  std::optional<Section> named(std::string_view name) const;
  std::string_view symbol(std::uint64_t nth) const;

  std::string_view bytes_, headers_, names_;
  std::uint64_t sections_ = 0;
  Section symbols_{};
  std::string_view symbol_names_;
};

}  // namespace attune::runtime::cuda
