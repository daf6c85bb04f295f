// tests/runtime/machine/cache/bundle.test.cpp — bundles: their entries are found and need no compiler, damaged ones are
// not
#include "runtime/machine/cache/bundle.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <attune/error.h>
#include <attune/offline.h>
#include <attune/watch.h>
#include <unistd.h>

#include "runtime/machine/cache/objects.h"
#include "tests/bundle_text.h"
#include "tests/catch.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/golden.h"
#include "tests/refusal.h"

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;
using tests::refusal;

BundleEntry entry(const std::string& content, std::string bytes) {
  return {cache_key(content), "of " + content, {{{"kind", "cubin"}, {"of", content}}, std::move(bytes)}};
}

const std::vector<BundleEntry> three{entry("a page", "code"), entry("another", std::string("\0\n\nhead: 1", 10)),
                                     entry("a third", std::string(500, 'x'))};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// A bundle, with the bytes it reads.
struct Opened {
  std::string text;
  std::shared_ptr<const Bundle> bundle;
  explicit Opened(std::string from) : text(std::move(from)), bundle(Bundle::of(bytes_of(text), "a bundle")) {}
};

struct File {
  fs::path path;
  explicit File(const std::string& text) {
    std::string made = (fs::temp_directory_path() / "attune-bundle-XXXXXX").string();
    const int file = mkstemp(made.data());
    REQUIRE(file >= 0);
    close(file);
    path = made;
    std::ofstream(path, std::ios::binary) << text;
  }
  ~File() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

CacheEntry never() { throw Bug("a kernel is built that is there"); }

}  // namespace

TEST_CASE("a bundle has what was put into it, in a file and in memory", "[bundle]") {
  const std::string text = print_bundle(three);
  const File file(text);
  for (const auto& bundle : {Bundle::of(bytes_of(text), "a bundle"), Bundle::open(file.path)}) {
    CHECK(bundle->items().size() == 3);
    for (const BundleEntry& one : three) {
      const Bundle::Item* item = bundle->find(one.key);
      REQUIRE(item);
      CHECK(item->label == one.label);
      const ParsedEntry parsed = item->read();
      REQUIRE(parsed.entry);
      CHECK(parsed.entry->bytes == one.entry.bytes);
      CHECK(parsed.entry->facts == one.entry.facts);
    }
    CHECK(bundle->find(cache_key("a fourth")) == nullptr);
  }
  const Opened none(print_bundle({}));
  CHECK(none.bundle->items().empty());
}

TEST_CASE("a bundle whose file is cut short after it was opened is whole", "[bundle]") {
  const std::vector<BundleEntry> one{entry("a page", std::string(1 << 20, 'x'))};
  const File file(print_bundle(one));
  const auto bundle = Bundle::open(file.path);
  fs::resize_file(file.path, 0);
  const ParsedEntry parsed = bundle->items()[0].read();
  REQUIRE(parsed.entry);
  CHECK(parsed.entry->bytes == one[0].entry.bytes);
}

TEST_CASE("a bundle whose file is cut short while it is opened is whole or refused", "[bundle]") {
  std::vector<BundleEntry> many;
  for (int i = 0; i < 2000; ++i) many.push_back(entry(std::to_string(i), "code"));
  const std::string text = print_bundle(many);
  const File file(text);
  std::atomic<bool> stop = false;
  std::thread cutter([&] {
    while (!stop) {
      fs::resize_file(file.path, 0);
      std::ofstream(file.path, std::ios::binary) << text;
    }
  });
  int refused = 0, whole = 0;
  const auto open_once = [&] {
    try {
      const auto bundle = Bundle::open(file.path);
      ++whole;
      CHECK(bundle->items().back().read().entry);
    } catch (const Error& e) {
      ++refused;
      CHECK((e.code == "bundle-unreadable" || e.code == "bundle-damaged"));
    }
  };
  // The other thread may begin late.
  tests::comes_true([&] {
    for (int i = 0; i < 100; ++i) open_once();
    return refused > 0 && ((refused >= 20 && whole >= 20) || refused + whole >= 2000);
  });
  stop = true;
  cutter.join();
  CHECK(refused > 0);
}

