// runtime/machine/cache/bundle.cpp — many entries in one file, found by the content that they were made of
#include "runtime/machine/cache/bundle.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/files.h"
#include "runtime/machine/watch/log.h"

namespace attune::runtime {
namespace {

constexpr std::string_view bundle_magic = "attune bundle 2\n",
                           bundle_count = "entries: ", bundle_bytes = "bytes: ", bundle_head = "head: ";
constexpr std::size_t most_label = 200;

bool comes_before(const CacheKey& a, const CacheKey& b) {
  return std::lexicographical_compare(std::begin(a.words), std::end(a.words), std::begin(b.words), std::end(b.words));
}

/// Digests are of stored bytes, so that damaged bytes are never decompressed.
std::string digest_of(std::string_view stored) { return cache_key(stored).name(); }

std::string label_of(const std::string& text) { return one_line(text).substr(0, most_label); }

[[noreturn]] void refuse(const std::string& name, std::string why) {
  throw Error("bundle-damaged", "a bundle is damaged", {.name = name}, std::move(why),
              "copy it again, or rebuild it with attune compile");
}

/// Removes the text up to and including the first `end` from the front, and returns it without `end`.
std::optional<std::string_view> take(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(at + 1);
  return out;
}

template <class T>
bool read_number(std::string_view digits, T& into, int base = 10) {
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), into, base);
  return !digits.empty() && error == std::errc{} && end == digits.end();
}

bool take_number_line(std::string_view& text, std::string_view name, std::size_t& into) {
  if (!text.starts_with(name)) return false;
  text.remove_prefix(name.size());
  const auto line = take(text, '\n');
  return line && read_number(*line, into);
}

bool read_key(std::string_view hex, CacheKey& key) {
  bool good = hex.size() == 64;
  for (std::size_t i = 0; good && i < 4; ++i) good = read_number(hex.substr(16 * i, 16), key.words[i], 16);
  return good;
}

/// A line of the head. The bytes that it points to come after the head, whose end is not known yet.
struct Line {
  Bundle::Item item{};
  std::size_t begin = 0, stored = 0;
};

/// The entry that a line describes; none if it lies beyond `bytes`, or is too large to be allocated.
std::optional<Line> read_line(std::string_view text, std::size_t bytes) {
  const auto key = take(text, ' '), begin = take(text, ' '), stored = take(text, ' '), size = take(text, ' '),
             sum = take(text, ' ');
  Line out;
  if (!sum || !read_key(*key, out.item.key) || !read_number(*begin, out.begin) || !read_number(*stored, out.stored) ||
      !read_number(*size, out.item.size) || out.begin > bytes || out.stored > bytes - out.begin ||
      out.item.size < out.stored || (out.item.size > out.stored && out.item.size > Bundle::most_compressed))
    return std::nullopt;
  out.item.digest = *sum;
  out.item.label = text;
  return out;
}

/// Read whole: a mapped file that is cut short while it is in use ends the process with SIGBUS. Reading 100 MB
/// that are in the page cache takes 0.24 s on two busy vCPUs.
std::shared_ptr<const std::string> read_whole(const std::filesystem::path& path) {
  const auto unreadable = [&](const std::string& why) {
    return Error("bundle-unreadable", "a bundle cannot be read", {.name = path.string()}, why,
                 "name a file that attune compile wrote");
  };
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) throw unreadable(std::strerror(errno));
  struct stat facts {};
  const bool regular = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  std::optional<std::string> out = regular ? read_open(file, static_cast<std::size_t>(facts.st_size)) : std::nullopt;
  const std::string why = regular ? std::strerror(errno) : "it is not a file";
  close(file);
  if (!out) throw unreadable(why);
  if (out->empty()) throw unreadable("it is empty");
  return std::make_shared<const std::string>(*std::move(out));
}

}  // namespace

