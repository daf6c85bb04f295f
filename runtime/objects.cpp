// runtime/objects.cpp — what compilers made, by what they were given: in memory for the life of the process, and on
// disk
#include "runtime/objects.h"

#include "runtime/options.h"

namespace attune::runtime {

Objects::Kept Objects::get(const std::string& key, const std::function<CacheEntry()>& build) {
  return kept_.get(
      key, [&] { return std::make_shared<const CacheEntry>(disk_ ? disk_->get(cache_key(key), build) : build()); });
}

Objects& objects() {
  // Never destroyed: threads may compile until the process ends.
  static Objects& kept = *[] {
    const Options& o = options();
    const bool on_disk = !o.cache.empty() && o.cache_bytes > 0;
    return new Objects(on_disk ? std::make_unique<Cache>(o.cache, o.cache_bytes) : nullptr);
  }();
  return kept;
}

}  // namespace attune::runtime