TEST_CASE("the same entries make the same bytes, in any order", "[bundle]") {
  std::vector<BundleEntry> other(three.rbegin(), three.rend());
  CHECK(print_bundle(other) == print_bundle(three));
  other.push_back(entry("a page", "other code, of a key that is there"));
  CHECK(print_bundle(other) == print_bundle(three));
}

TEST_CASE("no damage to a bundle is missed", "[bundle]") {
  const std::string whole = print_bundle(three);
  const auto is_refused = [](const std::string& text) {
    try {
      Bundle::of(bytes_of(text), "a bundle");
    } catch (const Error& e) {
      return e.code == "bundle-damaged";
    }
    return false;
  };
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("cut to " << size);
    CHECK(is_refused(whole.substr(0, size)));
  }
  CHECK(is_refused(whole + "x"));
  // A flipped bit in the head makes the whole bundle invalid; one in an entry makes only that entry a miss.
  const std::size_t head = whole.find("\n\n") + 2;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      INFO("bit " << bit << " of byte " << at);
      if (at < head) {
        CHECK(is_refused(damaged));
        continue;
      }
      const Opened held(damaged);
      CHECK(std::ranges::count_if(held.bundle->items(),
                                  [](const Bundle::Item& item) { return !item.read().entry.has_value(); }) == 1);
    }
}

TEST_CASE("what is wrong with a bundle is said", "[bundle]") {
  // Not compressed, so that its size does not depend on zstd.
  std::string whole = tests::bundle_text("a page", "an entry", "8");
  const auto told = [](const std::string& golden, const std::string& text) {
    const Error e = refusal([&] { Bundle::of(bytes_of(text), "kernels.attune"); });
    CHECK(e.code == "bundle-damaged");
    tests::golden_error(golden, e.what());
  };
  told("bundle-damaged.magic", "#!/bin/sh\n");
  told("bundle-damaged.short", whole.substr(0, whole.size() - 3));
  whole[60] ^= 1;
  told("bundle-damaged", whole);
  tests::golden_error("bundle-unreadable", refusal([] { Bundle::open("no/such/kernels.attune"); }).what());
  CHECK(refusal([] { Bundle::open(fs::temp_directory_path()); }).code == "bundle-unreadable");
  CHECK(refusal([] { Bundle::open(File("").path); }).code == "bundle-unreadable");
  CHECK(refusal([] { offline::load("no/such/kernels.attune"); }).code == "bundle-unreadable");
}

TEST_CASE("an entry is compressed where that makes it smaller", "[bundle]") {
  const Opened held(print_bundle(three));
  for (const BundleEntry& one : three) {
    const Bundle::Item& item = *held.bundle->find(one.key);
    INFO(one.label);
    CHECK(item.size == print_entry(one.key, one.entry).size());
    CHECK(item.stored.size() <= item.size);
  }
  const Bundle::Item& longest = *held.bundle->find(three[2].key);
  CHECK((longest.stored.size() < longest.size / 2) == has_zstd());
}

TEST_CASE("no size that a head tells of is allocated before it is known to be one", "[bundle]") {
  const std::string text = print_entry(three[2].key, three[2].entry), stored = compressed(text).value_or(text);
  for (const char* size :
       {"67108865", "1099511627776", "18446744073709551615", "18446744073709551616", "-1", "3", ""}) {
    const std::string bundle = tests::bundle_text("a third", stored, size);
    CHECK(refusal([&] { Bundle::of(bytes_of(bundle), "a bundle"); }).code == "bundle-damaged");
  }
  if (!has_zstd()) return;
  const auto wrong = [&](const std::string& there, std::size_t size) {
    const Opened held(tests::bundle_text("a third", there, std::to_string(size)));
    return held.bundle->items()[0].read().wrong;
  };
  CHECK(wrong(stored, text.size()) == "");
  // The frame's size is another one, or it is not a frame.
  for (const std::size_t size : {text.size() - 1, text.size() + 1, Bundle::most_compressed})
    CHECK(wrong(stored, size) == "its bytes are not what zstd wrote");
  CHECK(wrong(stored.substr(0, stored.size() - 1), text.size()) == "its bytes are not what zstd wrote");
  CHECK(wrong("no frame", 100) == "its bytes are not what zstd wrote");
  const std::string other(100, 'x');
  CHECK(wrong(compressed(other).value_or(""), other.size()) == "it is not an entry of this version");
}

