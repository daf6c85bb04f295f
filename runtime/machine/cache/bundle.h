// runtime/machine/cache/bundle.h — many entries in one file, found by the content that they were made from; compressed
// where there is zstd
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/machine/cache/cache.h"

namespace attune::runtime {

/// True if this build has zstd. Without zstd, the functions below return nothing.
bool has_zstd();

/// Deterministic for one version of zstd. Nothing if the result would not be smaller.
std::optional<std::string> compressed(std::string_view text);

/// Nothing unless the result has exactly `size` bytes. All of them are allocated, so the caller must bound `size`.
std::optional<std::string> decompressed(std::string_view text, std::size_t size);

struct BundleEntry {
  CacheKey key;
  std::string label;  ///< a line, for readers of the head
  CacheEntry entry;
};

/// A head of text lines, which `head` shows; an empty line; the entries. The head gives the number of entries and, in
/// the order of keys, for each entry its key, where it begins, its stored and its full length, and the digest of its
/// stored bytes. An entry is stored as a file of the cache, compressed where that is smaller. The same entries in any
/// order make the same text; if several have one key, the first is taken.
std::string print_bundle(std::vector<BundleEntry> entries);

/// Entries are parsed when they are asked for. May be used by many threads.
class Bundle {
 public:
  struct Item {
    CacheKey key;
    std::string_view label, stored;
    std::size_t size = 0;  ///< of the entry; if larger than `stored`, it is compressed
    std::string_view digest;

    /// Checked like a file of the cache: it may be damaged.
    ParsedEntry read() const;
  };
  /// The largest compressed entry: the size that a head gives is allocated before the entry is checked.
  static constexpr std::size_t most_compressed = std::size_t{64} << 20;

  /// An Error if the file cannot be read, if its head or its length is not as it was written, or if it is compressed
  /// and attune is built without zstd.
  static std::shared_ptr<const Bundle> open(const std::filesystem::path& path);
  /// `bytes` must stay valid for as long as the bundle lives. `name`: the bundle's name in Errors.
  static std::shared_ptr<const Bundle> of(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::vector<Item>& items() const { return items_; }
  /// Null unless it is there.
  const Item* find(const CacheKey& key) const;

 private:
  Bundle(std::string name, std::string_view text, std::shared_ptr<const std::string> owned);

  std::string name_;
  std::shared_ptr<const std::string> owned_;  ///< the text of a file; null for bytes of the caller
  std::vector<Item> items_;
};

}  // namespace attune::runtime
