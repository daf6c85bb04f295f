// runtime/machine/cache/entry.cpp — one file of the cache: a head of lines, then bytes; parsed without trusting the
// file
#include "runtime/machine/cache/cache.h"

#include <charconv>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/machine/watch/log.h"

namespace attune::runtime {
namespace {

constexpr std::string_view entry_magic = "attune cache 1\n", any_entry_magic = "attune cache ";
// Part of the format, like the magic.
constexpr XXH64_hash_t seeds[2] = {1, 0x9e3779b97f4a7c15ull + 1};
constexpr std::string_view key_line = "key: ", bytes_line = "bytes: ", checksum_line = "checksum: ",
                           head_line = "head: ";

std::string hex(XXH128_hash_t h) { return fmt::format("{:016x}{:016x}", h.high64, h.low64); }
std::string checksum(std::string_view text) { return hex(XXH3_128bits(text.data(), text.size())); }

/// Takes a line off the front if it starts with `begin`, and returns the rest of that line; else nothing.
std::optional<std::string_view> take_line(std::string_view& text, std::string_view begin) {
  if (!text.starts_with(begin)) return std::nullopt;
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(begin.size(), end - begin.size());
  text.remove_prefix(end + 1);
  return line;
}

/// Only as fmt writes it, so that each number has one spelling.
std::optional<std::size_t> number(std::string_view text) {
  std::size_t out = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), out);
  if (error != std::errc{} || end != text.end() || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  return out;
}

}  // namespace

CacheKey cache_key(std::string_view all) {
  const XXH128_hash_t a = XXH3_128bits_withSeed(all.data(), all.size(), seeds[0]),
                      b = XXH3_128bits_withSeed(all.data(), all.size(), seeds[1]);
  return {{a.high64, a.low64, b.high64, b.low64}};
}
std::string CacheKey::name() const { return fmt::format("{:016x}{:016x}", words[0], words[1]); }
std::string CacheKey::hex() const { return name() + fmt::format("{:016x}{:016x}", words[2], words[3]); }

std::string print_entry(const CacheKey& key, const CacheEntry& entry) {
  std::string out(entry_magic);
  out += fmt::format("{}{}\n", key_line, key.hex());
  for (const auto& [name, value] : entry.facts) out += fmt::format("{}: {}\n", one_line(name), one_line(value));
  out += fmt::format("{}{}\n{}{}\n", bytes_line, entry.bytes.size(), checksum_line, checksum(entry.bytes));
  out += fmt::format("{}{}\n\n", head_line, checksum(out));
  return out + entry.bytes;
}

ParsedHead parse_head(std::string_view text) {
  ParsedHead out;
  const auto wrong = [&](std::string why) {
    out.wrong = std::move(why);
    return out;
  };
  const std::string_view all = text;
  out.other_format = !text.starts_with(entry_magic) && text.starts_with(any_entry_magic);
  if (!text.starts_with(entry_magic)) return wrong("it is not an entry of this version");
  text.remove_prefix(entry_magic.size());
  const auto key = take_line(text, key_line);
  if (!key) return wrong("it has no key");
  out.key = *key;
  for (;;) {
    if (const auto bytes = take_line(text, bytes_line)) {
      const auto size = number(*bytes);
      if (!size) return wrong("its size is not a number");
      out.bytes = *size;
      break;
    }
    const auto line = take_line(text, "");
    const std::size_t colon = line ? line->find(": ") : std::string_view::npos;
    if (colon == std::string_view::npos) return wrong("its header ends early");
    out.facts.emplace_back(line->substr(0, colon), line->substr(colon + 2));
  }
  const auto sum = take_line(text, checksum_line);
  if (!sum) return wrong("it has no checksum");
  out.checksum = *sum;
  const std::string_view head = all.substr(0, all.size() - text.size());
  const auto head_sum = take_line(text, head_line);
  if (!head_sum || !text.starts_with('\n')) return wrong("its header ends early");
  if (*head_sum != checksum(head)) return wrong("its header is damaged");
  out.size = all.size() - text.size() + 1;
  return out;
}

ParsedEntry parse_entry(std::string_view text, std::string_view key) {
  const auto wrong = [](std::string why) { return ParsedEntry{std::nullopt, std::move(why), false}; };
  ParsedHead head = parse_head(text);
  if (!head.wrong.empty()) return {std::nullopt, std::move(head.wrong), head.other_format};
  text.remove_prefix(head.size);
  if (!head.key.starts_with(key)) return wrong("it belongs to another key");
  if (text.size() != head.bytes) return wrong(fmt::format("it has {} of {} bytes", text.size(), head.bytes));
  if (head.checksum != checksum(text)) return wrong("its bytes are damaged");
  return {CacheEntry{std::move(head.facts), std::string(text)}, {}, false};
}

ParsedEntry parse_entry(std::string_view text, const CacheKey& key) {
  const std::string hex = key.hex();
  return parse_entry(text, std::string_view(hex));
}

}  // namespace attune::runtime
