// runtime/platform/emulated/command.cpp — a command of the shell and what it says, and the Errors for what the system
// refuses: files, processes, memory
#include "runtime/platform/emulated/command.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/mutex.h"

namespace attune::runtime::emulated {

void refuse(const std::string& problem, int error) {
  const auto limit = [&](const char* fix) { throw Error("emulated-limit", problem, {}, std::strerror(error), fix); };
  if (error == EMFILE || error == ENFILE) limit("let the process open more files (ulimit -n)");
  if (error == EAGAIN || error == ENOMEM)
    limit("let the process have more processes (ulimit -u) and memory (ulimit -v)");
  throw Error("emulated-folder", problem, {}, std::strerror(error),
              "set TMPDIR to a folder with room that you may write");
}

void refuse_stacks(int error) {
  throw Error("emulated-limit", "there is no room for the stacks of an emulated kernel's threads", {},
              std::strerror(error),
              "emulate fewer multiprocessors, for example :sms=4, or raise ulimit -v and vm.max_map_count");
}

void refuse_library(const std::string& path, const std::string& why) {
  struct statvfs system {};
  if (statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC))
    throw Error("emulated-folder", fmt::format("{} cannot be loaded", path), {},
                "its file system is mounted with noexec", "set TMPDIR to a folder from which programs may run");
  throw Bug(fmt::format("an emulated kernel does not load: {}", why));
}

std::optional<Pipe> made_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  return Pipe{PipeEnd(ends[0]), PipeEnd(ends[1])};
}

int start_shell(pid_t& process, std::string command, const posix_spawn_file_actions_t& actions) {
  // SIGCHLD is reset: the shell would inherit that this process ignores it, and could not wait for its own children.
  sigset_t usual;
  sigemptyset(&usual);
  sigaddset(&usual, SIGCHLD);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::array<char*, 4> arguments{const_cast<char*>("sh"), const_cast<char*>("-c"), command.data(), nullptr};
  const int error = posix_spawn(&process, "/bin/sh", &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  return error;
}

Ran ran(const std::string& command) {
  const auto refuse_start = [](int error) { refuse("no command can be started to compile an emulated kernel", error); };
  std::optional<NoFork> whole(std::in_place);  // a child would keep the end that is written
  std::optional<Pipe> pipe = made_pipe();
  if (!pipe) refuse_start(errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, *pipe->to, 1);
  posix_spawn_file_actions_adddup2(&actions, *pipe->to, 2);
  // The shell prints its status as the last line, because waitpid finds none if the program ignores SIGCHLD or waits
  // for all children.
  pid_t process = 0;
  const int error = start_shell(process, "trap 'printf \"\\n%d\" $?' 0\n" + command, actions);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) refuse_start(error);
  pipe->to.close();
  whole.reset();
  Ran out;
  std::array<char, 4096> some;
  for (ssize_t n; (n = read(*pipe->from, some.data(), some.size())) != 0;)
    if (n > 0)
      out.said.append(some.data(), static_cast<std::size_t>(n));
    else if (errno != EINTR)
      break;
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
  const std::size_t last = out.said.rfind('\n');
  if (last == std::string::npos) return out;
  std::from_chars(out.said.data() + last + 1, out.said.data() + out.said.size(), out.status);
  out.said.resize(last);
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

}  // namespace attune::runtime::emulated
