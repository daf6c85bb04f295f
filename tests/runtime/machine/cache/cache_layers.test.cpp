// tests/runtime/machine/cache/cache_layers.test.cpp — system entries below the user's, read-only folders, and pruning
#include <map>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/machine/cache/objects.h"
#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "tests/runtime/machine/cache/cache_folder.h"

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;
using tests::bytes_of, tests::CacheFolder, tests::entry, tests::text_of, tests::write_text;

/// Everything visible from outside in a folder, except access times.
std::map<std::string, std::string> state_of(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& at : fs::recursive_directory_iterator(folder)) {
    const auto changed = at.last_write_time().time_since_epoch().count();
    out[at.path().string()] = std::to_string(changed) + (at.is_regular_file() ? text_of(at.path()) : "");
  }
  return out;
}

CacheEntry never() {
  FAIL("it is there and is built");
  return {};
}

void age(const Cache& cache, const CacheKey& key, std::chrono::hours by) {
  fs::last_write_time(cache.file_of(key), fs::file_time_type::clock::now() - by);
}

}  // namespace

TEST_CASE("what the user's folder lacks the system's has, and nothing is written there", "[cache]") {
  const CacheFolder user, system;
  const CacheKey both = cache_key("both"), below = cache_key("below"), none = cache_key("none");
  Cache filling(system.path);
  REQUIRE(filling.keep(both, entry("the system's")));
  REQUIRE(filling.keep(below, entry("below")));
  age(filling, below, std::chrono::hours(48));
  const auto before = state_of(system.path);
  Cache cache({.user = user.path, .system = system.path});
  REQUIRE(cache.keep(both, entry("the user's")));
  CHECK(cache.get(both, never).bytes == "the user's");
  CHECK(cache.get(below, never).bytes == "below");
  CHECK(cache.get(none, [] { return entry("built"); }).bytes == "built");
  CHECK(cache.notes().empty());
  CHECK(state_of(system.path) == before);
  CHECK(cache_files(user.path).size() == 2);
  // The same without a user's folder.
  Cache system_alone({.user = {}, .system = system.path});
  CHECK(system_alone.get(below, never).bytes == "below");
  CHECK(system_alone.get(none, [] { return entry("built"); }).bytes == "built");
  CHECK(state_of(system.path) == before);
}

TEST_CASE("a damaged entry of the system is skipped and stays", "[cache]") {
  const CacheFolder user, system;
  const CacheKey key = cache_key("a page");
  Cache filling(system.path);
  REQUIRE(filling.keep(key, entry("code")));
  write_text(filling.file_of(key), "attune cache 1\nkey");
  const auto before = state_of(system.path);
  Cache cache({.user = user.path, .system = system.path});
  CHECK(cache.get(key, [] { return entry("code"); }).bytes == "code");
  const std::vector<std::string> notes = cache.notes();
  REQUIRE_FALSE(notes.empty());
  CHECK(notes[0].find("is skipped: it has no key") != std::string::npos);
  CHECK(state_of(system.path) == before);
  CHECK(cache.get(key, never).bytes == "code");
}

TEST_CASE("a folder that is only read stays as it is", "[cache]") {
  const CacheFolder folder, none;
  const CacheKey key = cache_key("a page"), bad = cache_key("bad"), missing = cache_key("missing");
  Cache filling(folder.path);
  REQUIRE(filling.keep(key, entry("code")));
  REQUIRE(filling.keep(bad, entry("code")));
  write_text(filling.file_of(bad), "x");
  age(filling, key, std::chrono::hours(48));
  const auto before = state_of(folder.path);
  Cache cache({.user = folder.path, .read_only = true});
  CHECK(cache.get(key, never).bytes == "code");
  CHECK(cache.get(bad, [] { return entry("new"); }).bytes == "new");
  CHECK(cache.get(missing, [] { return entry("new"); }).bytes == "new");
  CHECK_FALSE(cache.keep(missing, entry("new")));
  CHECK(state_of(folder.path) == before);
  Cache empty({.user = none.path, .read_only = true});
  CHECK(empty.get(key, [] { return entry("new"); }).bytes == "new");
  CHECK_FALSE(fs::exists(none.path));
  CHECK(empty.notes().empty());
}

