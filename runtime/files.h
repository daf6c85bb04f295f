// runtime/files.h — files that many processes share: read without ever waiting for one, locked with patience
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace attune::runtime {

/// A file that is closed.
class File {
 public:
  /// Never waits, as for the other end of a pipe, and follows no link. Made readable by its owner alone.
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
  std::string wrong;  ///< why there is no text, where something is there
};
/// Of a regular file: its first `most` bytes. Larger than any file should be is wrong too.
FileText read_file(const std::filesystem::path& path, std::size_t most = SIZE_MAX);

/// The next `most` bytes of an open file, or fewer if it ends before. Else errno says why not.
std::optional<std::string> read_open(int file, std::size_t most);

/// What `attempt` gives, which sets errno. Who has a file of a server open reads on in vain when another machine
/// replaces it (ESTALE): asked again, there is the new one.
template <class Attempt>
auto again_if_stale(const Attempt& attempt) {
  for (int more = 2;; --more) {
    errno = 0;
    auto out = attempt();
    if (errno != ESTALE || more == 0) return out;
  }
}

/// With those above it, private ones: what is in them is code. Else errno says why not.
bool make_folders(const std::filesystem::path& path);

/// Removes a file, or an empty folder in its place. Else errno says why not.
bool remove_whatever(const std::filesystem::path& path);

/// Held by one process, and one thread of it, at a time. Files of locks are never removed: who waits has them open.
class Lock {
 public:
  Lock(const std::filesystem::path& path, std::chrono::milliseconds patience);
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  explicit operator bool() const { return held_; }
  std::chrono::milliseconds waited() const { return waited_; }
  /// Who had it while this one waited, in words.
  const std::string& holder() const { return holder_; }

 private:
  bool abandoned();

  File file_;
  bool held_ = false;
  int pid_ = 0;  ///< of who has made it
  std::chrono::milliseconds waited_{0};
  std::string holder_;
};

}  // namespace attune::runtime
