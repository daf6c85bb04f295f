// runtime/engines/emulated/command.cpp — a command of the shell, and what it says
#include "runtime/engines/emulated/command.h"

#include <array>
#include <cerrno>
#include <charconv>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "runtime/engines/emulated/refused.h"
#include "runtime/machine/mutex.h"

namespace attune::runtime::emulated {

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