std::string print_bundle(std::vector<BundleEntry> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const BundleEntry& a, const BundleEntry& b) { return comes_before(a.key, b.key); });
  const auto last = std::unique(entries.begin(), entries.end(),
                                [](const BundleEntry& a, const BundleEntry& b) { return a.key == b.key; });
  entries.erase(last, entries.end());
  std::string index, bytes;
  for (const BundleEntry& one : entries) {
    const std::string text = print_entry(one.key, one.entry);
    const auto smaller = text.size() > Bundle::most_compressed ? std::nullopt : compressed(text);
    const std::string& stored = smaller ? *smaller : text;
    index += fmt::format("{} {} {} {} {} {}\n", one.key.hex(), bytes.size(), stored.size(), text.size(),
                         digest_of(stored), label_of(one.label));
    bytes += stored;
  }
  std::string out = fmt::format("{}{}{}\n{}{}\n{}", bundle_magic, bundle_count, entries.size(), bundle_bytes,
                                bytes.size(), index);
  out += fmt::format("{}{}\n\n", bundle_head, cache_key(out).hex());
  return out + bytes;
}

ParsedEntry Bundle::Item::read() const {
  if (digest_of(stored) != digest) return {std::nullopt, "its bytes are damaged", false};
  if (stored.size() == size) return parse_entry(stored, key);
  const auto text = decompressed(stored, size);
  return text ? parse_entry(*text, key) : ParsedEntry{std::nullopt, "its bytes are not what zstd wrote", false};
}

Bundle::Bundle(std::string name, std::string_view text, std::shared_ptr<const std::string> owned)
    : name_(std::move(name)), owned_(std::move(owned)) {
  const std::string_view all = text;
  if (!text.starts_with(bundle_magic)) refuse(name_, "it is not a bundle, or another version of attune wrote it");
  text.remove_prefix(bundle_magic.size());
  std::size_t count = 0, bytes = 0;
  if (!take_number_line(text, bundle_count, count) || !take_number_line(text, bundle_bytes, bytes))
    refuse(name_, "its header is damaged");
  std::vector<Line> lines;
  while (lines.size() < count) {
    auto rest = take(text, '\n');
    if (!rest) refuse(name_, "its header ends early");
    const auto line = read_line(*rest, bytes);
    if (!line || (!lines.empty() && !comes_before(lines.back().item.key, line->item.key)))
      refuse(name_, "its header is damaged");
    lines.push_back(*line);
  }
  const std::string_view head = all.substr(0, all.size() - text.size());
  if (!text.starts_with(bundle_head)) refuse(name_, "its header ends early");
  text.remove_prefix(bundle_head.size());
  const auto sum = take(text, '\n');
  if (!sum || !text.starts_with('\n')) refuse(name_, "its header ends early");
  if (*sum != cache_key(head).hex()) refuse(name_, "its header is damaged");
  text.remove_prefix(1);
  if (text.size() != bytes) refuse(name_, fmt::format("it has {} of {} bytes after its header", text.size(), bytes));
  for (Line& line : lines) {
    line.item.stored = text.substr(line.begin, line.stored);
    items_.push_back(line.item);
    if (line.stored < line.item.size && !has_zstd())
      throw Error(
          "bundle-compressed", "a bundle is compressed, and this attune cannot decompress it", {.name = name_},
          "attune was built without zstd",
          "build attune with zstd (Debian's libzstd-dev), or rebuild the bundle with this build's attune compile");
  }
}

std::shared_ptr<const Bundle> Bundle::open(const std::filesystem::path& path) {
  const auto text = read_whole(path);
  return std::shared_ptr<const Bundle>(new Bundle(path.string(), *text, text));
}

std::shared_ptr<const Bundle> Bundle::of(std::span<const std::byte> bytes, std::string name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return std::shared_ptr<const Bundle>(new Bundle(std::move(name), text, nullptr));
}

const Bundle::Item* Bundle::find(const CacheKey& key) const {
  const auto at = std::lower_bound(items_.begin(), items_.end(), key,
                                   [](const Item& item, const CacheKey& k) { return comes_before(item.key, k); });
  return at != items_.end() && at->key == key ? &*at : nullptr;
}

}  // namespace attune::runtime
