// tests/runtime/machine/cache/cache_trouble.test.cpp — files of the wrong kind, full disks, vanishing folders
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "runtime/machine/files.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/runtime/machine/cache/cache_folder.h"

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;
using tests::bytes_of, tests::CacheFolder, tests::entry, tests::text_of, tests::write_text;

constexpr int cannot = 77;  ///< a child's status if the machine does not let it try

/// Mounts a separate file system of 1 MiB for a child, in a namespace that ends with it.
bool mount_small(const fs::path& at) {
  const auto uid = std::to_string(getuid()), gid = std::to_string(getgid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", "0 " + uid + " 1\n");
  write_text("/proc/self/gid_map", "0 " + gid + " 1\n");
  fs::create_directories(at);
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", at.c_str(), "tmpfs", 0, "size=1m") == 0;
}

/// Asks twice for 64 keys, 2 MB together: 0 if all results are right.
int use_up(const fs::path& folder) {
  Cache cache(folder);
  for (unsigned i = 0; i < 128; ++i) {
    const std::string want = bytes_of(i % 64);
    if (cache.get(cache_key(std::to_string(i % 64)), [&] { return entry(want); }).bytes != want) return 1;
  }
  // Some were kept, some could not be, and none is damaged.
  int kept = 0;
  cache.notes();
  for (unsigned i = 0; i < 64; ++i)
    if (const auto found = cache.find(cache_key(std::to_string(i)))) kept += found->bytes == bytes_of(i) ? 1 : 1000;
  return kept > 0 && kept < 64 && cache.notes().empty() ? 0 : 2;
}

void skip(const char* why) { std::printf("[skip] %s\n", why); }

}  // namespace

TEST_CASE("what stands where an entry should be is never waited for, nor followed", "[cache]") {
  const CacheFolder folder;
  fs::create_directories(folder.path);
  const fs::path elsewhere = folder.path / "elsewhere";
  Cache cache(folder.path);
  const CacheKey key = cache_key("a page");
  const fs::path path = cache.file_of(key);
  REQUIRE(cache.keep(key, entry("code")));
  const std::string sound = text_of(path);
  write_text(elsewhere, sound);
  const auto link_to = [&](const fs::path& target) { return symlink(target.c_str(), path.c_str()) == 0; };
  struct Odd {
    const char* name;
    std::function<bool()> make;
    bool goes = true;
  };
  const std::vector<Odd> all{
      {"a pipe", [&] { return mkfifo(path.c_str(), 0600) == 0; }},
      {"a folder", [&] { return mkdir(path.c_str(), 0700) == 0; }},
      {"a folder with something in it", [&] { return fs::create_directories(path / "more"); }, false},
      {"a link to a sound entry", [&] { return link_to(elsewhere); }},
      {"a link to what never ends", [&] { return link_to("/dev/zero"); }},
      {"a link to nothing", [&] { return link_to("nowhere"); }},
      {"a link to itself", [&] { return link_to(path); }},
      {"a device", [&] { return mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 5)) == 0; }},
      {"an empty file", [&] { return std::ofstream(path).good(); }},
      {"a file of holes", [&] { return std::ofstream(path).good() && truncate(path.c_str(), 5L << 30) == 0; }},
  };
  for (const Odd& odd : all) {
    INFO(odd.name);
    fs::remove_all(path);
    if (!odd.make()) {
      skip(odd.name);
      continue;
    }
    // In a child, which is killed if it waits after all.
    CHECK(tests::in_child([&] {
            Cache its(folder.path);
            for (int i = 0; i < 2; ++i)
              if (its.get(key, [] { return entry("new"); }).bytes != "new") return 1;
            return its.notes().empty() ? 2 : 0;
          }) == 0);
    CHECK(Cache(folder.path).find(key).has_value() == odd.goes);
    CHECK(text_of(elsewhere) == sound);
  }
}

TEST_CASE("what stands where locks or the sum should be is no failure", "[cache]") {
  const CacheKey key = cache_key("a page");
  for (const std::string& name : {"locks/" + key.name().substr(0, 3), std::string("locks/total"), std::string("total"),
                                  std::string("locks"), std::string("unfinished")}) {
    const CacheFolder folder;
    INFO(name);
    for (const bool pipe : {true, false}) {
      const fs::path at = folder.path / name;
      fs::remove_all(folder.path);
      fs::create_directories(at.parent_path());
      REQUIRE((pipe ? mkfifo(at.c_str(), 0600) : symlink("/dev/full", at.c_str())) == 0);
      CHECK(tests::in_child([&] {
              Cache cache(folder.path);
              return cache.get(key, [] { return entry("code"); }).bytes == "code" ? 0 : 1;
            }) == 0);
    }
  }
}

