// runtime/platform/nvidia/cubin.cpp — a cubin's sections, symbols and attributes; every offset in it may be wrong
#include "runtime/platform/nvidia/nvrtc.h"

#include <cstring>

#include <elf.h>

namespace attune::runtime::cuda {
namespace {

// The attributes of .nv.info, as cuobjdump -elf names them. Each begins with its form and its number, a byte each. A
// sized one then has 16 bits of size and its value; others have 16 bits alone.
constexpr int sized = 4, frame_size = 0x11, register_count = 0x2f;
// Of a thread: what its instructions can name, and what local memory there is.
constexpr std::uint32_t most_registers = 255, most_frame = 512 << 10;

/// A number or a header at an offset; none beyond the end.
template <class T>
std::optional<T> value(std::string_view bytes, std::uint64_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return {};
  T out{};
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return out;
}

/// The text at an offset of a table of texts, each of which ends in a zero.
std::string_view text(std::string_view table, std::uint64_t at) {
  if (at >= table.size()) return {};
  const std::string_view rest = table.substr(at);
  return rest.substr(0, rest.find('\0'));
}

/// Empty, if a part of it is beyond the end.
std::string_view part(std::string_view bytes, std::uint64_t at, std::uint64_t size) {
  return at <= bytes.size() && size <= bytes.size() - at ? bytes.substr(at, size) : std::string_view();
}

}  // namespace

Cubin::Cubin(std::string_view bytes) : bytes_(bytes) {
  // 64 bits, of low order first.
  if (!bytes.starts_with(std::string_view(ELFMAG "\2\1", SELFMAG + 2))) return;
  const auto file = value<Elf64_Ehdr>(bytes, 0);
  if (!file || file->e_shentsize != sizeof(Elf64_Shdr)) return;
  headers_ = part(bytes, file->e_shoff, file->e_shnum * sizeof(Elf64_Shdr));
  sections_ = headers_.size() / sizeof(Elf64_Shdr);
  if (const auto found = section(file->e_shstrndx)) names_ = found->bytes;
  for (std::uint64_t i = 0; i < sections_; ++i)
    if (const auto found = section(i); found->type == SHT_SYMTAB) {
      symbols_ = *found;
      if (const auto texts = section(found->link)) symbol_names_ = texts->bytes;
      return;
    }
}

std::optional<Cubin::Section> Cubin::section(std::uint64_t nth) const {
  if (nth >= sections_) return {};
  const auto header = *value<Elf64_Shdr>(headers_, nth * sizeof(Elf64_Shdr));
  Section out{.name = text(names_, header.sh_name), .bytes = {}, .type = header.sh_type, .link = header.sh_link};
  if (out.type != SHT_NOBITS) out.bytes = part(bytes_, header.sh_offset, header.sh_size);
  return out;
}

std::optional<Cubin::Section> Cubin::named(std::string_view name) const {
  for (std::uint64_t i = 0; i < sections_; ++i)
    if (auto found = section(i); found->name == name) return found;
  return {};
}

std::string_view Cubin::symbol(std::uint64_t nth) const {
  const auto entry = value<Elf64_Sym>(symbols_.bytes, nth * sizeof(Elf64_Sym));
  return entry ? text(symbol_names_, entry->st_name) : std::string_view();
}

std::optional<KernelNeeds> Cubin::needs(std::string_view symbol) const {
  const auto info = named(".nv.info");
  if (!info) return {};
  std::optional<std::uint32_t> registers, frame;
  for (std::uint64_t at = 0; const auto form = value<std::uint8_t>(info->bytes, at);) {
    const auto attribute = value<std::uint8_t>(info->bytes, at + 1);
    const auto size = value<std::uint16_t>(info->bytes, at + 2);
    if (!size) return {};
    if (*form == sized && (*attribute == register_count || *attribute == frame_size)) {
      const auto of = value<std::uint32_t>(info->bytes, at + 4), needed = value<std::uint32_t>(info->bytes, at + 8);
      if (*size != 8 || !needed) return {};
      if (this->symbol(*of) == symbol) (*attribute == register_count ? registers : frame) = needed;
    }
    at += 4u + (*form == sized ? *size : 0u);
  }
  if (!registers || !frame || *registers == 0 || *registers > most_registers || *frame > most_frame) return {};
  return KernelNeeds{static_cast<int>(*registers), static_cast<int>(*frame)};
}

std::string_view Cubin::code(std::string_view symbol) const {
  constexpr std::string_view prefix = ".text.";
  for (std::uint64_t i = 0; i < sections_; ++i)
    if (const auto found = section(i); found->name.starts_with(prefix) && found->name.substr(prefix.size()) == symbol)
      return found->bytes;
  return {};
}

}  // namespace attune::runtime::cuda
