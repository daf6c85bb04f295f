// tests/fuzz/bundle.fuzz.cpp — any bytes are a bundle whose entries lie within it, or are refused
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include <attune/error.h>

#include "runtime/machine/cache/bundle.h"
#include "tests/bundle_text.h"
#include "tests/fuzz/broken.h"

using namespace attune::runtime;
using attune::tests::broken;

namespace {

/// Null if it is refused.
std::shared_ptr<const Bundle> read(const std::string& text) {
  try {
    return Bundle::of(std::as_bytes(std::span(text)), "bytes");
  } catch (const attune::Error& e) {
    if (e.code != "bundle-damaged" || e.why.empty()) broken("it is refused for no reason", text);
    return nullptr;
  }
}

void check(const std::string& text) {
  const auto bundle = read(text);
  if (!bundle) return;
  for (const Bundle::Item& item : bundle->items()) {
    if (item.stored.data() < text.data() || item.stored.data() + item.stored.size() > text.data() + text.size())
      broken("an entry lies outside", text);
    if (item.size > std::max(item.stored.size(), Bundle::most_compressed)) broken("an entry is of any size", text);
    if (bundle->find(item.key) != &item) broken("an entry is not found by its key", text);
    item.read();
  }
}

/// The first line is the size after decompression; the rest is the compressed bytes.
void check_stored(const std::string& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return;
  const std::string size = text.substr(0, end), rest = text.substr(end + 1);
  check(attune::tests::bundle_text("a", rest, size));
  check(attune::tests::bundle_text("a", compressed(rest).value_or(rest), std::to_string(rest.size())));
}

/// Each line is an entry and its label. One byte of the result is changed.
void check_entries(const std::string& rest, std::size_t change) {
  std::vector<BundleEntry> entries;
  for (std::size_t at = 0; at < rest.size();) {
    const std::size_t end = std::min(rest.find('\n', at), rest.size());
    const std::string line = rest.substr(at, end - at);
    entries.push_back({cache_key(line), line, {{{"line", line}}, line}});
    at = end + 1;
  }
  std::string text = print_bundle(entries);
  const auto whole = read(text);
  if (!whole) broken("what was printed is refused", text);
  for (const BundleEntry& one : entries) {
    const Bundle::Item* item = whole->find(one.key);
    if (!item) broken("an entry is missing", text);
    const auto entry = item->read().entry;
    if (entry && entry->bytes != one.entry.bytes) broken("it reads as other bytes", text);
  }
  check(text);
  const std::size_t damaged = change % text.size();
  text[damaged] = static_cast<char>(text[damaged] ^ 1);
  if (const auto bundle = read(text)) {
    const auto bad = std::ranges::count_if(bundle->items(),
                                           [](const Bundle::Item& item) { return !item.read().entry; });
    if (bad != 1) broken("damage is not seen, or in more than one place", text);
  }
}

}  // namespace

/// The first byte (a letter in the seeds) says what the rest is: the text of a bundle, what to make a bundle from, or
/// what a bundle holds. The latter two exist because random bytes never have the right checksum.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0: check(rest); break;
    case 1: check_entries(rest, data[0] / 3 * 37u); break;
    default: check_stored(rest);
  }
  return 0;
}
