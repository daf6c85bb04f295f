// runtime/objects.cpp — what compilers made, by what they were given: in memory for the life of the process, and on
// disk
#include "runtime/objects.h"

#include "runtime/options.h"
#include "runtime/watch.h"

namespace attune::runtime {

namespace {

/// What the cache had to say. Asked for where nobody listens, too: else it would be told as news later.
void tell_notes(Cache* disk) {
  if (!disk) return;
  for (std::string& text : disk->notes()) note(watch::Noted::Of::cache, std::move(text));
}

}  // namespace

Objects::Kept Objects::get(const std::string& key, const std::function<CacheEntry()>& build, Origin* origin) {
  Origin from = Origin::memory;
  Kept out = kept_.get(key, [&] {
    from = Origin::disk;
    const auto compiled = [&] {
      from = Origin::compiler;
      return build();
    };
    return std::make_shared<const CacheEntry>(disk_ ? disk_->get(cache_key(key), compiled) : compiled());
  });
  if (origin) *origin = from;
  tell_notes(disk_.get());
  return out;
}

CacheFolders cache_folders(const Options& o) {
  return {.user = o.cache_bytes > 0 ? o.cache : "", .system = o.cache_system, .read_only = o.cache_read_only};
}

Objects& objects() {
  // Never destroyed: threads may compile until the process ends.
  static Objects& kept = *[] {
    const Options& o = options();
    CacheFolders folders = cache_folders(o);
    const bool on_disk = !folders.user.empty() || !folders.system.empty();
    return new Objects(on_disk ? std::make_unique<Cache>(std::move(folders), o.cache_bytes) : nullptr);
  }();
  return kept;
}

}  // namespace attune::runtime
