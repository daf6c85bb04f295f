// tests/cubin_text.h — a small cubin, written as NVIDIA's assembler lays one out
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attune::tests {

/// A kernel of a cubin. Its machine code is any text.
struct CubinKernel {
  std::string_view name, code;
  std::uint32_t registers = 0, frame = 0;
};

/// 64-bit ELF: texts, symbols, .nv.info with the registers and frames of the kernels, their machine code.
class CubinText {
 public:
  explicit CubinText(const std::vector<CubinKernel>& kernels) {
    std::string symbols(24, '\0'), names(1, '\0'), info;
    std::uint32_t nth = 0;
    for (const CubinKernel& kernel : kernels) {
      symbols += number<std::uint32_t>(names.size()) + std::string(20, '\0');
      names += std::string(kernel.name) + '\0';
      ++nth;
      // Of another form, as .nv.info may have between those of interest.
      info += number<std::uint32_t>(0x00ff'1b03u);
      for (const auto& [attribute, value] : {std::pair{0x2f, kernel.registers}, {0x11, kernel.frame}})
        info += '\4' + std::string(1, static_cast<char>(attribute)) + number<std::uint16_t>(8) +
                number<std::uint32_t>(nth) + number<std::uint32_t>(value);
    }
    add("", 0, {});
    add(".shstrtab", 3, {});
    add(".strtab", 3, names);
    add(".symtab", 2, symbols, 2);
    add(".nv.info", 0x70000000, info, 3);
    for (const CubinKernel& kernel : kernels) add(".text." + std::string(kernel.name), 1, std::string(kernel.code));
    add(".nv.shared.reserved.0", 8, {});
    sections_[1].bytes = section_names_;
    write();
  }
  const std::string& text() const { return text_; }

 private:
  template <class T>
  static std::string number(std::uint64_t value) {
    std::string out;
    for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> 8 * i);
    return out;
  }
  struct Section {
    std::uint64_t name;
    std::uint32_t type, link;
    std::string bytes;
  };
  void add(const std::string& name, std::uint32_t type, std::string bytes, std::uint32_t link = 0) {
    sections_.push_back({section_names_.size(), type, link, std::move(bytes)});
    section_names_ += name + '\0';
  }
  void write() {
    std::string headers, bytes;
    for (const Section& one : sections_) {
      // One without bytes in the file may have a size.
      const std::uint64_t size = one.type == 8 ? 1 << 20 : one.bytes.size();
      headers += number<std::uint32_t>(one.name) + number<std::uint32_t>(one.type) + std::string(16, '\0') +
                 number<std::uint64_t>(64 + bytes.size()) + number<std::uint64_t>(size) +
                 number<std::uint32_t>(one.link) + std::string(20, '\0');
      bytes += one.bytes;
    }
    text_ = std::string("\177ELF\2\1\1", 7) + std::string(33, '\0') + number<std::uint64_t>(64 + bytes.size()) +
            std::string(10, '\0') + number<std::uint16_t>(64) + number<std::uint16_t>(sections_.size()) +
            number<std::uint16_t>(1) + bytes + headers;
  }

  std::vector<Section> sections_;
  std::string section_names_, text_;
};

}  // namespace attune::tests
