// runtime/machine/cache/cache.cpp — bytes on disk, found by a key of what they were made from; knows nothing else about
// them
#include "runtime/machine/cache/cache.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/machine/files.h"

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

std::string why() { return std::strerror(errno); }

fs::path entry_path(const fs::path& folder, std::string_view name) {
  return folder / "entries" / name.substr(0, 2) / name.substr(2);
}

/// The reason why this folder of entries is not used: others could put code there. The cache's own folder above it has
/// already been checked.
std::string why_not_used(const fs::path& folder) {
  for (const fs::path& one : {folder.parent_path(), folder})
    if (const std::string why = why_not_ours_within(one); !why.empty()) return fmt::format("{}: {}", one.string(), why);
  return "";
}

bool is_name(std::string_view text, std::size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// The names in a folder, sorted. An error ends the listing: the caller sees fewer.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    out.push_back(at->path().filename().string());
  std::ranges::sort(out);
  return out;
}

void use_now(const fs::path& path) { utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW); }

/// Removes files that a killed process left unfinished: those over an hour old, and, for wrong clocks, those over an
/// hour in the future.
void remove_unfinished(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder / "unfinished", error), end; !error && at != end; at.increment(error)) {
    std::error_code one;
    const auto age = fs::file_time_type::clock::now() - at->last_write_time(one);
    if (!one && (age > std::chrono::hours(1) || age < -std::chrono::hours(1))) fs::remove(at->path(), one);
  }
}

// The file `total` holds the bytes of a folder's entries, so that not every write has to look at each of them: the sum
// at the last scan, plus what was kept since. Entries come and go without updating it, so it may be wrong; a scan from
// time to time corrects it.

struct Total {
  std::uint64_t bytes = 0, kept = 0;  ///< kept: entries since the last scan
};
constexpr std::uint64_t most_kept_unseen = 256;

std::optional<Total> read_total(const fs::path& folder) {
  const FileText file = read_file(folder / "total", 100);
  if (!file.text) return std::nullopt;
  Total out;
  const char *at = file.text->data(), *end = at + file.text->size();
  for (std::uint64_t* number : {&out.bytes, &out.kept}) {
    const auto [next, error] = std::from_chars(at, end, *number);
    if (error != std::errc{} || next == end) return std::nullopt;
    at = next + 1;
  }
  return at == end ? std::optional(out) : std::nullopt;
}