TEST_CASE("options say which folders there are", "[cache][options]") {
  Options o{.cache = "/u", .cache_system = "/s"};
  CHECK(cache_folders(o).user == "/u");
  CHECK(cache_folders(o).system == "/s");
  CHECK_FALSE(cache_folders(o).read_only);
  o.cache_bytes = 0;
  o.cache_read_only = true;
  CHECK(cache_folders(o).user.empty());
  CHECK(cache_folders(o).system == "/s");
  CHECK(cache_folders(o).read_only);
}

TEST_CASE("what a building took is said in the entry", "[cache]") {
  const CacheFolder folder;
  Cache cache(folder.path);
  const CacheEntry built = cache.get(cache_key("a"), [] {
    usleep(20000);
    return entry("code");
  });
  CHECK(built.facts.back().first == "seconds");
  CHECK(std::stod(built.facts.back().second) >= 0.02);
  CHECK(cache.find(cache_key("a"))->facts == built.facts);
}

TEST_CASE("entries are removed by size, by age, or not at all", "[cache]") {
  const CacheFolder folder;
  Cache cache(folder.path);
  const auto key = [](int i) { return cache_key(std::to_string(i)); };
  std::uint64_t each = 0;
  for (int i = 0; i < 6; ++i) {
    REQUIRE(cache.keep(key(i), entry(std::string(2000, 'x'))));
    age(cache, key(i), std::chrono::hours(100 - 10 * i));
    each = fs::file_size(cache.file_of(key(i)));
  }
  const auto there = [&] { return cache_files(folder.path).size(); };
  const Pruned dry = prune(folder.path, {.most = 0, .to = 0, .dry = true});
  CHECK(dry.entries == 6);
  CHECK(dry.bytes == 6 * each);
  CHECK(dry.left == 0);
  CHECK(there() == 6);
  const Pruned old = prune(folder.path, {.age = std::chrono::hours(85)});
  CHECK(old.entries == 2);
  CHECK(old.left == 4 * each);
  CHECK_FALSE(cache.find(key(1)));
  CHECK(prune(folder.path, {.most = 4 * each, .to = 0}).entries == 0);
  // Prunes to less than the limit.
  CHECK(prune(folder.path, {.most = 4 * each - 1, .to = 2 * each}).entries == 2);
  CHECK_FALSE(cache.find(key(3)));
  CHECK(cache.find(key(5)));
  CHECK(prune(folder.path, {.most = 2 * each - 1, .to = 1, .spared = key(4).name()}).left == each);
  CHECK(cache.find(key(4)));
  CHECK(prune(folder.path, {.most = 0, .to = 0}).left == 0);
  CHECK(there() == 0);
}

TEST_CASE("how much there is becomes known again, whatever was thought", "[cache]") {
  const CacheFolder folder;
  constexpr std::uint64_t limit = 100000;
  Cache cache(folder.path, limit);
  const auto key = [](unsigned i) { return cache_key(std::to_string(i)); };
  const auto all = [&] {
    std::uint64_t bytes = 0;
    for (const CacheFile& one : cache_files(folder.path)) bytes += one.bytes;
    return bytes;
  };
  REQUIRE(cache.keep(key(0), entry("code")));
  CHECK(text_of(folder.path / "total") == std::to_string(all()) + " 0\n");
  REQUIRE(cache.keep(key(1), entry("code")));
  CHECK(text_of(folder.path / "total") == std::to_string(all()) + " 1\n");
  // The total is too high, or is not a valid one: the next write scans.
  for (const char* thought : {"99999999 0\n", "", "x", "1", "1 2 3\n", "-1 0\n", "99999999999999999999999 0\n"}) {
    write_text(folder.path / "total", thought);
    REQUIRE(cache.keep(key(2), entry("code")));
    CHECK(text_of(folder.path / "total") == std::to_string(all()) + " 0\n");
  }
  CHECK(cache_files(folder.path).size() == 3);
  // The total is too low, because entries came from elsewhere: a scan corrects it in time.
  for (unsigned i = 0; i < 100; ++i) {
    const CacheKey copied = key(1000 + i);
    fs::create_directories(cache.file_of(copied).parent_path());
    write_text(cache.file_of(copied), print_entry(copied, entry(bytes_of(1))));
  }
  CHECK(all() > limit);
  for (unsigned i = 0; i < 256; ++i) REQUIRE(cache.keep(key(i % 3), entry("code")));
  CHECK(all() <= limit);
  CHECK(cache.find(key(0)));
}

