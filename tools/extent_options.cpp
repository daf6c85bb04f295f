// tools/extent_options.cpp — reads sizes from options and refuses bad ones
#include "tools/extent_options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <fmt/format.h>

#include "compiler/lower.h"
#include "tools/text.h"
#include <attune/error.h>

namespace attune::tools {
namespace {

std::int32_t within(const std::string& option, std::int64_t value, std::int64_t least, std::int64_t most) {
  require_size(option, value, least, most);
  return static_cast<std::int32_t>(value);
}

/// 128x64 is 128 queries by 64 keys; 128 is 128x128.
std::array<std::int64_t, 2> tile_of(const std::string& text) {
  std::array<std::int64_t, 2> sizes{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto [next, status] = std::from_chars(at, end, sizes[i]);
    const bool last = next == end;
    if (status != std::errc{} || (last && i == 0 && next == text.data()) || (!last && (i == 1 || *next != 'x')) ||
        sizes[i] < 1 || sizes[i] > 1 << 20)
      throw Error("bad-tile", fmt::format("--tile does not know `{}`", text),
                  {.name = "--tile", .line = 0, .text = text, .begin = 0, .end = text.size()},
                  "a tile is queries x keys, each from 1 to 1048576", "write --tile 128x64");
    if (last && i == 0) return {sizes[0], sizes[0]};
    at = next + 1;
  }
  return sizes;
}

/// Refuses sizes whose pairs 64 bits cannot count.
void check_pairs(const runtime::Extent& e) {
  std::int64_t pairs = 1;
  for (const std::int32_t size : {e.batch, e.heads, e.q_len, e.kv_len})
    if (__builtin_mul_overflow(pairs, std::int64_t{size}, &pairs))
      throw Error(
          "bad-size", "there are too many pairs to count",
          {.name = fmt::format("--batch {} --heads {} --q-len {} --kv-len {}", e.batch, e.heads, e.q_len, e.kv_len)},
          "there are 2^63 or more", "make one of the four smaller");
}

}  // namespace

runtime::Extent ExtentOptions::extent() const {
  runtime::Extent e;
  const std::int64_t most = compiler::max_length;
  e.q_len = within("--q-len", q_len, 1, most);
  e.q_offset = within("--q-offset", q_offset, 0, most - q_len);
  e.kv_len = within("--kv-len", kv_len.value_or(q_offset + q_len), 1, most);
  e.batch = within("--batch", batch, 1, most);
  e.heads = within("--heads", heads, 1, most);
  within("--b", b, 0, batch - 1);
  within("--h", h, 0, heads - 1);
  const auto [down, across] = tile_of(tile);
  e.tile_q = static_cast<std::int32_t>(down);
  e.tile_kv = static_cast<std::int32_t>(across);
  check_pairs(e);
  return e;
}

void ExtentOptions::add_to(CLI::App& verb, bool beside_call) {
  verb.add_option(beside_call ? "--q-len" : "--q-len,--seq", q_len, fmt::format("queries; {} if left out", q_len))
      ->type_name("N");
  verb.add_option(beside_call ? "--kv-len" : "--kv-len,--kv-seq", kv_len,
                  "keys; q_offset plus the number of queries if left out")
      ->type_name("N");
  verb.add_option("--q-offset", q_offset, "the position of the first query")->type_name("N");
  verb.add_option("--tile", tile, fmt::format("queries x keys of a tile; {} if left out", tile))->type_name("QxKV");
  verb.add_option("--batch", batch, "batch entries")->type_name("N");
  verb.add_option("--heads", heads, "heads")->type_name("N");
  verb.add_option("--b", b, "the batch entry a picture shows")->type_name("I");
  verb.add_option("--h", h, "the head a picture shows")->type_name("I");
}

}  // namespace attune::tools
