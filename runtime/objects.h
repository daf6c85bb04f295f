// runtime/objects.h — what compilers made, by what they were given: in memory for the life of the process, and on disk
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/cache.h"
#include "runtime/single.h"

namespace attune::runtime {

/// Where what was asked for came from.
enum class Origin : std::uint8_t { memory, disk, compiler };

/// What is kept under a key was built by the same key, by this process or another: no more is known of it.
class Objects {
 public:
  using Kept = std::shared_ptr<const CacheEntry>;

  /// Without a cache, in memory alone.
  explicit Objects(std::unique_ptr<Cache> disk = nullptr) : disk_(std::move(disk)) {}
  /// What is kept under `key`, else what `build` gives, kept from then on. One build per key at a time.
  /// `origin` may be null.
  Kept get(const std::string& key, const std::function<CacheEntry()>& build, Origin* origin = nullptr);
  Cache* disk() const { return disk_.get(); }

 private:
  std::unique_ptr<Cache> disk_;
  Single<std::string, CacheEntry> kept_;
};

struct Options;
/// Where kernels are kept: of a cache of no size only the system's.
CacheFolders cache_folders(const Options& options);

/// The process's own, in the folder that ATTUNE_CACHE names.
Objects& objects();

}  // namespace attune::runtime
