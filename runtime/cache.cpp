// runtime/cache.cpp — bytes on disk by what they were made from; knows nothing else of them
#include "runtime/cache.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/replace.h"
#include "runtime/watch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view magic = "attune cache 1\n";
constexpr std::string_view bytes_line = "bytes: ", checksum_line = "checksum: ", head_line = "head: ";

std::string hex(XXH128_hash_t h) { return fmt::format("{:016x}{:016x}", h.high64, h.low64); }
std::string checksum(std::string_view text) { return hex(XXH3_128bits(text.data(), text.size())); }

std::string why() { return std::strerror(errno); }

/// A file that is closed.
class File {
 public:
  File(const fs::path& path, int flags) : at_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (at_ >= 0) close(at_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return at_ >= 0; }
  int at() const { return at_; }

 private:
  int at_;
};

std::optional<std::string> read_all(int file) {
  struct stat facts {};
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  std::string out(static_cast<std::size_t>(facts.st_size), '\0');
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = read(file, out.data() + done, out.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  out.resize(done);
  return out;
}

/// Takes a line from the front: what follows `begin`, or nothing if it begins otherwise.
std::optional<std::string_view> take_line(std::string_view& text, std::string_view begin) {
  if (!text.starts_with(begin)) return std::nullopt;
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(begin.size(), end - begin.size());
  text.remove_prefix(end + 1);
  return line;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Private ones: what is in them is code.
bool make_folders(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return true;
  return errno == ENOENT && path.has_parent_path() && path.parent_path() != path && make_folders(path.parent_path()) &&
         (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST);
}

/// Held by one process, and one thread of it, at a time. Files of locks are never removed: who waits has them open.
class Lock {
 public:
  Lock(const fs::path& path, std::chrono::milliseconds patience) : file_(path, O_RDWR | O_CREAT) {
    const auto end = std::chrono::steady_clock::now() + patience;
    auto pause = std::chrono::milliseconds(1);
    while (file_ && flock(file_.at(), LOCK_EX | LOCK_NB) != 0) {
      if ((errno != EWOULDBLOCK && errno != EINTR) || std::chrono::steady_clock::now() >= end) return;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(50));
    }
    held_ = static_cast<bool>(file_);
  }
  explicit operator bool() const { return held_; }

 private:
  File file_;
  bool held_ = false;
};

std::string waited(const CacheKey& key, double seconds) {
  return fmt::format("waited {:.2f} s for whoever was building {}", seconds, key.name());
}

}  // namespace

CacheKey cache_key(std::string_view all) {
  const XXH128_hash_t a = XXH3_128bits(all.data(), all.size()),
                      b = XXH3_128bits_withSeed(all.data(), all.size(), 0x9e3779b97f4a7c15ull);
  return {{a.high64, a.low64, b.high64, b.low64}};
}
std::string CacheKey::name() const { return fmt::format("{:016x}{:016x}", words[0], words[1]); }
std::string CacheKey::hex() const { return name() + fmt::format("{:016x}{:016x}", words[2], words[3]); }

std::string print_entry(const CacheKey& key, const CacheEntry& entry) {
  std::string out(magic);
  out += fmt::format("key: {}\n", key.hex());
  for (const auto& [name, value] : entry.facts) out += fmt::format("{}: {}\n", one_line(name), one_line(value));
  out += fmt::format("{}{}\n{}{}\n", bytes_line, entry.bytes.size(), checksum_line, checksum(entry.bytes));
  out += fmt::format("{}{}\n\n", head_line, checksum(out));
  return out + entry.bytes;
}

ParsedEntry parse_entry(std::string_view text, const CacheKey& key) {
  const auto wrong = [](std::string why) { return ParsedEntry{std::nullopt, std::move(why)}; };
  const std::string_view all = text;
  if (!text.starts_with(magic)) return wrong("it is no entry of this version");
  text.remove_prefix(magic.size());
  const auto of = take_line(text, "key: ");
  if (!of) return wrong("it has no key");
  CacheEntry entry;
  std::size_t size = 0;
  for (;;) {
    if (const auto bytes = take_line(text, bytes_line)) {
      const auto [end, error] = std::from_chars(bytes->begin(), bytes->end(), size);
      if (error != std::errc{} || end != bytes->end()) return wrong("its size is no number");
      break;
    }
    const auto line = take_line(text, "");
    const std::size_t colon = line ? line->find(": ") : std::string_view::npos;
    if (colon == std::string_view::npos) return wrong("its head ends early");
    entry.facts.emplace_back(line->substr(0, colon), line->substr(colon + 2));
  }
  const auto sum = take_line(text, checksum_line);
  if (!sum) return wrong("it has no checksum");
  const std::string_view head = all.substr(0, all.size() - text.size());
  const auto head_sum = take_line(text, head_line);
  if (!head_sum || !text.starts_with('\n')) return wrong("its head ends early");
  if (*head_sum != checksum(head)) return wrong("its head is damaged");
  text.remove_prefix(1);
  if (*of != key.hex()) return wrong("it is of another key");
  if (text.size() != size) return wrong(fmt::format("it has {} of {} bytes", text.size(), size));
  if (*sum != checksum(text)) return wrong("its bytes are damaged");
  entry.bytes = text;
  return {std::move(entry), {}};
}

