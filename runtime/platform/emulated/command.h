// runtime/platform/emulated/command.h — a command of the shell and what it says, and the Errors for what the system
// refuses: files, processes, memory
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <spawn.h>
#include <unistd.h>

namespace attune::runtime::emulated {

/// Throws the Error for a system call that failed with this value of errno, on a file below TMPDIR or on a process.
[[noreturn]] void refuse(const std::string& problem, int error);
/// The same where memory could not be mapped for the stacks of an emulated kernel's threads.
[[noreturn]] void refuse_stacks(int error);
/// The same where a kernel's library in TMPDIR could not be loaded; `why` is what the dynamic linker says.
[[noreturn]] void refuse_library(const std::string& path, const std::string& why);

class PipeEnd {
 public:
  explicit PipeEnd(int of = -1) : file_(of) {}
  PipeEnd(PipeEnd&& from) noexcept : file_(std::exchange(from.file_, -1)) {}
  PipeEnd& operator=(PipeEnd&& from) noexcept {
    std::swap(file_, from.file_);
    return *this;
  }
  ~PipeEnd() { close(); }
  void close() {
    if (file_ >= 0) ::close(std::exchange(file_, -1));
  }
  int operator*() const { return file_; }

 private:
  int file_;
};
struct Pipe {
  PipeEnd from, to;
};
/// None: errno says why.
std::optional<Pipe> made_pipe();

/// Starts a shell for a command. Returns 0, or why not as errno does.
int start_shell(pid_t& process, std::string command, const posix_spawn_file_actions_t& actions);

struct Ran {
  int status = -1;  ///< -1: a signal ended it
  std::string said;
};
/// Throws an Error if the process may have no more files or processes.
Ran ran(const std::string& command);

std::string quoted(const std::string& text);

}  // namespace attune::runtime::emulated
