// tests/runtime/machine/cache/cache_stress.test.cpp — many processes and threads in a cache that has room for two
// entries
#include <atomic>
#include <random>
#include <thread>

#include "tests/child.h"
#include "tests/runtime/machine/cache/cache_folder.h"

namespace attune::runtime {
namespace {

using tests::CacheFolder, tests::entry;

constexpr unsigned keys = 6;
constexpr std::uint64_t room = 2 * 56000;

std::string bytes(unsigned which) { return std::string(50000 + which * 1000, static_cast<char>('a' + which)); }

struct Tally {
  int wrong = 0, built = 0;
};

Tally use(const std::filesystem::path& folder, unsigned seed, int calls) {
  Cache cache(folder, room);
  std::mt19937 dice(seed);
  Tally out;
  for (int i = 0; i < calls; ++i) {
    const auto which = static_cast<unsigned>(dice() % keys);
    const std::string want = bytes(which);
    const CacheEntry got = cache.get(cache_key(std::to_string(which)), [&] {
      ++out.built;
      return entry(want);
    });
    out.wrong += got.bytes != want;
  }
  for (const std::string& note : cache.notes()) out.wrong += note.find("is discarded") != std::string::npos;
  return out;
}

}  // namespace

TEST_CASE("eight threads and four processes use a cache that has room for two of their entries", "[cache]") {
  const CacheFolder folder;
  const int calls = tests::sanitized ? 40 : 120;
  std::vector<pid_t> children;
  for (unsigned i = 0; i < 4; ++i) {
    const pid_t child = tests::fork_child();
    if (child == 0) _exit(use(folder.path, 100 + i, calls).wrong == 0 ? 0 : 1);
    children.push_back(child);
  }
  std::atomic<int> wrong = 0, built = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      const Tally mine = use(folder.path, i, calls);
      wrong += mine.wrong;
      built += mine.built;
    });
  for (std::thread& t : threads) t.join();
  for (const pid_t child : children) CHECK(tests::status_of(child) == 0);
  CHECK(wrong == 0);
  std::uint64_t left = 0;
  for (const CacheFile& one : cache_files(folder.path)) left += one.bytes;
  // Writers that could not update the total in time may leave too many entries, until the next one is kept.
  CHECK(left <= keys * 56000);
  INFO("built " << built << " of " << 8 * calls << " calls");
  Cache cache(folder.path, room);
  std::filesystem::remove(folder.path / "total");
  REQUIRE(cache.keep(cache_key("last"), entry("code")));
  left = 0;
  for (const CacheFile& one : cache_files(folder.path)) left += one.bytes;
  CHECK(left <= room);
  CHECK(cache.find(cache_key("last")));
  // Entries that were evicted are built again. If no process counted one before, this run does.
  const Tally alone = use(folder.path, 8, 40);
  CHECK(alone.wrong == 0);
  CHECK(built + alone.built > static_cast<int>(keys));
}

}  // namespace attune::runtime