TEST_CASE("what is larger than the cache is not kept, and removes nothing", "[cache]") {
  const CacheFolder folder;
  Cache cache(folder.path, 4000);
  REQUIRE(cache.keep(cache_key("a"), entry("code")));
  CHECK_FALSE(cache.keep(cache_key("b"), entry(std::string(5000, 'x'))));
  CHECK(cache.notes().size() == 1);
  CHECK(cache.find(cache_key("a")));
  // An entry that fills the cache alone is kept.
  CHECK(cache.keep(cache_key("c"), entry(std::string(3700, 'x'))));
  CHECK(cache.find(cache_key("c")));
}

TEST_CASE("clocks that were wrong neither keep an entry for ever nor lose the others", "[cache]") {
  const CacheFolder folder;
  Cache cache(folder.path, 10000);
  const auto key = [](int i) { return cache_key(std::to_string(i)); };
  const auto used = [&](int i, time_t second) {
    const struct timespec times[2] = {{second, 0}, {second, 0}};
    REQUIRE(utimensat(AT_FDCWD, cache.file_of(key(i)).c_str(), times, 0) == 0);
  };
  const time_t now = time(nullptr);
  for (int i = 0; i < 4; ++i) REQUIRE(cache.keep(key(i), entry(std::string(2000, 'x'))));
  used(0, now + 400L * 86400);
  used(1, 0);
  used(2, now - 86400);
  used(3, now - 3600);
  REQUIRE(cache.keep(key(4), entry(std::string(2000, 'x'))));
  CHECK_FALSE(cache.find(key(1)));
  struct stat facts {};
  REQUIRE(stat(cache.file_of(key(0)).c_str(), &facts) == 0);
  CHECK(facts.st_mtim.tv_sec <= time(nullptr) + 1);
  // It ages like the others.
  used(0, now - 2 * 86400);
  REQUIRE(cache.keep(key(5), entry(std::string(2000, 'x'))));
  CHECK_FALSE(cache.find(key(0)));
  CHECK(cache.find(key(3)));
  CHECK(cache.notes().empty());
}

TEST_CASE("two versions side by side do no harm to each other", "[cache]") {
  const CacheFolder folder;
  Cache cache(folder.path);
  REQUIRE(cache.keep(cache_key("a page"), entry("code")));
  // Another format, under a name that this version never uses, and under one that it does.
  const CacheKey other = cache_key("other"), same = cache_key("same");
  const std::string text = "attune cache 2\nwhatever it has\n";
  for (const CacheKey& key : {other, same}) {
    fs::create_directories(cache.file_of(key).parent_path());
    write_text(cache.file_of(key), text);
  }
  CHECK_FALSE(cache.find(other));
  CHECK(text_of(cache.file_of(other)) == text);
  CHECK(cache.get(same, [] { return entry("mine"); }).bytes == "mine");
  CHECK(cache.find(cache_key("a page")));
  CHECK(parse_head(text).other_format);
  CHECK_FALSE(parse_head("attune cache 1\n").other_format);
  CHECK_FALSE(parse_head("anything").other_format);
  // The limit counts both.
  CHECK(prune(folder.path, {.most = 0, .to = 0}).entries == 3);
}

}  // namespace attune::runtime
