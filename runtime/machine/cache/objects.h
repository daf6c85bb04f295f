// runtime/machine/cache/objects.h — compiled objects, by the compilers' inputs: from memory, bundles or disk, or
// compiled now, and what for
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/machine/cache/bundle.h"
#include "runtime/machine/cache/cache.h"
#include "runtime/machine/cache/single.h"
#include "runtime/machine/mutex.h"

namespace attune::runtime {

/// What a kernel is needed for, in words. Lives on the stack of a call and is handed to everything that may build a
/// kernel for it. The call is described only if a record or an Error needs the description.
class Purpose {
 public:
  struct Text {
    std::string record;   ///< one line of JSON
    std::string words;    ///< for people
    std::string command;  ///< the command that compiles the kernel beforehand
  };
  explicit Purpose(const Purpose* first = nullptr) : of_forward(first) {}
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;

  virtual Text describe() const = 0;

  const Purpose* const of_forward;  ///< of the forward that a backward computes first; null where there is none

 protected:
  ~Purpose() = default;

 private:
  friend void record_purpose(const Purpose* purpose);

  mutable std::atomic<bool> recorded_ = false;
};

/// Adds a line to the file of ATTUNE_RECORD, if there is one: once for a purpose. Throws an Error if it cannot be
/// written. `purpose` may be null: then nothing is recorded.
void record_purpose(const Purpose* purpose);
/// Throws the Error for a kernel that is found nowhere while compiling is off. `purpose` may be null.
[[noreturn]] void refuse_to_compile(const Purpose* purpose);

/// The origin of an object.
enum class Origin : std::uint8_t { memory, bundle, disk, compiler };

/// A request to a compiler.
struct Asked {
  /// Everything the compiler is handed. Bundles use this alone as their key, so that they serve machines without a
  /// compiler.
  std::string content;
  /// The compiler's exact version; empty text if there is none here. The key on disk covers both. Called only when
  /// needed, because a compiler may have to be opened first.
  std::function<std::string()> compiler{};
  /// The purpose of the object, for records and Errors; not part of any key. May be null.
  const Purpose* purpose = nullptr;
  std::string name{};  ///< of the kernel, for people; not part of any key

  /// The key in the folder on disk. None if there is no compiler here.
  std::optional<CacheKey> on_disk() const;
};

/// Every stored value was built for the same key, by this process or another; nothing more is known about it.
class Objects {
 public:
  using Kept = std::shared_ptr<const CacheEntry>;

  /// Without a cache, nothing is kept on disk.
  /// `in_memory`: how much stays there.
  explicit Objects(std::unique_ptr<Cache> disk = nullptr, const Limit<CacheEntry>& in_memory = {})
      : disk_(std::move(disk)), kept_(in_memory) {}

  /// Returns what exists, else calls `build` and keeps the result. Content is built by one thread at a time. With
  /// compiling off, throws an Error instead of building: see refuse_to_compile(). `origin` may be null.
  Kept get(const Asked& asked, const std::function<CacheEntry()>& build, Origin* origin = nullptr);
  /// Null if it would have to be built.
  Kept find(const Asked& asked);
  /// A bundle's facts about content that it does not hold: the findings from compiling a kernel that was not taken. No
  /// bytes.
  Kept facts(const std::string& content);
  static CacheKey key_of_facts(const std::string& content);

  /// Bundles that were added later are searched first.
  void add(std::shared_ptr<const Bundle> bundle);
  /// Recorded with the next entry that is asked for.
  void note_later(std::string text);
  void jit(bool on) { jit_ = on; }
  bool jit() const { return jit_; }

  Cache* disk() const { return disk_.get(); }

 private:
  Kept bundled(const CacheKey& key);
  Kept on_disk(const Asked& asked);
  Kept built(const Asked& asked, const std::function<CacheEntry()>& build, Origin& from);
  void record_notes();

  std::unique_ptr<Cache> disk_;
  std::atomic<bool> jit_ = true;
  Mutex mutex_;
  std::vector<std::shared_ptr<const Bundle>> bundles_;
  std::vector<std::string> notes_;
  Single<std::string, CacheEntry> kept_;
};

struct Options;
/// The folders for kernels; with a cache size of 0, only the system's.
CacheFolders cache_folders(const Options& options);

/// The process's own: with the folder of ATTUNE_CACHE, the bundles of ATTUNE_BUNDLE, and ATTUNE_JIT.
Objects& objects();

}  // namespace attune::runtime
