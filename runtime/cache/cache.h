// runtime/cache/cache.h — bytes on disk by what they were made from; knows nothing else of them
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>

#include "runtime/cache/entry.h"

namespace attune::runtime {

/// Where entries are. An empty path: there is no such folder.
struct CacheFolders {
  std::filesystem::path user;
  std::filesystem::path system{};  ///< asked for what the user's lacks; never written, nor locked
  bool read_only = false;          ///< the user's too
};

/// Entries that many processes share. Trouble with files is a miss and never a failure.
class Cache {
 public:
  static constexpr std::uint64_t usual_limit = 1ull << 30;
  static constexpr std::chrono::milliseconds usual_patience{60000};

  /// `limit`: bytes that the user's entries may have altogether; those that were not asked for the longest go first.
  explicit Cache(CacheFolders folders, std::uint64_t limit = usual_limit,
                 std::chrono::milliseconds patience = usual_patience);
  explicit Cache(std::filesystem::path user, std::uint64_t limit = usual_limit,
                 std::chrono::milliseconds patience = usual_patience);

  std::optional<CacheEntry> find(const CacheKey& key);
  /// Replaces what the user's folder has, in one step. False: it could not be kept.
  bool keep(const CacheKey& key, const CacheEntry& entry);
  /// Found, or built by one process at a time and kept. Who has waited for longer than the patience builds too.
  CacheEntry get(const CacheKey& key, const std::function<CacheEntry()>& build);

  const CacheFolders& folders() const { return folders_; }
  std::filesystem::path file_of(const CacheKey& key) const;
  /// What went wrong, or took long, since it was last asked.
  std::vector<std::string> notes();

 private:
  bool writes() const { return !folders_.user.empty() && !folders_.read_only; }
  std::optional<CacheEntry> find_in(const std::filesystem::path& folder, const CacheKey& key, bool may_write);
  void count(const CacheKey& kept, std::uint64_t bytes);
  void note(std::string what);

  CacheFolders folders_;
  std::uint64_t limit_;
  std::chrono::milliseconds patience_;
  std::mutex notes_mutex_;
  std::vector<std::string> notes_;
};

/// A file where an entry should be.
struct CacheFile {
  std::string name;  ///< as CacheKey::name has it
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::chrono::sys_time<std::chrono::microseconds> used{};
  bool regular = true;  ///< no folder, link, pipe or device
};
/// Of one folder, in the order of their names.
std::vector<CacheFile> cache_files(const std::filesystem::path& folder);

struct Pruned {
  std::size_t entries = 0;  ///< that were removed
  std::uint64_t bytes = 0;
  std::uint64_t left = 0;  ///< bytes
};
/// What was not asked for the longest goes first. Who has a removed entry open reads on.
struct PruneTo {
  std::uint64_t most = UINT64_MAX;            ///< nothing is done while there are no more bytes than these
  std::uint64_t to = UINT64_MAX;              ///< then the oldest go until there are no more than these
  std::optional<std::chrono::seconds> age{};  ///< what was last used longer ago goes in any case
  std::string spared{};                       ///< the name of one that goes only if it is larger than `most`
  bool dry = false;                           ///< removes nothing, and tells what it would
};
Pruned prune(const std::filesystem::path& folder, const PruneTo& to);

}  // namespace attune::runtime