TEST_CASE("a folder that may not be written is only read", "[cache]") {
  const CacheFolder folder;
  const CacheKey key = cache_key("a page"), other = cache_key("other");
  REQUIRE(Cache(folder.path).keep(key, entry("code")));
  if (geteuid() == 0) {
    skip("root may write to any folder");
  } else {
    for (const char* part : {"", "entries", "locks", "unfinished"})
      fs::permissions(folder.path / part, fs::perms::owner_read | fs::perms::owner_exec);
    Cache cache(folder.path);
    CHECK(cache.get(key, [] { return entry("other"); }).bytes == "code");
    CHECK(cache.get(other, [] { return entry("new"); }).bytes == "new");
    CHECK_FALSE(cache.notes().empty());
    for (const char* part : {"", "entries", "locks", "unfinished"})
      fs::permissions(folder.path / part, fs::perms::owner_all);
  }
  // The same on a read-only file system, which refuses root too.
  const int code = tests::in_child([&] {
    const fs::path at = folder.path / "mounted";
    if (!mount_small(at) || !Cache(at).keep(key, entry("code"))) return cannot;
    if (mount(nullptr, at.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return cannot;
    Cache cache(at);
    if (cache.get(key, [] { return entry("other"); }).bytes != "code") return 1;
    if (cache.get(other, [] { return entry("new"); }).bytes != "new") return 2;
    return cache.notes().empty() ? 3 : 0;
  });
  if (code == cannot) return skip("no file system can be mounted here");
  CHECK(code == 0);
}

TEST_CASE("a disk that is full keeps what it can, and nothing in part", "[cache]") {
  const CacheFolder folder;
  const int code = tests::in_child([&] { return mount_small(folder.path) ? use_up(folder.path) : cannot; });
  if (code == cannot) return skip("no file system can be mounted here");
  CHECK(code == 0);
}

TEST_CASE("a file that may not grow is not kept in part", "[cache]") {
  const CacheFolder folder;
  CHECK(tests::in_child([&] {
          // Writing works up to here and then fails, as on a disk that fills up.
          const struct rlimit limit { 40000, 40000 };
          signal(SIGXFSZ, SIG_IGN);
          if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
          return use_up(folder.path);
        }) == 0);
  CHECK(fs::is_empty(folder.path / "unfinished"));
}

TEST_CASE("a folder that is removed again and again is made anew", "[cache]") {
  const CacheFolder folder;
  Cache cache(folder.path);
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0, calls = 0;
  std::thread user([&] {
    for (unsigned i = 0; !stop; ++i, ++calls)
      if (cache.get(cache_key(std::to_string(i % 8)), [&] { return entry(bytes_of(i % 8)); }).bytes != bytes_of(i % 8))
        ++wrong;
  });
  for (int i = 0; i < 100; ++i) {
    usleep(1000);
    std::error_code error;
    fs::remove_all(folder.path, error);
  }
  tests::comes_true([&] { return calls > 0; });
  stop = true;
  user.join();
  CHECK(wrong == 0);
  CHECK(calls > 0);
  CHECK(cache.keep(cache_key("a"), entry("code")));
  CHECK(cache.find(cache_key("a")));
}

TEST_CASE("a stale file of a server is asked for again", "[cache]") {
  int asked = 0;
  const auto stale_for = [&](int times) {
    asked = 0;
    return [&asked, times] {
      errno = ++asked <= times ? ESTALE : 0;
      return asked;
    };
  };
  CHECK(again_if_stale(stale_for(0)) == 1);
  CHECK(again_if_stale(stale_for(2)) == 3);
  CHECK(again_if_stale(stale_for(99)) == 3);
}

TEST_CASE("a child that was forked while its parent built holds nobody up", "[cache]") {
  const CacheFolder folder;
  const CacheKey key = cache_key("a page"), same_lock = key;
  Cache cache(folder.path);
  pid_t child = -1;
  CHECK(cache
            .get(key,
                 [&] {
                   child = tests::fork_child();
                   if (child == 0) {
                     usleep(20'000'000);
                     _exit(0);
                   }
                   return entry("code");
                 })
            .bytes == "code");
  REQUIRE(child > 0);
  fs::remove(cache.file_of(key));
  CHECK(cache.get(same_lock, [] { return entry("again"); }).bytes == "again");
  CHECK(cache.notes().empty());
  kill(child, SIGKILL);
  CHECK(tests::status_of(child) == -1);
}

TEST_CASE("a lock whose holder was killed is not waited for, though a child of it lives", "[cache]") {
  const CacheFolder folder;
  const CacheKey key = cache_key("a page");
  int ready[2] = {}, end[2] = {};
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(end) == 0);
  const pid_t holder = tests::fork_child();
  if (holder == 0) {
    Cache(folder.path).get(key, [&]() -> CacheEntry {
      char byte = 0;
      if (tests::fork_child() == 0) {
        close(end[1]);
        // Lives until the test is over, whatever its result.
        _exit(static_cast<int>(read(end[0], &byte, 1)));
      }
      _exit(static_cast<int>(write(ready[1], &byte, 1)) - 1);
    });
  }
  close(ready[1]);
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(tests::status_of(holder) == 0);
  Cache cache(folder.path);
  const auto start = std::chrono::steady_clock::now();
  CHECK(cache.get(key, [] { return entry("code"); }).bytes == "code");
  // It takes a second; its patience is a minute, and so is the life of a child that never ends by itself.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(40));
  const std::vector<std::string> notes = cache.notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("which process " + std::to_string(holder) + " of ") != std::string::npos);
  close(end[1]);
  close(end[0]);
  close(ready[0]);
}

TEST_CASE("a limit on the size of files ends no call, and leaves nothing unfinished", "[cache]") {
  for (const rlim_t most : {rlim_t{0}, rlim_t{1000}}) {
    const CacheFolder folder;
    const int status = tests::in_child([&] {
      const rlimit limit{most, most};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return cannot;
      Cache cache(folder.path);
      const std::string want(100'000, 'x');
      if (cache.get(cache_key("1"), [&] { return entry(want); }).bytes != want) return 1;
      if (cache.notes().size() != 1) return 2;
      // The program's own signals are as they were.
      sigset_t blocked, pending;
      if (pthread_sigmask(SIG_BLOCK, nullptr, &blocked) != 0 || sigismember(&blocked, SIGXFSZ) != 0) return 3;
      return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0 ? 0 : 4;
    });
    CHECK(status == 0);
    CHECK(fs::is_empty(folder.path / "unfinished"));
    CHECK_FALSE(
        fs::exists(folder.path / "entries" / cache_key("1").name().substr(0, 2) / cache_key("1").name().substr(2)));
  }
}

}  // namespace attune::runtime
