// tests/codegen/machine_code.h — how many instructions of a kind a kernel's machine code has
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace attune::tests {

/// Instructions of compute capability 7.0 and later, by the nine bits that name them: 16 bytes each.
class MachineCode {
 public:
  /// Of the kernel `symbol` of a cubin, a 64-bit ELF file. None if it is not there.
  MachineCode(std::string_view cubin, std::string_view symbol) {
    const auto at = [&](auto type, std::size_t offset) {
      decltype(type) out{};
      if (offset + sizeof(out) <= cubin.size()) std::memcpy(&out, cubin.data() + offset, sizeof(out));
      return out;
    };
    const std::uint64_t table = at(std::uint64_t{}, 0x28);
    const std::size_t size = at(std::uint16_t{}, 0x3a), count = at(std::uint16_t{}, 0x3c);
    const auto header = [&](std::size_t i) { return table + i * size; };
    const std::uint64_t names = at(std::uint64_t{}, header(at(std::uint16_t{}, 0x3e)) + 0x18);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t name = names + at(std::uint32_t{}, header(i));
      if (name >= cubin.size()) continue;
      const std::string_view text(cubin.data() + name, cubin.substr(name).find('\0'));
      if (!text.starts_with(".text.") || text.substr(6) != symbol) continue;
      const std::uint64_t begin = at(std::uint64_t{}, header(i) + 0x18), bytes = at(std::uint64_t{}, header(i) + 0x20);
      for (std::uint64_t one = begin; one < begin + bytes; one += 16) {
        ++counts_[at(std::uint64_t{}, one) & 0x1ff];
        ++all_;
      }
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
