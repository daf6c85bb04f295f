// runtime/machine/files.cpp — files shared by many processes: reads never block, locks are waited for up to a limit,
// writes take one step
#include "runtime/machine/files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds, std::chrono::steady_clock;

/// No kernel comes near this size; a damaged file system may report any size.
constexpr std::size_t largest_file = std::size_t{1} << 30;

FileText wrong(int error) {
  if (error == ENOENT || error == ENOTDIR) return {std::nullopt, true, {}};
  return {std::nullopt, false, error == ELOOP ? "it is a symbolic link" : std::strerror(error)};
}

/// Leaves errno at 0 unless a call fails.
FileText read_once(const fs::path& path, std::size_t most) {
  const File file(path, O_RDONLY);
  if (!file) return wrong(errno);
  struct stat facts {};
  if (fstat(file.at(), &facts) != 0) return wrong(errno);
  if (!S_ISREG(facts.st_mode)) return {std::nullopt, false, "it is not a regular file"};
  const auto size = static_cast<std::size_t>(facts.st_size);
  if (size > largest_file) return {std::nullopt, false, fmt::format("it has {} bytes", size)};
  std::optional<std::string> out = read_open(file.at(), std::min(size, most));
  if (!out) return wrong(errno);
  return {std::move(out), false, {}};
}

std::string why_others_write(const struct stat& facts) {
  if (facts.st_mode & S_IWOTH) return S_ISDIR(facts.st_mode) ? "all users may write there" : "all users may write it";
  if (facts.st_uid == geteuid() || facts.st_uid == 0) return "";
  return fmt::format("it belongs to the user {}, who is not you", facts.st_uid);
}

std::string host() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

struct Holder {
  long pid = 0;
  std::string host;
};

/// Parses a lock file, `pid host`. Nothing if the lock is free or its holder has not written yet.
std::optional<Holder> holder_in(int file) {
  std::array<char, 300> text{};
  const ssize_t got = pread(file, text.data(), text.size(), 0);
  const std::string_view line(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t space = line.find(' '), end = line.find('\n');
  if (space == std::string_view::npos || end == std::string_view::npos || end < space) return std::nullopt;
  Holder out;
  if (std::from_chars(line.data(), line.data() + space, out.pid).ptr != line.data() + space || out.pid <= 0)
    return std::nullopt;
  out.host = line.substr(space + 1, end - space - 1);
  return out;
}

}  // namespace

File::File(const fs::path& path, int flags)
    : at_(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW, 0600)) {}
File::~File() {
  if (at_ >= 0) close(at_);
}