void write_total(const fs::path& folder, const Total& total) {
  const File file(folder / "total", O_WRONLY | O_CREAT);
  struct stat facts {};
  if (!file || fstat(file.at(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;
  const std::string text = fmt::format("{} {}\n", total.bytes, total.kept);
  const FileSizeLimit limit;
  // A half-written total reads as none.
  if (ftruncate(file.at(), 0) != 0 || pwrite(file.at(), text.data(), text.size(), 0) < 0) return;
}

CacheEntry timed(const std::function<CacheEntry()>& build) {
  const auto start = std::chrono::steady_clock::now();
  CacheEntry out = build();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  out.facts.emplace_back("seconds", fmt::format("{:.3f}", took.count()));
  return out;
}

}  // namespace

Cache::Cache(CacheFolders folders, std::uint64_t limit, milliseconds patience)
    : folders_(std::move(folders)), limit_(limit), patience_(patience) {}
Cache::Cache(fs::path user, std::uint64_t limit, milliseconds patience)
    : Cache(CacheFolders{.user = std::move(user)}, limit, patience) {}

fs::path Cache::file_of(const CacheKey& key) const { return entry_path(folders_.user, key.name()); }

void Cache::note(std::string what) {
  constexpr std::size_t most = 64;
  const std::lock_guard lock(notes_mutex_);
  if (notes_.size() < most) notes_.push_back(std::move(what));
}
std::vector<std::string> Cache::notes() {
  const std::lock_guard lock(notes_mutex_);
  return std::exchange(notes_, {});
}

std::optional<CacheEntry> Cache::find_in(const fs::path& folder, const CacheKey& key, bool may_write) {
  const fs::path path = entry_path(folder, key.name());
  const bool users = folder == folders_.user;
  if (const std::string why = users ? why_not_used(path.parent_path()) : ""; !why.empty()) {
    note(fmt::format("{} is skipped: {}", path.string(), why));
    return std::nullopt;
  }
  FileText file = read_file(path);
  if (file.missing) return std::nullopt;
  if (const std::string why = users ? why_not_ours_within(path) : ""; !why.empty()) file = {{}, false, why};
  ParsedEntry parsed = file.text ? parse_entry(*file.text, key) : ParsedEntry{std::nullopt, file.wrong, false};
  if (!parsed.entry) {
    const bool gone = may_write && !parsed.other_format && remove_whatever(path);
    note(fmt::format("{} is {}: {}", path.string(), gone ? "discarded" : "skipped", parsed.wrong));
  } else if (may_write) {
    // The file's time of change records its last use.
    use_now(path);
  }
  return std::move(parsed.entry);
}

std::optional<CacheEntry> Cache::find(const CacheKey& key) {
  if (!folders_.user.empty())
    if (auto found = find_in(folders_.user, key, writes())) return found;
  if (!folders_.system.empty()) return find_in(folders_.system, key, false);
  return std::nullopt;
}

bool Cache::keep(const CacheKey& key, const CacheEntry& entry) {
  if (!writes()) return false;
  const fs::path path = file_of(key), unfinished = folders_.user / "unfinished";
  const std::string text = print_entry(key, entry);
  std::string wrong = text.size() > limit_
                          ? fmt::format("it has {} bytes, and the cache holds at most {}", text.size(), limit_)
                          : "";
  if (wrong.empty()) wrong = why_not_used(path.parent_path());
  const auto write = [&] {
    return make_folders(path.parent_path()) && make_folders(unfinished)
               ? replace_file(path, text, (unfinished / "XXXXXX").string(), Durable::no)
               : why();
  };
  if (wrong.empty()) wrong = write();
  // The folders may have been removed since they were made.
  if (wrong == std::strerror(ENOENT)) wrong = write();
  if (!wrong.empty()) {
    note(fmt::format("{} cannot be written: {}", path.string(), wrong));
    return false;
  }
  count(key, text.size());
  return true;
}

void Cache::count(const CacheKey& kept, std::uint64_t bytes) {
  const fs::path locks = folders_.user / "locks";
  make_folders(locks);
  // If the lock is busy, skip; the next scan corrects the total.
  const Lock lock(locks / "total", milliseconds(50));
  if (!lock) return;
  std::optional<Total> total = read_total(folders_.user);
  if (total) total = {total->bytes + bytes, total->kept + 1};
  if (!total || total->bytes > limit_ || total->kept >= most_kept_unseen)
    // To a tenth below the limit, so that the next scan is not due at once.
    total = {prune(folders_.user, {.most = limit_, .to = limit_ / 10 * 9, .spared = kept.name()}).left, 0};
  write_total(folders_.user, *total);
}

CacheEntry Cache::get(const CacheKey& key, const std::function<CacheEntry()>& build) {
  if (auto found = find(key)) return std::move(*found);
  if (!writes()) return timed(build);
  const fs::path locks = folders_.user / "locks";
  make_folders(locks);
  const Lock lock(locks / key.name().substr(0, 3), patience_);
  const double waited = std::chrono::duration<double>(lock.waited()).count();
  if (!lock) {
    patience_ = milliseconds(0);
    note(fmt::format("{} was built without its lock{}", key.name(),
                     lock.holder().empty() ? "" : fmt::format(", which {} had for {:.2f} s", lock.holder(), waited)));
  } else if (waited > 0.01) {
    note(fmt::format("waited {:.2f} s for {} to build {}", waited,
                     lock.holder().empty() ? "another process" : lock.holder(), key.name()));
  }
  // Another process may have kept it while this one waited.
  if (auto found = find(key)) return std::move(*found);
  CacheEntry out = timed(build);
  keep(key, out);
  return out;
}

std::vector<CacheFile> cache_files(const fs::path& folder) {
  std::vector<CacheFile> out;
  for (const std::string& first : names_in(folder / "entries")) {
    if (!is_name(first, 2)) continue;
    for (const std::string& rest : names_in(folder / "entries" / first)) {
      if (!is_name(rest, 30)) continue;
      CacheFile one{.name = first + rest, .path = folder / "entries" / first / rest};
      struct stat facts {};
      if (lstat(one.path.c_str(), &facts) != 0) continue;
      one.regular = S_ISREG(facts.st_mode);
      one.bytes = static_cast<std::uint64_t>(facts.st_size);
      // Some file systems keep any time, and this clock ends in the year 294247.
      const std::int64_t second = std::clamp<std::int64_t>(facts.st_mtim.tv_sec, 0, 1'000'000'000'000);
      one.used += std::chrono::seconds(second) + std::chrono::microseconds(facts.st_mtim.tv_nsec / 1000);
      out.push_back(std::move(one));
    }
  }
  return out;
}

Pruned prune(const fs::path& folder, const PruneTo& to) {
  if (!to.dry) remove_unfinished(folder);
  std::vector<CacheFile> all = cache_files(folder);
  std::erase_if(all, [](const CacheFile& one) { return !one.regular; });
  const auto now = std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  Pruned out;
  for (CacheFile& one : all) {
    out.left += one.bytes;
    // A time in the future comes from a wrong clock; the last use is unknown. From now on the entry ages like the
    // others.
    if (one.used <= now + std::chrono::minutes(1)) continue;
    one.used = now;
    if (!to.dry) use_now(one.path);
  }
  std::ranges::sort(all, {}, &CacheFile::used);
  const bool many = out.left > to.most;
  for (const CacheFile& one : all) {
    const bool old = to.age && now - one.used > *to.age;
    const bool spared = one.name == to.spared && one.bytes <= to.most;
    if (!old && (spared || !many || out.left <= to.to)) continue;
    if (!to.dry && !remove_whatever(one.path) && errno != ENOENT) continue;
    ++out.entries;
    out.bytes += one.bytes;
    out.left -= one.bytes;
  }
  return out;
}

}  // namespace attune::runtime
