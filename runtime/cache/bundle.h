// runtime/cache/bundle.h — many entries in one file, found by the content that they were made of
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cache/cache.h"

namespace attune::runtime {

struct BundleEntry {
  CacheKey key;
  std::string label;  ///< a line, for readers of the head
  CacheEntry entry;
};

/// A head of lines that `head` shows: how many entries there are, and each by its key, where it lies, how long it is
/// there and how long it was, and the digest of what lies there, in the order of keys; an empty line; the entries, each
/// as a file of the cache is, compressed where that makes it smaller. The same entries in any order make the same text;
/// of those of one key the first is taken.
std::string print_bundle(std::vector<BundleEntry> entries);

/// Read in place. May be used by many threads.
class Bundle {
 public:
  struct Item {
    CacheKey key;
    std::string_view label, stored;
    std::size_t size = 0;  ///< of the entry; more than is stored: it is compressed
    std::string_view digest;

    /// With suspicion, as what is in a file of the cache.
    ParsedEntry read() const;
  };
  /// No compressed entry is larger: what a head says is allocated before the entry is known to be one.
  static constexpr std::size_t most_compressed = std::size_t{64} << 20;

  /// An Error if the file cannot be read, if its head or its length is not as it was written, or if it is compressed
  /// and attune is built without zstd.
  static std::shared_ptr<const Bundle> open(const std::filesystem::path& path);
  /// `bytes` stay where they are for as long as the bundle lives. `name` is what an Error calls it.
  static std::shared_ptr<const Bundle> of(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::vector<Item>& items() const { return items_; }
  /// Null unless it is there.
  const Item* find(const CacheKey& key) const;

 private:
  Bundle(std::string name, std::string_view text, std::shared_ptr<const void> mapping);

  std::string name_;
  std::shared_ptr<const void> mapping_;  ///< of a file
  std::vector<Item> items_;
};

}  // namespace attune::runtime
