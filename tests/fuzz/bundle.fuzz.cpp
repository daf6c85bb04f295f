// tests/fuzz/bundle.fuzz.cpp — any bytes are a bundle whose entries lie within it, or are refused
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include <attune/error.h>

#include "runtime/bundle.h"
#include "tests/fuzz/broken.h"

using namespace attune::runtime;
using attune::tests::broken;

namespace {

/// Null where it is refused.
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
    if (item.text.data() < text.data() || item.text.data() + item.text.size() > text.data() + text.size())
      broken("an entry lies outside", text);
    if (bundle->find(item.key) != &item) broken("an entry is not found by its key", text);
    parse_entry(item.text, item.key);
  }
}

}  // namespace

/// The first byte, a letter in the seeds, says whether the rest is the text of a bundle or what one is made of: no
/// chance finds a checksum that fits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {
    check(rest);
    return 0;
  }
  // A line an entry, and its label. Then one byte is changed.
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
    const auto entry = parse_entry(item->text, item->key).entry;
    if (entry && entry->bytes != one.entry.bytes) broken("it reads as other bytes", text);
  }
  check(text);
  const std::size_t damaged = (data[0] / 2) * 37u % text.size();
  text[damaged] = static_cast<char>(text[damaged] ^ 1);
  if (const auto bundle = read(text)) {
    const auto bad = std::ranges::count_if(
        bundle->items(), [](const Bundle::Item& item) { return !parse_entry(item.text, item.key).entry; });
    if (bad != 1) broken("damage is not seen, or in more than one place", text);
  }
  return 0;
}
