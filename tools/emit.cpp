// tools/emit.cpp — built kernels as plain files: sources, PTX, cubins, SASS, objects, LLVM IR, C headers
#include "tools/emit.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

#include "runtime/attention/offline/request.h"
#include "runtime/engines/cuda/nvrtc.h"
#include "tools/launch_header.h"

namespace attune::tools {
namespace {

namespace fs = std::filesystem;

const std::array<std::string, 7> kinds_{"cu", "ptx", "cubin", "sass", "o", "ll", "h"};

/// The output of a shell command, or nothing if it fails.
std::optional<std::string> printed(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return std::nullopt;
  std::string out;
  std::array<char, 4096> some{};
  while (const std::size_t got = std::fread(some.data(), 1, some.size(), pipe)) out.append(some.data(), got);
  return pclose(pipe) == 0 ? std::optional(out) : std::nullopt;
}

/// The command that prints SASS, up to the file's name; empty if no disassembler is installed.
std::string disassembler() {
  for (const char* folder : {"", "/usr/local/cuda/bin/"})
    for (const auto& [program, options] : {std::pair{"cuobjdump", " --dump-sass "}, {"nvdisasm", " "}}) {
      const std::string whole = std::string(folder) + program;
      if (printed(fmt::format("{} --version 2>/dev/null", whole))) return whole + options;
    }
  return {};
}

std::string sass_of(const std::string& cubin) {
  std::string path = (fs::temp_directory_path() / "attune-XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0) throw Bug("no temporary file can be made");
  close(file);
  std::ofstream(path, std::ios::binary) << cubin;
  const auto out = printed(fmt::format("{}{} 2>/dev/null", disassembler(), runtime::shell_quoted(path)));
  std::error_code ignored;
  fs::remove(path, ignored);
  if (!out || out->empty())
    throw Error("no-disassembler", "SASS cannot be shown", {.name = "--emit sass"}, "the disassembler rejects a cubin",
                "install a CUDA toolkit at least as new as NVRTC, or leave sass out");
  return *out;
}

std::string symbol_of(const runtime::CacheEntry& entry) {
  for (const auto& [name, value] : entry.facts)
    if (name == "symbol") return value;
  return {};
}

/// A kernel as a file of one kind; nothing if this sort of kernel has no such file.
std::optional<std::string> text_of(const runtime::Built& one, const std::string& kind, const std::string& name) {
  const std::string& bytes = one.entry.entry.bytes;
  if (!one.source) {
    if (kind == "o") return bytes;
    if (kind != "ll") return std::nullopt;
    codegen::Listing listing;
    one.write(&listing);
    return listing.after;
  }
  if (kind == "cu") return one.source->text;
  if (kind == "ptx") return runtime::cuda::compile(*one.source, runtime::cuda::Ptx::yes).ptx;
  if (kind == "cubin") return bytes;
  if (kind == "sass") return sass_of(bytes);
  // A backward needs several launches and a workspace between them.
  if (kind == "h" && one.of && one.way == codegen::Way::forward)
    return launch_header({.mod = one.of->mod,
                          .choice = one.choice ? &*one.choice : nullptr,
                          .offsets64 = one.offsets64,
                          .listed = one.listed,
                          .name = name,
                          .symbol = symbol_of(one.entry.entry),
                          .target = one.target});
  return std::nullopt;
}

/// A file name such as NAME-sm_90a-3f2a91c0
std::string name_of(const runtime::Built& one) {
  std::string stem = one.source ? one.source->name : one.entry.label.substr(0, one.entry.label.rfind(' '));
  std::replace(stem.begin(), stem.end(), ' ', '-');
  return fmt::format("{}-{}-{}", stem, one.target, one.entry.key.hex().substr(0, 8));
}

}  // namespace

void check_kinds(const std::vector<std::string>& kinds) {
  for (const std::string& kind : kinds) runtime::require_word("--emit", kind, kinds_);
  if (std::ranges::find(kinds, "sass") != kinds.end() && disassembler().empty())
    throw Error("no-disassembler", "SASS cannot be shown", {.name = "--emit sass"},
                "neither cuobjdump nor nvdisasm is found, in PATH or in /usr/local/cuda/bin",
                "install the CUDA toolkit, or leave sass out");
}

void check_targets(const std::vector<std::string>& kinds, const runtime::Manifest& manifest) {
  for (const std::string& kind : kinds) {
    const bool of_cpu = kind == "o" || kind == "ll";
    if (std::ranges::any_of(manifest.rows, [&](const auto& row) { return row.target.arch.has_value() != of_cpu; }))
      continue;
    throw Error("emit-target", fmt::format("no target has files of the kind {}", kind), {.name = "--emit " + kind},
                of_cpu ? "kernels of GPUs have cu, ptx, cubin, sass and h" : "kernels of CPUs have o and ll",
                fmt::format("add a target that is a {}, or leave {} out",
                            of_cpu ? "CPU, such as host" : "GPU, such as sm_90a", kind));
  }
}

std::vector<FileBytes> files_of(const runtime::Builds& builds, const std::vector<std::string>& kinds,
                                const fs::path& folder) {
  std::vector<FileBytes> out;
  for (const runtime::Built& one : builds.all) {
    if (one.only_facts || one.skeleton) continue;
    const std::string name = name_of(one);
    for (const std::string& kind : kinds)
      if (auto text = text_of(one, kind, name)) out.push_back({folder / (name + "." + kind), std::move(*text)});
  }
  return out;
}

}  // namespace attune::tools
