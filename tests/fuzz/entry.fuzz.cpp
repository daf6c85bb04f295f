// tests/fuzz/entry.fuzz.cpp — any bytes are an entry of the cache that prints as itself, or are refused with a reason
#include <algorithm>
#include <cstdint>
#include <string>

#include "runtime/machine/cache/cache.h"
#include "tests/fuzz/broken.h"

using namespace attune::runtime;
using attune::tests::broken;

namespace {

void check(const std::string& text) {
  const ParsedHead head = parse_head(text);
  const ParsedEntry parsed = parse_entry(text, head.key);
  if (parsed.entry.has_value() == !parsed.wrong.empty()) broken("neither an entry nor a reason, or both", text);
  if (!head.wrong.empty() && parsed.entry) broken("an entry whose head is none", text);
  if (head.wrong.empty() && head.size > text.size()) broken("a head that is longer than its text", text);
  if (!parsed.entry || head.key.size() != 64) return;
  CacheKey key;
  for (std::size_t i = 0; i < 4; ++i) {
    // A line is a key only if it is written as one.
    if (head.key.find_first_not_of("0123456789abcdef") != std::string::npos) return;
    key.words[i] = std::stoull(head.key.substr(16 * i, 16), nullptr, 16);
  }
  if (print_entry(key, *parsed.entry) != text) broken("printed, it is another text", text);
  if (parse_entry(text, cache_key(text)).entry) broken("it is of any key", text);
}

}  // namespace

/// The first byte (a letter in the seeds) says whether the rest is the text of an entry, or what to make an entry from:
/// random bytes never have the right checksum.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {
    check(rest);
    return 0;
  }
  // Lines are facts up to the first empty line, and the bytes follow it. At most one byte is then changed.
  CacheEntry entry;
  std::size_t at = 0;
  while (at < rest.size()) {
    const std::size_t end = std::min(rest.find('\n', at), rest.size());
    const std::string line = rest.substr(at, end - at);
    at = std::min(end + 1, rest.size());
    if (line.empty()) break;
    const std::size_t colon = std::min(line.find(':'), line.size());
    entry.facts.emplace_back(line.substr(0, colon), line.substr(colon));
  }
  entry.bytes = rest.substr(at);
  const CacheKey key = cache_key(rest);
  std::string text = print_entry(key, entry);
  check(text);
  const ParsedEntry whole = parse_entry(text, key);
  if (whole.entry && whole.entry->bytes != entry.bytes) broken("it reads as other bytes", text);
  const std::size_t damaged = (data[0] / 2) * 37u % text.size();
  text[damaged] = static_cast<char>(text[damaged] ^ 1);
  if (parse_entry(text, key).entry) broken("damage is not seen", text);
  return 0;
}
