// tools/output/output.cpp — what a verb prints on stdout, and the files that it writes; a failed write is an Error
#include "tools/output/output.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <attune/error.h>

namespace attune::tools {
namespace {

[[noreturn]] void refuse_output() {
  if (errno == EPIPE) throw ClosedPipe{};
  throw Error("output-unwritable", "the output cannot be written", {.name = "stdout"},
              errno ? std::strerror(errno) : "an earlier write failed",
              "check where stdout goes, and the space on its disk");
}

}  // namespace

void write_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) refuse_output();
}

void write_line(std::string_view text) {
  write_out(text);
  write_out("\n");
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write_json(const nlohmann::ordered_json& value, int indent) { write_line(json_text(value, indent)); }

void flush_out() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) refuse_output();
}

namespace {

namespace fs = std::filesystem;

/// The files that the signal handler removes. The list changes only while the handler is not installed.
std::vector<std::string>& unfinished() {
  static std::vector<std::string> paths;
  return paths;
}

extern "C" void remove_unfinished_and_end(int signal) {
  for (const std::string& path : unfinished()) unlink(path.c_str());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// During this object's life, a signal that ends the process first removes these files. A signal that the caller
/// ignores stays ignored.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(std::vector<std::string> paths) {
    unfinished() = std::move(paths);
    for (std::size_t i = 0; i < signals.size(); ++i) {
      struct sigaction action {};
      action.sa_handler = remove_unfinished_and_end;
      sigaction(signals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) sigaction(signals[i], &action, nullptr);
    }
  }
  ~RemovedOnSignal() {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
    unfinished().clear();
  }
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  static constexpr std::array signals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, signals.size()> before_{};
};

Error unwritable(const fs::path& path, const std::string& why) {
  return Error("file-unwritable", "the file cannot be written", {.name = path.string()}, why,
               "check the folder, its permissions and the space on its disk");
}

/// Resolves a path's symbolic links; the file itself need not exist.
fs::path target_of_links(const fs::path& path) {
  fs::path at = path;
  // As many links as the kernel follows.
  for (int links = 0; links < 40; ++links) {
    std::error_code failed;
    if (!fs::is_symlink(fs::symlink_status(at, failed))) return at;
    const fs::path next = fs::read_symlink(at, failed);
    if (failed) throw unwritable(path, failed.message());
    at = at.parent_path() / next;
  }
  throw unwritable(path, std::strerror(ELOOP));
}

struct Destination {
  const FileBytes* file;
  fs::path path;
  std::string part;
};

Destination target_of(const FileBytes& file) {
  Destination out{&file, target_of_links(file.path), {}};
  std::error_code failed;
  const fs::file_status status = fs::status(out.path, failed);
  if (status.type() == fs::file_type::none) throw unwritable(file.path, failed.message());
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw Error("file-kind", "this is not a regular file", {.name = file.path.string()},
                fs::is_directory(status) ? out.path.string() + " is a folder"
                                         : out.path.string() + " is a device, a pipe or a socket",
                "name a file that may be replaced, or - for stdout");
  // In the folder of the final file, because a rename cannot cross file systems. The process id is in the name, so that
  // two processes do not collide.
  out.part = out.path.string() + fmt::format(".{}.part", ::getpid());
  return out;
}

}  // namespace

bool is_stdout(const fs::path& path) { return path == "-" || path == "/dev/stdout"; }

void write_files(std::span<const FileBytes> files) {
  std::vector<Destination> targets;
  for (const FileBytes& file : files)
    if (!is_stdout(file.path)) targets.push_back(target_of(file));
  std::vector<std::string> parts;
  for (const Destination& one : targets) parts.push_back(one.part);
  const RemovedOnSignal removed(std::move(parts));
  const auto refuse = [&](const Destination& failed) {
    const std::string reason = std::strerror(errno);
    std::error_code ignored;
    for (const Destination& one : targets) fs::remove(one.part, ignored);
    return unwritable(failed.file->path, reason);
  };
  for (const Destination& one : targets) {
    std::ofstream out(one.part, std::ios::binary);
    out.write(one.file->bytes.data(), static_cast<std::streamsize>(one.file->bytes.size()));
    out.close();
    if (!out) throw refuse(one);
  }
  for (const Destination& one : targets)
    if (std::rename(one.part.c_str(), one.path.c_str()) != 0) throw refuse(one);
  for (const FileBytes& file : files)
    if (is_stdout(file.path)) write_out(file.bytes);
}

}  // namespace attune::tools
