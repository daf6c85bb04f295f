// runtime/machine/cache/objects.cpp — compiled objects, by the compilers' inputs: from memory, bundles or disk, or
// compiled now, and what for
#include "runtime/machine/cache/objects.h"

#include <utility>

#include <attune/error.h>
#include <attune/offline.h>
#include <fmt/format.h>

#include "runtime/machine/files.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/waits.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

void record_purpose(const Purpose* purpose) {
  const std::string& path = options().record;
  if (path.empty() || !purpose || purpose->recorded_.exchange(true)) return;
  const std::string why = append_file(path, purpose->describe().record + "\n");
  if (!why.empty())
    throw Error("record-unwritable", "compiled kernels cannot be recorded", {.name = "ATTUNE_RECORD " + path}, why,
                "name a file that can be written, or unset ATTUNE_RECORD");
}

void refuse_to_compile(const Purpose* purpose) {
  const std::string problem = "a kernel is in no bundle, and compiling is off";
  if (!purpose)
    throw Error("kernel-missing", problem, {}, "the call that needs it is not known",
                "load a bundle that has it, or let attune compile: ATTUNE_JIT=on");
  const Purpose::Text text = purpose->describe();
  throw Error("kernel-missing", problem, {}, text.words,
              "build it and load its bundle, or let attune compile: ATTUNE_JIT=on\n" + text.command);
}

namespace {

/// Thrown instead of building.
struct NotThere {};

}  // namespace

std::optional<CacheKey> Asked::on_disk() const {
  if (!compiler) return cache_key(content);
  const std::string by = compiler();
  if (by.empty()) return std::nullopt;
  return cache_key(fmt::format("{}\nby {}", content, by));
}

Objects::Kept Objects::get(const Asked& asked, const std::function<CacheEntry()>& build, Origin* origin) {
  const CacheKey key = cache_key(asked.content);
  Origin from = Origin::memory;
  const auto make = [&] {
    record_purpose(asked.purpose);
    from = Origin::bundle;
    if (Kept found = bundled(key)) return found;
    from = Origin::disk;
    if (jit_) return built(asked, build, from);
    if (Kept found = on_disk(asked)) return found;
    refuse_to_compile(asked.purpose);
  };
  for (;;) try {
      Kept out = kept_.get(key.hex(), make).shared();
      if (origin) *origin = from;
      record_notes();
      return out;
    } catch (const NotThere&) {
      // The lookup this thread waited for was another thread's find(), which does not build: try again.
    }
}

Objects::Kept Objects::find(const Asked& asked) {
  const CacheKey key = cache_key(asked.content);
  try {
    return kept_
        .get(key.hex(),
             [&]() -> Kept {
               if (Kept found = bundled(key)) return found;
               if (Kept found = on_disk(asked)) return found;
               throw NotThere{};
             })
        .shared();
  } catch (const NotThere&) {
    return nullptr;
  }
}

CacheKey Objects::key_of_facts(const std::string& content) { return cache_key("facts\n" + content); }

Objects::Kept Objects::facts(const std::string& content) { return bundled(key_of_facts(content)); }

Objects::Kept Objects::bundled(const CacheKey& key) {
  constexpr std::size_t most_notes = 64;
  std::unique_lock lock(mutex_);
  const auto bundles = bundles_;
  // Unlock first, so that threads that want different entries decompress in parallel.
  lock.unlock();
  for (auto bundle = bundles.rbegin(); bundle != bundles.rend(); ++bundle) {
    const Bundle::Item* item = (*bundle)->find(key);
    if (!item) continue;
    ParsedEntry parsed = item->read();
    if (parsed.entry) return std::make_shared<const CacheEntry>(std::move(*parsed.entry));
    const std::lock_guard noting(mutex_);
    if (notes_.size() < most_notes)
      notes_.push_back(fmt::format("{} of {} is not used: {}", item->label, (*bundle)->name(), parsed.wrong));
  }
  return nullptr;
}

Objects::Kept Objects::on_disk(const Asked& asked) {
  const auto key = disk_ ? asked.on_disk() : std::nullopt;
  auto found = key ? disk_->find(*key) : std::nullopt;
  return found ? std::make_shared<const CacheEntry>(std::move(*found)) : nullptr;
}

Objects::Kept Objects::built(const Asked& asked, const std::function<CacheEntry()>& build, Origin& from) {
  const auto compiled = [&] {
    from = Origin::compiler;
    return build();
  };
  if (Kept found = on_disk(asked)) return found;
  const CompilerWorks working(asked.name);  // works here, or waits for another process's compiler
  const auto key = disk_ ? asked.on_disk() : std::nullopt;
  // Without a compiler, the build itself reports that.
  return std::make_shared<const CacheEntry>(key ? disk_->get(*key, compiled) : compiled());
}

// Collects the notes even without a listener: otherwise they would be recorded later, as news.
void Objects::record_notes() {
  std::vector<std::string> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(notes_);
  }
  if (disk_)
    for (std::string& text : disk_->notes()) all.push_back(std::move(text));
  for (std::string& text : all) note(watch::Notice::Of::cache, std::move(text));
}

void Objects::note_later(std::string text) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(text));
}

void Objects::add(std::shared_ptr<const Bundle> bundle) {
  const std::lock_guard lock(mutex_);
  bundles_.push_back(std::move(bundle));
}

CacheFolders cache_folders(const Options& o) {
  return {.user = o.cache_bytes > 0 && why_not_ours(o.cache).empty() ? o.cache : "",
          .system = o.cache_system,
          .read_only = o.cache_read_only};
}

Objects& objects() {
  static constinit Once<const std::unique_ptr<Objects>> kept;
  return *kept.get([] {
    const Options& o = options();
    CacheFolders folders = cache_folders(o);
    const bool on_disk = !folders.user.empty() || !folders.system.empty();
    const Limit<CacheEntry> in_memory{
        .count = o.loaded, .bytes = o.loaded_bytes, .bytes_of = [](const CacheEntry& one) { return one.bytes.size(); }};
    auto made = std::make_unique<Objects>(
        on_disk ? std::make_unique<Cache>(std::move(folders), o.cache_bytes) : nullptr, in_memory);
    if (const std::string why = why_not_ours(o.cache); !why.empty())
      made->note_later(fmt::format("{} is not used: {}", o.cache, why));
    for (const std::string& path : o.bundles) made->add(Bundle::open(path));
    made->jit(o.jit);
    return made;
  });
}

}  // namespace attune::runtime

namespace attune::offline {

void load(const std::string& path) { runtime::objects().add(runtime::Bundle::open(path)); }

void load_bytes(std::span<const std::byte> bytes) {
  runtime::objects().add(runtime::Bundle::of(bytes, "a bundle in memory"));
}

void jit(bool allowed) { runtime::objects().jit(allowed); }
bool jit() { return runtime::objects().jit(); }

}  // namespace attune::offline
