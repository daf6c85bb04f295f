// tests/runtime/machine/cache/cache.test.cpp — the kernel cache on disk: many processes, damage, file errors
#include "runtime/machine/cache/cache.h"

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include <sys/stat.h>
#include <unistd.h>

#include "runtime/machine/cache/objects.h"
#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/runtime/machine/cache/cache_folder.h"

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;
using tests::bytes_of, tests::entry, tests::text_of, tests::write_text;

const std::string odd_bytes("\0\n\xff key: 0\nbytes: 3\n\n", 22);

}  // namespace

TEST_CASE("an entry reads back as it was kept", "[cache]") {
  const CacheKey key = cache_key("a page");
  for (const std::string& bytes : {std::string(), odd_bytes, std::string(100000, 'x')}) {
    const ParsedEntry parsed = parse_entry(print_entry(key, entry(bytes)), key);
    CHECK(parsed.wrong == "");
    REQUIRE(parsed.entry);
    CHECK(parsed.entry->bytes == bytes);
    CHECK(parsed.entry->facts == entry(bytes).facts);
  }
  // A fact is one line, and no fact can look like the end of the head.
  const CacheEntry hostile{{{"bytes", "1\nchecksum: 0"}}, "abc"};
  CHECK_FALSE(parse_entry(print_entry(key, hostile), key).entry);
}

TEST_CASE("no damage to an entry is missed", "[cache]") {
  const CacheKey key = cache_key("a page");
  const std::string whole = print_entry(key, entry(odd_bytes));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("cut to " << size);
    CHECK_FALSE(parse_entry(whole.substr(0, size), key).entry);
  }
  CHECK_FALSE(parse_entry(whole + "x", key).entry);
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      INFO("bit " << bit << " of byte " << at);
      CHECK_FALSE(parse_entry(damaged, key).entry);
    }
  CHECK(parse_entry(whole, cache_key("another page")).wrong == "it belongs to another key");
}

TEST_CASE("random damage to an entry is found, or changes nothing", "[cache]") {
  const CacheKey key = cache_key("a page");
  std::mt19937 dice(7);
  const auto below = [&](std::size_t n) { return dice() % std::max<std::size_t>(n, 1); };
  const std::string whole = print_entry(key, entry(bytes_of(3))), other = print_entry(cache_key("b"), entry("other"));
  for (int i = 0; i < 4000; ++i) {
    std::string text = whole;
    for (std::size_t more = 0, times = 1 + below(3); more < times; ++more) {
      const std::size_t at = below(text.size()), size = below(std::min<std::size_t>(text.size() - at, 80));
      switch (below(5)) {
        case 0: text.resize(at); break;
        case 1: text.erase(at, size); break;
        case 2: text.insert(at, other.substr(below(other.size()), size)); break;
        case 3: text.replace(at, size, std::string(size, '\0')); break;  // as a file with a hole reads
        case 4:
          if (at < text.size()) text[at] = static_cast<char>(dice());
          break;
      }
    }
    const ParsedEntry parsed = parse_entry(text, key);
    INFO("damage " << i);
    CHECK(parsed.entry.has_value() == (text == whole));
  }
}

TEST_CASE("keys differ where anything does", "[cache]") {
  CHECK(cache_key("a") == cache_key("a"));
  CHECK(cache_key("a").hex() != cache_key("b").hex());
  CHECK(cache_key("").hex().size() == 64);
  CHECK(cache_key("a").hex().starts_with(cache_key("a").name()));
}

