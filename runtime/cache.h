// runtime/cache.h — bytes on disk by what they were made from; knows nothing else of them
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attune::runtime {

/// Of everything that was handed to a compiler. 256 bits, of which the first half names the file.
struct CacheKey {
  std::uint64_t words[4] = {};
  bool operator==(const CacheKey&) const = default;
  std::string hex() const;   ///< all of it
  std::string name() const;  ///< the first half
};
CacheKey cache_key(std::string_view all);

/// What is kept. `facts` are for readers: lines `name: value` at the head of the file, no part of the key.
struct CacheEntry {
  std::vector<std::pair<std::string, std::string>> facts;
  std::string bytes;
};

/// A file's text: a head of lines that `head` shows, an empty line, the bytes. Its checksums are in the head.
std::string print_entry(const CacheKey& key, const CacheEntry& entry);
struct ParsedEntry {
  std::optional<CacheEntry> entry;
  std::string wrong;  ///< why there is none
};
ParsedEntry parse_entry(std::string_view text, const CacheKey& key);

/// A folder of entries that many processes share. Trouble with files is a miss and never a failure.
class Cache {
 public:
  static constexpr std::chrono::milliseconds usual_patience{60000};

  /// `limit`: bytes that entries may have altogether; those that were not asked for the longest go first.
  explicit Cache(std::filesystem::path folder, std::uint64_t limit = 1ull << 30,
                 std::chrono::milliseconds patience = usual_patience);

  std::optional<CacheEntry> find(const CacheKey& key);
  /// Replaces what is there in one step. False: it could not be kept.
  bool keep(const CacheKey& key, const CacheEntry& entry);
  /// Found, or built by one process at a time and kept. Who has waited for longer than the patience builds too.
  CacheEntry get(const CacheKey& key, const std::function<CacheEntry()>& build);

  struct Found {
    std::string name;
    std::uint64_t bytes;
    std::filesystem::file_time_type used;
  };
  std::vector<Found> list() const;
  /// Removes what was not asked for the longest until no more than this is left.
  void prune(std::uint64_t bytes) const;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path file_of(const CacheKey& key) const;
  /// What went wrong, since it was last asked.
  std::vector<std::string> notes();

 private:
  void note(std::string what);

  std::filesystem::path folder_;
  std::uint64_t limit_;
  std::chrono::milliseconds patience_;
  std::mutex notes_mutex_;
  std::vector<std::string> notes_;
};

}  // namespace attune::runtime
