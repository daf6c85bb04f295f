// runtime/machine/cache/cache.h — bytes on disk, found by a key of what they were made from; knows nothing else about
// them
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/machine/mutex.h"

namespace attune::runtime {

/// A 256-bit hash of everything that was handed to a compiler. Its first half names the file.
struct CacheKey {
  std::uint64_t words[4] = {};
  bool operator==(const CacheKey&) const = default;
  std::string hex() const;   ///< all of it
  std::string name() const;  ///< the first half
};
/// Keys of another format give other file names.
CacheKey cache_key(std::string_view all);

using Facts = std::vector<std::pair<std::string, std::string>>;

/// A stored entry. `facts` are for human readers: lines `name: value` at the head of the file, not part of the key.
struct CacheEntry {
  Facts facts;
  std::string bytes;
};

/// A file's text: a head of lines that `head` shows, an empty line, the bytes. The head holds the checksums.
std::string print_entry(const CacheKey& key, const CacheEntry& entry);

/// The part before the bytes; the text may end right after it.
struct ParsedHead {
  std::string key;  ///< as CacheKey::hex gives it
  Facts facts;
  std::size_t size = 0, bytes = 0;  ///< size: of the head with its empty line; bytes: of the part after it
  std::string checksum;             ///< of the bytes after the head
  std::string wrong;                ///< the reason why this is not an entry, or empty
  bool other_format = false;        ///< written by another version of attune: nothing else is known
};
ParsedHead parse_head(std::string_view text);

struct ParsedEntry {
  std::optional<CacheEntry> entry;
  std::string wrong;  ///< the reason why there is no entry
  bool other_format = false;
};
/// `key`: as CacheKey::hex gives it, or the name that it begins with.
ParsedEntry parse_entry(std::string_view text, std::string_view key);
ParsedEntry parse_entry(std::string_view text, const CacheKey& key);

/// The folders of entries. An empty path: no such folder.
struct CacheFolders {
  std::filesystem::path user;
  std::filesystem::path system{};  ///< searched for what the user's lacks; never written or locked
  bool read_only = false;          ///< true: the user's folder is not written either
};

/// Entries shared by many processes. A file error counts as a miss, never as a failure.
class Cache {
 public:
  static constexpr std::uint64_t usual_limit = 1ull << 30;
  static constexpr std::chrono::milliseconds usual_patience{60000};

  /// `limit`: total bytes of the user's entries; above it, the least recently used are removed first.
  explicit Cache(CacheFolders folders, std::uint64_t limit = usual_limit,
                 std::chrono::milliseconds patience = usual_patience);
  explicit Cache(std::filesystem::path user, std::uint64_t limit = usual_limit,
                 std::chrono::milliseconds patience = usual_patience);

  std::optional<CacheEntry> find(const CacheKey& key);
  /// Replaces the entry in the user's folder, in one step. False: it could not be stored.
  bool keep(const CacheKey& key, const CacheEntry& entry);
  /// Finds the entry, or builds and stores it. One process at a time builds; a caller that has waited longer than
  /// `patience` builds too, and from then on waits for no other entry either.
  CacheEntry get(const CacheKey& key, const std::function<CacheEntry()>& build);

  const CacheFolders& folders() const { return folders_; }
  std::filesystem::path file_of(const CacheKey& key) const;
  /// Errors and long waits since the last call.
  std::vector<std::string> notes();

 private:
  bool writes() const { return !folders_.user.empty() && !folders_.read_only; }
  std::optional<CacheEntry> find_in(const std::filesystem::path& folder, const CacheKey& key, bool may_write);
  void count(const CacheKey& kept, std::uint64_t bytes);
  void note(std::string what);

  CacheFolders folders_;
  std::uint64_t limit_;
  std::atomic<std::chrono::milliseconds> patience_;
  Mutex notes_mutex_;
  std::vector<std::string> notes_;
};

/// A file where an entry should be.
struct CacheFile {
  std::string name;  ///< as CacheKey::name gives it
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::chrono::sys_time<std::chrono::microseconds> used{};
  bool regular = true;  ///< not a folder, link, pipe or device
};
/// The entries of one folder, sorted by name.
std::vector<CacheFile> cache_files(const std::filesystem::path& folder);

struct Pruned {
  std::size_t entries = 0;  ///< removed
  std::uint64_t bytes = 0;
  std::uint64_t left = 0;  ///< bytes that remain
};
/// Removes the least recently used entries first. A process that has a removed entry open can still read it.
struct PruneTo {
  std::uint64_t most = UINT64_MAX;            ///< no entry is removed for size while the total is at most this
  std::uint64_t to = UINT64_MAX;              ///< above `most`, the oldest are removed until the total is at most this
  std::optional<std::chrono::seconds> age{};  ///< entries unused for longer are removed in any case
  std::string spared{};                       ///< the name of an entry that is removed only if it is larger than `most`
  bool dry = false;                           ///< removes nothing, and reports what it would remove
};
Pruned prune(const std::filesystem::path& folder, const PruneTo& to);

}  // namespace attune::runtime