std::optional<std::string> read_open(int file, std::size_t most) {
  std::string out(most, '\0');
  std::size_t done = 0;
  while (done < most) {
    const ssize_t got = read(file, out.data() + done, most - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  errno = 0;
  out.resize(done);
  return out;
}

FileText read_file(const fs::path& path, std::size_t most) {
  return again_if_stale([&] { return read_once(path, most); });
}

std::string why_not_ours(const fs::path& folder) {
  struct stat facts {};
  if (stat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) return "";
  return why_others_write(facts);
}

std::string why_not_ours_within(const fs::path& path) {
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0) return "";
  return S_ISLNK(facts.st_mode) ? "it is a symbolic link" : why_others_write(facts);
}

bool make_folders(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return true;
  return errno == ENOENT && path.has_parent_path() && path.parent_path() != path && make_folders(path.parent_path()) &&
         (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST);
}

bool remove_whatever(const fs::path& path) {
  return unlink(path.c_str()) == 0 || ((errno == EISDIR || errno == EPERM) && rmdir(path.c_str()) == 0);
}

void write_text(int file, std::string_view text) {
  const FileSizeLimit limit;
  while (write(file, text.data(), text.size()) < 0 && errno == EINTR) {
  }
}

FileSizeLimit::FileSizeLimit() {
  sigset_t signal, before;
  sigemptyset(&signal);
  sigaddset(&signal, SIGXFSZ);
  blocked_ = pthread_sigmask(SIG_BLOCK, &signal, &before) == 0 && sigismember(&before, SIGXFSZ) == 0;
}

FileSizeLimit::~FileSizeLimit() {
  if (!blocked_) return;
  const int error = errno;
  sigset_t signal;
  sigemptyset(&signal);
  sigaddset(&signal, SIGXFSZ);
  // Takes the signal, if there is one: it would end the process once it is no longer blocked.
  const timespec at_once{};
  sigtimedwait(&signal, nullptr, &at_once);
  pthread_sigmask(SIG_UNBLOCK, &signal, nullptr);
  errno = error;
}

Lock::Lock(const fs::path& path, milliseconds patience) : file_(path, O_RDWR | O_CREAT) {
  const auto begin = steady_clock::now();
  auto abandoned_since = steady_clock::time_point::max();
  auto pause = milliseconds(1);
  while (file_ && flock(file_.at(), LOCK_EX | LOCK_NB) != 0) {
    const bool wait = errno == EWOULDBLOCK || errno == EINTR;
    const auto now = steady_clock::now();
    waited_ = std::chrono::duration_cast<milliseconds>(now - begin);
    // For a moment the file may name the previous holder.
    if (!abandoned())
      abandoned_since = steady_clock::time_point::max();
    else if (abandoned_since == steady_clock::time_point::max())
      abandoned_since = now;
    if (!wait || waited_ >= patience || (abandoned_since < now && now - abandoned_since > std::chrono::seconds(1)))
      return;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, milliseconds(50));
  }
  held_ = static_cast<bool>(file_);
  pid_ = getpid();
  struct stat facts {};
  if (!held_ || fstat(file_.at(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;
  const std::string mine = fmt::format("{} {}\n", pid_, host());
  const FileSizeLimit limit;
  // If the write fails, waiters cannot name the holder.
  [[maybe_unused]] const ssize_t wrote = pwrite(file_.at(), mine.data(), mine.size(), 0);
}

Lock::~Lock() {
  // In a child that was forked meanwhile, the lock is still the parent's.
  if (!held_ || getpid() != pid_) return;
  [[maybe_unused]] const int cut = ftruncate(file_.at(), 0);
  // Closing is not enough while such a child has the file open too.
  flock(file_.at(), LOCK_UN);
}

/// True if the holder has ended: only a child that it forked then keeps the lock, and will never release it.
bool Lock::abandoned() {
  const auto holder = holder_in(file_.at());
  if (!holder) return false;
  const bool here = holder->host == host();
  holder_ = holder->pid == getpid() && here ? "another thread of this process"
                                            : fmt::format("process {} of {}", holder->pid, holder->host);
  return here && kill(static_cast<pid_t>(holder->pid), 0) != 0 && errno == ESRCH;
}

std::string read_text(const std::filesystem::path& path, const std::string& fix) {
  const Place where{.name = path.string()};
  std::error_code failed;
  const auto status = std::filesystem::status(path, failed);
  if (status.type() == std::filesystem::file_type::not_found)
    throw Error("file-missing", "there is no such file", where, path.string() + " does not exist", fix);
  if (std::filesystem::is_directory(status))
    throw Error("file-kind", "this is not a regular file", where, path.string() + " is a folder", fix);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  if (file && file.peek() != std::ifstream::traits_type::eof()) out << file.rdbuf();
  if (!file.is_open() || file.bad())
    throw Error("file-unreadable", "the file cannot be read", where, failed ? failed.message() : std::strerror(errno),
                fix);
  return out.str();
}

namespace {

bool write_all(int file, std::string_view text) {
  const FileSizeLimit limit;
  while (!text.empty()) {
    const ssize_t wrote = write(file, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return true;
}

}  // namespace

std::string replace_file(const std::filesystem::path& path, std::string_view text, std::string temporary,
                         Durable durable) {
  const int file = mkostemp(temporary.data(), O_CLOEXEC);
  if (file < 0) return std::strerror(errno);
  bool good = write_all(file, text) && (durable == Durable::no || fsync(file) == 0);
  good = close(file) == 0 && good;
  good = good && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (good) return {};
  std::string why = std::strerror(errno);
  unlink(temporary.c_str());
  return why;
}

std::string append_file(const std::filesystem::path& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return std::strerror(errno);
  const FileSizeLimit limit;
  const ssize_t wrote = write(file, text.data(), text.size());
  std::string why = wrote < 0 ? std::strerror(errno) : "the disk is full";
  const bool good = std::cmp_equal(wrote, text.size());
  close(file);
  return good ? std::string() : why;
}

}  // namespace attune::runtime