TEST_CASE("who has a bundle compiles nothing that is in it, whatever the compiler is", "[bundle]") {
  const Opened held(print_bundle(three));
  for (const char* compiler : {"NVRTC 12", "NVRTC 13", ""}) {
    Objects objects;
    objects.add(held.bundle);
    Origin origin = Origin::memory;
    CHECK(objects.get({"a page", [=] { return std::string(compiler); }}, never, &origin)->bytes == "code");
    CHECK(origin == Origin::bundle);
  }
}

TEST_CASE("a damaged entry is a miss, with a note", "[bundle]") {
  std::string text = print_bundle(three);
  {
    const Opened sound(text);
    text[static_cast<std::size_t>(sound.bundle->find(three[0].key)->stored.data() - sound.text.data())] ^= 1;
  }
  const Opened held(text);
  std::vector<std::string> notes;
  const auto watching = watch::on({.notice = [&](const watch::Notice& fact) { notes.push_back(fact.text); }});
  Objects objects;
  objects.add(held.bundle);
  for (int again = 0; again < 2; ++again)
    CHECK(objects.get({"a page"}, [] { return CacheEntry{{}, "built"}; })->bytes == "built");
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == "of a page of a bundle is not used: its bytes are damaged");
}

TEST_CASE("later bundles are looked at first", "[bundle]") {
  const Opened first(print_bundle({entry("a page", "first"), entry("another", "other")})),
      second(print_bundle({entry("a page", "second")}));
  Objects objects;
  objects.add(first.bundle);
  objects.add(second.bundle);
  CHECK(objects.get({"a page"}, never)->bytes == "second");
  CHECK(objects.get({"another"}, never)->bytes == "other");
}

TEST_CASE("with compiling off a kernel that is nowhere is refused, and asked for again once there is a bundle",
          "[bundle]") {
  const Opened held(print_bundle(three));
  Objects objects;
  objects.jit(false);
  for (int i = 0; i < 2; ++i) CHECK(refusal([&] { objects.get({"a page"}, never); }).code == "kernel-missing");
  CHECK(objects.find({"a page"}) == nullptr);
  objects.add(held.bundle);
  REQUIRE(objects.find({"a page"}) != nullptr);
  CHECK(objects.get({"a page"}, never)->bytes == "code");
  // Compiled kernels stay usable.
  objects.jit(true);
  objects.get({"a fourth"}, [] { return CacheEntry{{}, "built"}; });
  objects.jit(false);
  CHECK(objects.get({"a fourth"}, never)->bytes == "built");
}

TEST_CASE("what a bundle says of content that it does not have is no code", "[bundle]") {
  const BundleEntry facts{Objects::key_of_facts("a page"), "spills", {{{"spilled", "16"}}, ""}};
  const Opened held(print_bundle({facts}));
  Objects objects;
  objects.add(held.bundle);
  REQUIRE(objects.facts("a page"));
  CHECK(objects.facts("a page")->facts[0].second == "16");
  CHECK(objects.facts("another") == nullptr);
  CHECK(objects.find({"a page"}) == nullptr);
}

TEST_CASE("two processes read one bundle while it is replaced", "[bundle]") {
  const std::string text = print_bundle(three);
  const File file(text);
  const auto work = [&] {
    const auto bundle = Bundle::open(file.path);
    for (int i = 0; i < 200; ++i)
      for (const BundleEntry& one : three) {
        const Bundle::Item* item = bundle->find(one.key);
        if (!item || !item->read().entry) return 1;
      }
    return 0;
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = tests::fork_child();
    if (child == 0) _exit(work());
    children.push_back(child);
  }
  // In one step, as attune compile writes it.
  const fs::path beside = file.path.string() + ".new";
  std::ofstream(beside, std::ios::binary) << print_bundle({three[0], three[1], three[2], entry("a fourth", "more")});
  fs::rename(beside, file.path);
  for (const pid_t child : children) CHECK(tests::status_of(child) == 0);
  CHECK(Bundle::open(file.path)->items().size() == 4);
}

}  // namespace attune::runtime