Cache::Cache(fs::path folder, std::uint64_t limit, std::chrono::milliseconds patience)
    : folder_(std::move(folder)), limit_(limit), patience_(patience) {}

fs::path Cache::file_of(const CacheKey& key) const {
  const std::string name = key.name();
  return folder_ / "entries" / name.substr(0, 2) / name.substr(2);
}

void Cache::note(std::string what) {
  constexpr std::size_t most = 64;
  const std::lock_guard lock(notes_mutex_);
  if (notes_.size() < most) notes_.push_back(std::move(what));
}
std::vector<std::string> Cache::notes() {
  const std::lock_guard lock(notes_mutex_);
  return std::exchange(notes_, {});
}

std::optional<CacheEntry> Cache::find(const CacheKey& key) {
  const fs::path path = file_of(key);
  const File file(path, O_RDONLY);
  if (!file) {
    if (errno != ENOENT && errno != ENOTDIR) note(fmt::format("{} cannot be opened: {}", path.string(), why()));
    return std::nullopt;
  }
  const auto text = read_all(file.at());
  if (!text) {
    note(fmt::format("{} cannot be read: {}", path.string(), why()));
    return std::nullopt;
  }
  ParsedEntry parsed = parse_entry(*text, key);
  if (!parsed.entry) {
    note(fmt::format("{} is discarded: {}", path.string(), parsed.wrong));
    unlink(path.c_str());
    return std::nullopt;
  }
  // By its time of change an entry is known to be wanted.
  futimens(file.at(), nullptr);
  return std::move(parsed.entry);
}

bool Cache::keep(const CacheKey& key, const CacheEntry& entry) {
  const fs::path path = file_of(key), unfinished = folder_ / "unfinished";
  const std::string wrong = make_folders(path.parent_path()) && make_folders(unfinished)
                                ? replace_file(path, print_entry(key, entry), (unfinished / "XXXXXX").string(),
                                               Durable::no)
                                : why();
  if (!wrong.empty()) {
    note(fmt::format("{} cannot be written: {}", path.string(), wrong));
    return false;
  }
  prune(limit_);
  return true;
}

CacheEntry Cache::get(const CacheKey& key, const std::function<CacheEntry()>& build) {
  if (auto found = find(key)) return std::move(*found);
  const fs::path locks = folder_ / "locks";
  make_folders(locks);
  const Clock clock;
  const Lock lock(locks / key.name().substr(0, 3), patience_);
  if (clock.seconds() > 0.01) runtime::note(watch::Noted::Of::cache, waited(key, clock.seconds()));
  if (!lock) note(fmt::format("{} was built without its lock", key.name()));
  // Another process may have kept it while this one waited.
  if (auto found = find(key)) return std::move(*found);
  CacheEntry out = build();
  keep(key, out);
  return out;
}

std::vector<Cache::Found> Cache::list() const {
  std::vector<Found> out;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder_ / "entries", error), end; !error && at != end; at.increment(error)) {
    std::error_code one;
    if (!at->is_regular_file(one)) continue;
    const std::uint64_t bytes = at->file_size(one);
    const auto used = at->last_write_time(one);
    if (!one)
      out.push_back({at->path().parent_path().filename().string() + at->path().filename().string(), bytes, used});
  }
  return out;
}

void Cache::prune(std::uint64_t bytes) const {
  // What a process that was killed had not finished.
  std::error_code error;
  for (fs::directory_iterator at(folder_ / "unfinished", error), end; !error && at != end; at.increment(error)) {
    std::error_code one;
    const auto age = fs::file_time_type::clock::now() - at->last_write_time(one);
    if (!one && age > std::chrono::hours(1)) fs::remove(at->path(), one);
  }
  std::vector<Found> all = list();
  std::uint64_t total = 0;
  for (const Found& one : all) total += one.bytes;
  if (total <= bytes) return;
  std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.used < b.used; });
  for (const Found& one : all) {
    if (total <= bytes) return;
    // Who has it open reads on.
    if (fs::remove(folder_ / "entries" / one.name.substr(0, 2) / one.name.substr(2), error)) total -= one.bytes;
  }
}

}  // namespace attune::runtime
