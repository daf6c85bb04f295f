// runtime/engines/emulated/compiler.cpp — the system's C++ compiler, found at first use: compiles CUDA source to a host
// library
#include "runtime/engines/emulated/compiler.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <memory>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/engines/emulated/command.h"
#include "runtime/engines/emulated/files.h"
#include "runtime/engines/emulated/refused.h"
#include "runtime/engines/emulated/resident.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"

namespace attune::runtime::emulated {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// gold, which links a kernel in half the time of ld, or else the compiler's own linker.
std::string linker_for(const char* compiler) {
  if (ran("ld.gold --version").status == 0) return "ld.gold";
  return first_line(ran(fmt::format("{} -print-prog-name=ld", compiler)).said);
}

/// The first compiler that finds the standard library's headers: clang++ may be installed without them. clang++ comes
/// first, because it compiles an unoptimised kernel in two thirds of g++'s time.
HostCompiler found() {
  constexpr std::array names{"clang++", "g++", "c++"};
  constexpr int not_found = 127;
  std::string refusal = fmt::format("none of {} is found on the PATH", fmt::join(names, ", "));
  for (const char* name : names) {
    const Ran one = ran(fmt::format("echo '#include <initializer_list>' | {} -std=c++20 -fsyntax-only -x c++ -", name));
    if (one.status == 0) return {name, linker_for(name), first_line(ran(fmt::format("{} --version", name)).said), {}};
    if (one.status != not_found) refusal = fmt::format("{} does not compile C++20: {}", name, first_line(one.said));
  }
  return {{}, {}, {}, refusal};
}

/// The instruction set extensions of this machine that speed up kernels' products and sums most.
std::string instructions() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return " -mavx2 -mfma";
#endif
  return {};
}

std::string flags() {
  // Kernels reinterpret registers as other types. A random mod spends most of its time in the compiler, and -Og takes
  // 0.23 s a kernel. Three backward tests took no longer with -O0: products are compiled with the library.
  return fmt::format("-x c++ -std=c++20 -O0 -w -Wno-psabi -fPIC -fno-exceptions -fno-rtti -fno-strict-aliasing "
                     "-fno-stack-protector -fvisibility=hidden -include codegen/cuda/emulated/builtins.cuh{}{}",
                     instructions(), options().lineinfo ? " -g" : " -fno-asynchronous-unwind-tables");
}
constexpr std::string_view entry = R"(
extern "C" __attribute__((visibility("default"))) const attune::emulated::Kernel attune_emulated_kernel{{
    "{1}", [](void* const* arguments) {{ attune::emulated::call(&{0}, arguments); }},
    [](unsigned nth) {{ return attune::emulated::bytes_of_argument(&{0}, nth); }}, &attune_machine}};
)";
/// The linker's version script. Headers of the standard library give their functions default visibility.
constexpr std::string_view exports = "{ global: attune_emulated_kernel; local: *; };\n";

int arch_of(const codegen::Source& source) {
  constexpr std::string_view option = "--gpu-architecture=sm_";
  for (const std::string& one : source.options)
    if (one.starts_with(option)) return std::atoi(one.c_str() + option.size());
  throw Bug("a source names no architecture");
}

std::vector<Patch>& patches() {
  static constinit Once<std::vector<Patch>> all;
  return all.get();
}

/// Writes the changed files to a folder that comes first in the include path.
void write_patched(const fs::path& own) {
  for (const Patch& one : patches()) {
    const auto all = codegen::headers();
    const auto file = std::ranges::find(all, one.file, &codegen::Header::name);
    if (file == all.end()) throw Bug(fmt::format("there is no device file {} to patch", one.file));
    std::string text = file->text;
    const std::size_t at = text.find(one.from);
    if (at == std::string::npos)
      throw Bug(fmt::format("{} does not hold what is to be patched: {}", one.file, one.from));
    text.replace(at, one.from.size(), one.to);
    write_below(own, one.file, without_shared(one.file, text));
  }
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(fmt::format("{} cannot be read", path.string()), errno);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

const HostCompiler& host_compiler() {
  static constinit Once<const HostCompiler> one;
  return one.get(&found);
}

std::string further_input() {
  std::string out = fmt::format("{}\n{}\n{}\n{}\n", codegen::emulated_headers_digest(), flags(), entry, exports);
  for (const Patch& one : patches()) out += fmt::format("{}\n{}\n{}\n", one.file, one.from, one.to);
  return out;
}

void set_patches(std::vector<Patch> of) { patches() = std::move(of); }

cuda::Binary compile(const codegen::Source& source) {
  if (host_compiler().version.empty()) throw Bug("a kernel was to be compiled without a compiler");
  write_device_files();
  const fs::path own = folder() / new_name("source"), made = own / "kernel.so";
  const std::string text = source.text + fmt::format(fmt::runtime(entry), source.symbol, source.name),
                    object = quoted((own / "kernel.o").string()), device_files = quoted(folder().string());
  const auto must = [&](const std::string& command) {
    Ran one = ran(command);
    if (one.status != 0)
      throw Bug(fmt::format("{} refuses a source:\n{}\n{}\n{}", host_compiler().version, one.said, command, text));
    return one.said;
  };
  const std::string compiler = fmt::format("{} {} -D__CUDA_ARCH__={}0", host_compiler().command, flags(),
                                           arch_of(source)),
                    to_device_files = fmt::format(" -I{0} -ffile-prefix-map={0}/=", device_files);
  cuda::Binary out;
  // Changed device files are in a folder of the source's own, and gdb reads the source from a file.
  const bool alone = !patches().empty() || !source.headers.empty() || options().lineinfo;
  if (const std::string bytes = alone ? "" : object_by_resident(compiler + to_device_files, source.name + ".cu", text);
      !bytes.empty()) {
    write_below(own, "kernel.o", bytes);
  } else {
    for (const codegen::Header& one : source.headers) write_below(own, one.name, without_shared(one.name, one.text));
    write_patched(own);
    write_below(own, source.name + ".cu", text);
    out.log = must(fmt::format("cd {0} && {1} -I{2}{3} -ffile-prefix-map={2}/= -c {4} -o {5}", device_files, compiler,
                               quoted(own.string()), to_device_files, quoted((own / (source.name + ".cu")).string()),
                               object));
  }
  // Without libraries: this process already has the functions that kernels call, and searching libm and libc takes the
  // linker 4 ms more.
  const std::string script = "exports.map";
  write_below(own, script, exports);
  out.log += must(fmt::format("{} -shared --version-script={} {} -o {}", host_compiler().linker,
                              quoted((own / script).string()), object, quoted(made.string())));
  out.cubin = bytes_of(made);
  out.symbol = "attune_emulated_kernel";
  if (!options().lineinfo) {
    std::error_code error;
    fs::remove_all(own, error);
  }
  return out;
}

}  // namespace attune::runtime::emulated
