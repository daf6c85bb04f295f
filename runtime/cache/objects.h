// runtime/cache/objects.h — what compilers made, by what they were given: in memory, in bundles, on disk, or made now
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cache/bundle.h"
#include "runtime/cache/cache.h"
#include "runtime/cache/single.h"

namespace attune::runtime {

/// Where what was asked for came from.
enum class Origin : std::uint8_t { memory, bundle, disk, compiler };

/// What is asked of a compiler.
struct Asked {
  /// All that it is handed. A bundle has it under this alone, so that it serves where there is no compiler.
  std::string content;
  /// Which one it would be, to the last digit; empty text: there is none here. The folder has it under both. Called
  /// only where it matters, for a compiler may have to be opened first.
  std::function<std::string()> compiler{};

  /// Its own key in the folder. Nothing: there is no compiler here.
  std::optional<CacheKey> on_disk() const;
};

/// What is kept under a key was built by the same key, by this process or another: no more is known of it.
class Objects {
 public:
  using Kept = std::shared_ptr<const CacheEntry>;

  /// Without a cache, on no disk.
  explicit Objects(std::unique_ptr<Cache> disk = nullptr) : disk_(std::move(disk)) {}

  /// What there is, else what `build` gives, kept from then on. One build at a time of the same content. With compiling
  /// off an Error instead of a build: see purpose.h. `origin` may be null.
  Kept get(const Asked& asked, const std::function<CacheEntry()>& build, Origin* origin = nullptr);
  /// Null where it would have to be built.
  Kept find(const Asked& asked);
  /// What a bundle says of content that it does not have: what was found out by compiling it, and not taken. No bytes.
  Kept facts(const std::string& content);
  static CacheKey key_of_facts(const std::string& content);

  /// Later ones are looked at first.
  void add(std::shared_ptr<const Bundle> bundle);
  void jit(bool on) { jit_ = on; }
  bool jit() const { return jit_; }

  Cache* disk() const { return disk_.get(); }

 private:
  Kept bundled(const CacheKey& key);
  Kept on_disk(const Asked& asked);
  Kept built(const Asked& asked, const std::function<CacheEntry()>& build, Origin& from);
  void tell_notes();

  std::unique_ptr<Cache> disk_;
  std::atomic<bool> jit_ = true;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Bundle>> bundles_;
  std::vector<std::string> notes_;
  Single<std::string, CacheEntry> kept_;
};

struct Options;
/// Where kernels are kept: of a cache of no size only the system's.
CacheFolders cache_folders(const Options& options);

/// The process's own: the folder that ATTUNE_CACHE names, the bundles of ATTUNE_BUNDLE, and ATTUNE_JIT.
Objects& objects();

}  // namespace attune::runtime
