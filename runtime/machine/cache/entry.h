// runtime/machine/cache/entry.h — one file of the cache: a head of lines, then bytes; parsed without trusting the file
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace attune::runtime
