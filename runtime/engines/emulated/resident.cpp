// runtime/engines/emulated/resident.cpp — a resident compiler: one clang process compiles many sources
//
// clang takes 24 ms to start, and repeats a quarter of its further work for each source. A kernel took 0.10 s in a
// process of its own and takes 0.066 s in a resident one. `clang -cc1` compiles its inputs in order and opens an input
// only when the one before is done. The inputs are therefore pipes, which receive sources one by one, and object files
// come out of standard output.
//
// Parsing headers took half of the remaining time. The second source with the same head (the lines up to its first
// #include) makes a precompiled header, which further sources read instead.
#include "runtime/engines/emulated/resident.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
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

#include <fmt/format.h>

#include "runtime/engines/emulated/command.h"
#include "runtime/engines/emulated/files.h"
#include "runtime/machine/mutex.h"

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

  /// In a forked process: the parent keeps using the compiler, which reads a source until no process has its writing
  /// end open.
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

}  // namespace attune::runtime::emulated
