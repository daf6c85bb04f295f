// runtime/cache/entry.h — what one file of the cache holds: a head of lines, and bytes; read with suspicion
#pragma once

#include <cstdint>
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
/// Files of another format have other names.
CacheKey cache_key(std::string_view all);

using Facts = std::vector<std::pair<std::string, std::string>>;

/// What is kept. `facts` are for readers: lines `name: value` at the head of the file, no part of the key.
struct CacheEntry {
  Facts facts;
  std::string bytes;
};

/// A file's text: a head of lines that `head` shows, an empty line, the bytes. Its checksums are in the head.
std::string print_entry(const CacheKey& key, const CacheEntry& entry);

/// What comes before the bytes, of a text that may end after it.
struct ParsedHead {
  std::string key;  ///< as CacheKey::hex has it
  Facts facts;
  std::size_t size = 0, bytes = 0;  ///< of the head with its empty line; of what follows
  std::string checksum;             ///< of what follows
  std::string wrong;                ///< why it is none, or empty
  bool other_format = false;        ///< then it is none of this version of attune, and nothing is known of it
};
ParsedHead parse_head(std::string_view text);

struct ParsedEntry {
  std::optional<CacheEntry> entry;
  std::string wrong;  ///< why there is none
  bool other_format = false;
};
/// `key`: as CacheKey::hex has it, or the name that it begins with.
ParsedEntry parse_entry(std::string_view text, std::string_view key);
ParsedEntry parse_entry(std::string_view text, const CacheKey& key);

}  // namespace attune::runtime