TEST_CASE("what is kept is found, by any process, in any folder", "[cache]") {
  for (const std::string name : {"plain", "with spaces", "ünïcödé-核"}) {
    const tests::CacheFolder folder(name);
    Cache one(folder.path);
    const CacheKey key = cache_key(name);
    CHECK_FALSE(one.find(key));
    CHECK(one.keep(key, entry("code")));
    Cache other(folder.path);
    const auto found = other.find(key);
    REQUIRE(found);
    CHECK(found->bytes == "code");
    CHECK(one.notes().empty());
    CHECK(other.notes().empty());
    struct stat facts {};
    REQUIRE(stat(one.file_of(key).c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0600);
    REQUIRE(stat(folder.path.c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0700);
  }
}

TEST_CASE("a damaged entry is discarded, with the reason, and built again", "[cache]") {
  const tests::CacheFolder folder;
  Cache cache(folder.path);
  const CacheKey key = cache_key("a page");
  REQUIRE(cache.keep(key, entry("code")));
  const std::string whole = text_of(cache.file_of(key));
  write_text(cache.file_of(key), whole.substr(0, whole.size() - 1));
  int built = 0;
  const auto build = [&] {
    ++built;
    return entry("code");
  };
  CHECK(cache.get(key, build).bytes == "code");
  CHECK(built == 1);
  const std::vector<std::string> notes = cache.notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("is discarded: it has 3 of 4 bytes") != std::string::npos);
  CHECK(cache.get(key, build).bytes == "code");
  CHECK(built == 1);
}

TEST_CASE("trouble with files is a miss", "[cache]") {
  const auto build = [] { return entry("code"); };
  const CacheKey key = cache_key("a page");
  {
    Cache cache("/dev/null/attune");
    CHECK(cache.get(key, build).bytes == "code");
    CHECK_FALSE(cache.notes().empty());
  }
  {
    const tests::CacheFolder folder;
    fs::create_directories(folder.path);
    write_text(folder.path / "entries", "a file where a folder should be");
    Cache cache(folder.path);
    CHECK(cache.get(key, build).bytes == "code");
    CHECK_FALSE(cache.notes().empty());
    CHECK(cache_files(folder.path).empty());
  }
  {
    const tests::CacheFolder folder;
    Cache cache(folder.path);
    fs::create_directories(cache.file_of(key));
    CHECK(cache.get(key, build).bytes == "code");
    CHECK_FALSE(cache.notes().empty());
  }
}

TEST_CASE("entries that were not asked for the longest go first", "[cache]") {
  const tests::CacheFolder folder;
  Cache cache(folder.path, 10000);
  const auto key = [](int i) { return cache_key(std::to_string(i)); };
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 4; ++i) {
    REQUIRE(cache.keep(key(i), entry(std::string(2000, 'x'))));
    // The clock may have had any value.
    fs::last_write_time(cache.file_of(key(i)), now + std::chrono::hours(i - 2));
  }
  CHECK(cache.find(key(0)));  // used again: now newer than 1, not than 3
  REQUIRE(cache.keep(key(4), entry(std::string(2000, 'x'))));
  CHECK_FALSE(cache.find(key(1)));
  for (const int i : {0, 2, 3, 4}) {
    INFO(i);
    CHECK(cache.find(key(i)));
  }
  prune(folder.path, {.most = 0, .to = 0});
  CHECK(cache_files(folder.path).empty());
}

TEST_CASE("sixteen processes that start at once build once", "[cache]") {
  const tests::CacheFolder folder;
  fs::create_directories(folder.path);
  const fs::path built = folder.path / "built";
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    const pid_t child = tests::fork_child();
    if (child == 0) {
      Cache cache(folder.path);
      const CacheEntry got = cache.get(cache_key("a page"), [&] {
        std::ofstream(built, std::ios::app) << "x";
        usleep(20000);
        return entry("code");
      });
      _exit(got.bytes == "code" ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) CHECK(tests::status_of(child) == 0);
  CHECK(text_of(built) == "x");
}

TEST_CASE("threads of a process build once too", "[cache]") {
  const tests::CacheFolder folder;
  Cache cache(folder.path);
  std::atomic<int> built = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      cache.get(cache_key("a page"), [&] {
        ++built;
        return entry("code");
      });
    });
  for (std::thread& t : threads) t.join();
  CHECK(built == 1);
}

TEST_CASE("what one process compiled the next one finds, and without a disk each compiles", "[cache]") {
  const tests::CacheFolder folder;
  int built = 0;
  const auto build = [&] {
    ++built;
    return entry("code");
  };
  for (int process = 0; process < 2; ++process) {
    Objects objects(std::make_unique<Cache>(folder.path));
    CHECK(objects.get({"a page"}, build)->bytes == "code");
    Facts facts = objects.get({"a page"}, build)->facts;
    CHECK(facts.back().first == "seconds");  // that the build took
    facts.pop_back();
    CHECK(facts == entry("code").facts);
  }
  CHECK(built == 1);
  CHECK(Objects().get({"a page"}, build)->bytes == "code");
  CHECK(built == 2);
}

TEST_CASE("who waits longer than its patience builds", "[cache]") {
  const tests::CacheFolder folder;
  Cache patient(folder.path), impatient(folder.path, 1 << 20, std::chrono::milliseconds(20));
  const CacheEntry got = patient.get(cache_key("a page"), [&] {
    CHECK(impatient.get(cache_key("a page"), [] { return entry("other"); }).bytes == "other");
    const std::vector<std::string> notes = impatient.notes();
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].find("without its lock, which another thread of this process had for") != std::string::npos);
    return entry("code");
  });
  CHECK(got.bytes == "code");
}

