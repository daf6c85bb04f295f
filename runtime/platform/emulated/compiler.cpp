// runtime/platform/emulated/compiler.cpp — the system's C++ compiler, found at first use: compiles CUDA source to a
// host library, many in one clang process
#include "runtime/platform/emulated/compiler.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/platform/emulated/command.h"
#include "runtime/platform/emulated/files.h"

// Of the one process. clang takes 24 ms to start, and repeats a quarter of its further work for each source. A kernel
// took 0.10 s in a process of its own and takes 0.066 s in a resident one. `clang -cc1` compiles its inputs in order
// and opens an input only when the one before is done. The inputs are therefore pipes, which receive sources one by
// one, and object files come out of standard output.
//
// Parsing headers took half of the remaining time. The second source with the same head (the lines up to its first
// #include) makes a precompiled header, which further sources read instead.

namespace attune::runtime::emulated {
namespace {

/// How many sources one process compiles; its start then costs 1.5 ms a source.
constexpr std::size_t most_sources = 16;
/// The longest wait for output, in ms: much more than a source takes on a busy machine.
constexpr int patience = 20000;

class Resident {
 public:
  /// `command` is that of a `clang -cc1` without input and output.
  explicit Resident(const std::string& command) {
    std::optional<Pipe> out = made_pipe();
    if (!out) return;
    std::string line = fmt::format("cd {} && exec {} -o -", quoted(folder().string()), command);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, *out->to, 1);
    posix_spawn_file_actions_adddup2(&actions, *out->to, 2);
    while (sources_.size() < most_sources) {
      std::optional<Pipe> one = made_pipe();
      // Leaves half of the files that may be open to the program: the system gives the lowest free number first.
      if (!one || *one->to >= sysconf(_SC_OPEN_MAX) / 2) break;
      // Duplicated to its own number, the file is inherited by the process.
      posix_spawn_file_actions_adddup2(&actions, *one->from, *one->from);
      line += fmt::format(" /dev/fd/{}", *one->from);
      sources_.push_back(std::move(*one));
    }
    if (sources_.empty() || start_shell(process_, line, actions) != 0) process_ = 0;
    posix_spawn_file_actions_destroy(&actions);
    out_ = std::move(out->from);
  }
  ~Resident() {
    // If the program ignores SIGCHLD, an ended process is gone, and its number may belong to another process.
    if (!process_ || waitpid(process_, nullptr, WNOHANG) != 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  /// In a forked process: the parent keeps using the compiler, which reads a source until no process holds the
  /// writing end of that source's pipe.
  void leave_to_parent() {
    process_ = 0;
    sources_.clear();
  }
  bool takes_more() const { return process_ && nth_ < sources_.size(); }

  /// Empty if the compiler fails; it then takes no further sources.
  std::string object_of(std::string_view source) {
    if (!sent(source)) return failed();
    std::string out;
    for (std::size_t size = 0; size == 0 || out.size() < size;) {
      pollfd one{.fd = *out_, .events = POLLIN, .revents = 0};
      const int ready = poll(&one, 1, patience);
      if (ready < 0 && errno == EINTR) continue;
      std::array<char, 65536> some;
      const ssize_t n = ready > 0 ? read(*out_, some.data(), some.size()) : 0;
      if (n <= 0) return failed();
      out.append(some.data(), static_cast<std::size_t>(n));
      // Messages come out there too.
      if (!out.starts_with(std::string_view(ELFMAG).substr(0, out.size()))) return failed();
      if (out.size() >= sizeof(Elf64_Ehdr)) size = size_of_elf(out.data());
    }
    return out;
  }

 private:
  bool sent(std::string_view source) {
    const NoFork whole;  // a child would keep the end that is written
    // This process keeps the reading end open, too: otherwise a write to a dead compiler would raise SIGPIPE.
    Pipe& pipe = sources_[nth_++];
    if (fcntl(*pipe.to, F_GETPIPE_SZ) < static_cast<int>(source.size())) return false;
    if (write(*pipe.to, source.data(), source.size()) != static_cast<ssize_t>(source.size())) return false;
    pipe.to.close();
    pipe.from.close();
    return true;
  }
  std::string failed() {
    nth_ = sources_.size();
    return {};
  }

  pid_t process_ = 0;
  std::vector<Pipe> sources_;
  std::size_t nth_ = 0;  ///< the source that comes next
  PipeEnd out_;
};

/// The `clang -cc1` command that `command` runs, without input and output; empty if that is another compiler.
std::string command_of_clang(const std::string& command) {
  const Ran told = ran(command + " '-###' -c - -o -");
  constexpr std::string_view input = R"( "-")", output = R"( "-o" "-")", keeps = R"( "-disable-free")";
  std::string line = told.said;
  while (line.ends_with('\n')) line.pop_back();
  line = line.substr(line.rfind('\n') + 1);
  const std::size_t out = line.find(output);
  if (told.status != 0 || line.find(R"( "-cc1" )") == line.npos || !line.ends_with(input) || out == line.npos)
    return {};
  line.erase(line.size() - input.size());
  line.erase(out, output.size());
  // With that option, the memory of each source would stay until the process ends.
  if (const std::size_t at = line.find(keeps); at != line.npos) line.erase(at, keeps.size());
  return line;
}

/// The lines of a source up to its first #include, without comments. A precompiled header can replace them, because
/// every device file has `#pragma once`. Empty if the source includes nothing.
std::string head_of(std::string_view source) {
  std::string out;
  while (!source.empty()) {
    const std::string_view line = source.substr(0, source.find('\n'));
    source.remove_prefix(std::min(line.size() + 1, source.size()));
    if (line.starts_with("//")) continue;
    if (!line.starts_with('#')) break;
    out += fmt::format("{}\n", line);
    if (line.starts_with("#include ")) return out;
  }
  return {};
}

/// The compilers of this process. Each thread that compiles takes one, so several compile at a time.
class Residents {
 public:
  Residents() {
    pthread_atfork(nullptr, nullptr, [] {
      for (const auto& one : all().taken_) one->leave_to_parent();
      for (const auto& one : all().free_) one.second->leave_to_parent();
      all().free_.clear();
    });
    std::atexit([] {
      const std::lock_guard lock(all().mutex_);
      all().free_.clear();
    });
  }
  static Residents& all() {
    static constinit Once<Residents> made;
    return made.get();
  }

  std::string object_of(const std::string& plain, const std::string& head, std::string_view source) {
    const std::string command = with_header(plain, head);
    std::unique_ptr<Resident> one = take(command);
    if (!one) return {};
    std::string out = one->object_of(source);
    if (out.empty()) ++failures_;
    give_back(command, std::move(one));
    return out;
  }

 private:
  struct Header {
    std::size_t sources = 0;  ///< how many sources have this head
    std::string option;       ///< the option that reads the precompiled header; empty if there is none
  };

  /// `command`, with the option that reads a precompiled header if this head has one. Making it takes about as long as
  /// compiling a source; each further source then compiles in a fifth to two thirds less time.
  std::string with_header(const std::string& command, const std::string& head) {
    {
      const std::lock_guard lock(mutex_);
      const auto known = commands_.find(command);
      if (head.empty() || known == commands_.end() || known->second.empty()) return command;
      Header& one = headers_[{command, head}];
      if (!one.option.empty()) return command + one.option;
      if (++one.sources != 2) return command;
    }
    const std::string name = new_name("head"), header = quoted((folder() / name).string());
    write_below(folder(), name, head);
    if (ran(fmt::format("{} -x c++-header {} -o {}.pch", command, header, header)).status != 0) return command;
    const std::lock_guard lock(mutex_);
    return command + (headers_[{command, head}].option = fmt::format(" -include-pch {}.pch", header));
  }

  /// Null if there can be none.
  std::unique_ptr<Resident> take(const std::string& command) {
    std::optional<std::string> own;
    {
      const std::lock_guard lock(mutex_);
      // A wrong source makes one compiler fail. After more failures, starting further compilers wastes time.
      if (failures_ > most_failures) return {};
      for (auto one = free_.begin(); one != free_.end(); ++one)
        if (one->first == command) {
          std::unique_ptr<Resident> out = std::move(one->second);
          free_.erase(one);
          taken_.insert(out.get());
          return out;
        }
      if (const auto known = commands_.find(command); known != commands_.end()) own = known->second;
    }
    // Without the lock: a command takes 20 ms.
    if (!own) own = command_of_clang(command);
    const NoFork whole;  // a child must find the compiler in `taken_`, or not at all
    auto out = own->empty() ? nullptr : std::make_unique<Resident>(*own);
    const std::lock_guard lock(mutex_);
    commands_[command] = *own;
    if (!out || !out->takes_more()) return {};
    taken_.insert(out.get());
    return out;
  }
  void give_back(const std::string& command, std::unique_ptr<Resident> one) {
    const std::lock_guard lock(mutex_);
    taken_.erase(one.get());
    if (one->takes_more()) free_.emplace_back(command, std::move(one));
    if (free_.size() > most_free) free_.erase(free_.begin());
  }

  static constexpr int most_failures = 3;
  /// Each holds some 100 MB.
  static constexpr std::size_t most_free = 12;
  Mutex mutex_;
  std::map<std::pair<std::string, std::string>, Header> headers_;  ///< by command and head
  std::map<std::string, std::string> commands_;                    ///< clang's own, by the command
  std::vector<std::pair<std::string, std::unique_ptr<Resident>>> free_;
  std::set<Resident*> taken_;
  std::atomic<int> failures_ = 0;
};

}  // namespace

std::string object_by_resident(const std::string& command, const std::string& name, const std::string& source) {
  return Residents::all().object_of(command, head_of(source), fmt::format("#line 1 \"{}\"\n{}", name, source));
}

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
