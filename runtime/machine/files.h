// runtime/machine/files.h — files shared by many processes: reads never block, locks are waited for up to a limit,
// writes take one step
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace attune::runtime {

/// A file that its destructor closes.
class File {
 public:
  /// Never blocks, for example on the other end of a pipe, and follows no link. Files are created readable by their
  /// owner alone.
  File(const std::filesystem::path& path, int flags);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return at_ >= 0; }
  int at() const { return at_; }

 private:
  int at_;
};

struct FileText {
  std::optional<std::string> text;
  bool missing = false;
  std::string wrong;  ///< why there is no text, if the path exists
};
/// The first `most` bytes of a regular file. A file larger than any kernel could be has no text: `wrong` says so.
FileText read_file(const std::filesystem::path& path, std::size_t most = SIZE_MAX);

/// The next `most` bytes of an open file, or fewer if it ends before. None if reading fails; errno says why.
std::optional<std::string> read_open(int file, std::size_t most);

/// In one write, so that texts of threads and processes stay whole. An error has nowhere to be reported.
void write_text(int file, std::string_view text);

/// Returns what `attempt` gives; `attempt` sets errno. On a network file system, reading an open file fails with ESTALE
/// after another machine has replaced it; another attempt finds the new file.
template <class Attempt>
auto again_if_stale(const Attempt& attempt) {
  for (int more = 2;; --more) {
    errno = 0;
    auto out = attempt();
    if (errno != ESTALE || more == 0) return out;
  }
}

/// Makes the folder and those above it, private to the user because they hold code. On failure errno says why.
bool make_folders(const std::filesystem::path& path);

/// The reason why nobody should run code from this folder: all users may write there, or its owner is neither this user
/// nor root. Empty for a folder that does not exist.
std::string why_not_ours(const std::filesystem::path& folder);
/// The same for a file or a folder within such a folder, which may not be a link either.
std::string why_not_ours_within(const std::filesystem::path& path);

/// While one lives, a write beyond the limit on file sizes (ulimit -f) fails with EFBIG instead of ending the process.
/// It blocks SIGXFSZ in this thread only, so that the signal's disposition stays the program's.
class FileSizeLimit {
 public:
  FileSizeLimit();
  ~FileSizeLimit();
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  bool blocked_;  ///< by this object
};

/// Removes a file, or an empty folder in its place. On failure errno says why.
bool remove_whatever(const std::filesystem::path& path);

/// Held by one thread of one process at a time. Lock files are never removed, because waiters have them open.
class Lock {
 public:
  Lock(const std::filesystem::path& path, std::chrono::milliseconds patience);
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  explicit operator bool() const { return held_; }
  std::chrono::milliseconds waited() const { return waited_; }
  /// The holder while this one waited, in words.
  const std::string& holder() const { return holder_; }

 private:
  bool abandoned();

  File file_;
  bool held_ = false;
  int pid_ = 0;  ///< the process that made it
  std::chrono::milliseconds waited_{0};
  std::string holder_;
};

/// The whole text of a file or a pipe. Throws an Error, whose advice is `fix`, if the file does not exist or cannot be
/// read.
std::string read_text(const std::filesystem::path& path, const std::string& fix);

/// yes: the file must survive a loss of power as soon as it is replaced. A file that is checked when read need not.
enum class Durable { no, yes };

/// Writes to `temporary` first, which ends in XXXXXX, is on the same file system and is readable by its owner alone.
/// Returns an empty text, or the error; then nothing is left behind.
std::string replace_file(const std::filesystem::path& path, std::string_view text, std::string temporary,
                         Durable durable);

/// Appends a text in one piece, so that texts of several processes do not mix. Returns an empty text, or the error.
std::string append_file(const std::filesystem::path& path, std::string_view text);

}  // namespace attune::runtime