TEST_CASE("who has waited in vain once does not wait for the next entry", "[cache]") {
  constexpr std::chrono::milliseconds patience{400};
  const tests::CacheFolder folder;
  Cache holder(folder.path), waiter(folder.path, 1 << 20, patience);
  const auto take = [&](const CacheKey& key) {
    const auto start = std::chrono::steady_clock::now();
    waiter.get(key, [] { return entry("own"); });
    return std::chrono::steady_clock::now() - start;
  };
  const CacheKey first = cache_key("a page"), next = cache_key("another page");
  holder.get(first, [&] {
    holder.get(next, [&] {
      CHECK(take(first) >= patience);
      // A thread that waited would take `patience` each time. A busy machine delays it only sometimes.
      bool waits = true;
      for (int i = 0; i < 20 && waits; ++i) {
        fs::remove(waiter.file_of(next));
        waits = take(next) >= patience;
      }
      CHECK_FALSE(waits);
      return entry("code");
    });
    return entry("code");
  });
}

TEST_CASE("a folder where others may put code is not ours", "[cache]") {
  const tests::CacheFolder folder;
  const fs::path path = folder.path / "kernels";
  CHECK(why_not_ours(path).empty());  // nothing is there yet
  fs::create_directories(path);
  CHECK(why_not_ours(path).empty());
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  CHECK(why_not_ours(path) == "all users may write there");
  CHECK(cache_folders({.cache = path.string()}).user.empty());
  fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  CHECK(cache_folders({.cache = path.string()}).user == path);
  if (geteuid() != 0) return;  // only root gives folders away
  REQUIRE(chown(path.c_str(), 1234, 0) == 0);
  CHECK(why_not_ours(path) == "it belongs to the user 1234, who is not you");
  CHECK(cache_folders({.cache = path.string()}).user.empty());
}

TEST_CASE("entries that others could have put there are not used", "[cache]") {
  const tests::CacheFolder folder;
  Cache cache(folder.path);
  const CacheKey key = cache_key("a page");
  const fs::path path = cache.file_of(key), entries = folder.path / "entries";
  const auto keep = [&] {
    fs::remove_all(entries);
    REQUIRE(cache.keep(key, entry("code")));
    REQUIRE(cache.find(key));
    cache.notes();
  };
  const auto passes_over = [&](const std::string& why) {
    CHECK_FALSE(cache.find(key));
    const std::vector<std::string> notes = cache.notes();
    REQUIRE(notes.size() == 1);
    CHECK_THAT(notes[0], Catch::EndsWith(why));
  };
  for (const fs::path& one : {entries, path.parent_path()}) {
    keep();
    REQUIRE(chmod(one.c_str(), 01777) == 0);
    passes_over(one.string() + ": all users may write there");
    CHECK_FALSE(cache.keep(key, entry("code")));
    CHECK(cache.notes().size() == 1);
    keep();
    fs::rename(one, folder.path / "elsewhere");
    fs::create_symlink(folder.path / "elsewhere", one);
    passes_over(one.string() + ": it is a symbolic link");
    fs::remove(one);
    fs::remove_all(folder.path / "elsewhere");
  }
  // The file alone is replaced by one's own.
  keep();
  REQUIRE(chmod(path.c_str(), 0777) == 0);
  passes_over("is discarded: all users may write it");
  keep();
  if (geteuid() != 0) return;  // only root gives files away
  for (const fs::path& one : {entries, path.parent_path(), path}) {
    keep();
    REQUIRE(chown(one.c_str(), 1234, 0) == 0);
    passes_over("it belongs to the user 1234, who is not you");
  }
}

TEST_CASE("processes killed while they keep entries leave none that is wrong", "[cache]") {
  const tests::CacheFolder folder;
  const int kills = tests::sanitized ? 60 : 500;
  std::mt19937 dice(20261121);
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const pid_t child = tests::fork_child();
    if (child == 0) {
      Cache cache(folder.path);
      for (unsigned i = static_cast<unsigned>(kill_number);; ++i)
        cache.keep(cache_key(std::to_string(i % 40)), entry(bytes_of(i % 40)));
    }
    // On a busy machine no child may get to write an entry before it is killed.
    if (kill_number == 0) CHECK(tests::comes_true([&] { return !cache_files(folder.path).empty(); }));
    usleep(static_cast<useconds_t>(200 + dice() % 3000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  Cache cache(folder.path);
  int there = 0;
  for (unsigned i = 0; i < 40; ++i)
    if (const auto found = cache.find(cache_key(std::to_string(i)))) {
      ++there;
      CHECK(found->bytes == bytes_of(i));
    }
  CHECK(there > 0);
  CHECK(cache.notes().empty());
}

}  // namespace attune::runtime
