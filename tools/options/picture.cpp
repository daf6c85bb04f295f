// tools/options/picture.cpp — files, words and sizes become an attention with data; cells become characters
#include "tools/options/picture.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <langinfo.h>
#include <map>
#include <string_view>

#include <attune/error.h>

#include "compiler/lower.h"
#include "playground/fill.h"
#include "playground/say.h"
#include "runtime/machine/archive.h"
#include "tools/options/call_options.h"

namespace attune::tools {
namespace {

std::int32_t within(const std::string& option, std::int64_t value, std::int64_t least, std::int64_t most) {
  require_size(option, value, least, most);
  return static_cast<std::int32_t>(value);
}

/// 128x64 is 128 queries by 64 keys; 128 is 128x128.
std::array<std::int64_t, 2> tile_of(const std::string& text) {
  const std::vector<std::string> sides = split(text, 'x');
  std::array<std::int64_t, 2> sizes{};
  bool fits = sides.size() <= sizes.size();
  for (std::size_t i = 0; fits && i < sizes.size(); ++i) {
    const std::string& side = sides[std::min(i, sides.size() - 1)];
    const auto [stop, status] = std::from_chars(side.data(), side.data() + side.size(), sizes[i]);
    fits = status == std::errc{} && stop == side.data() + side.size() && sizes[i] >= 1 && sizes[i] <= 1 << 20;
  }
  if (fits) return sizes;
  throw Error("bad-tile", fmt::format("--tile does not know `{}`", text),
              {.name = "--tile", .line = 0, .text = text, .begin = 0, .end = text.size()},
              "a tile is queries x keys, each from 1 to 1048576", "write --tile 128x64");
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

namespace {

/// The --fill of each captured tensor; `captures` are the --capture of all.
std::map<std::string, playground::Fill, std::less<>> fills_of(const std::vector<std::string>& all,
                                                              const std::vector<std::string>& captures) {
  std::map<std::string, playground::Fill, std::less<>> out;
  for (const std::string& one : all) {
    const std::size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error("bad-assignment", "--fill is not followed by NAME=…", {.name = "--fill", .line = 0, .text = one},
                  "a name, a = and a word are expected", "write --fill slope=slopes");
    const std::string name = one.substr(0, equals);
    std::vector<std::string> names;
    for (const std::string& capture : captures) names.push_back(capture.substr(0, capture.find('=')));
    if (std::ranges::find(names, name) == names.end())
      throw Error("unknown-capture", fmt::format("there is no capture `{}` to fill", name),
                  {.name = "--fill", .line = 0, .text = one, .begin = 0, .end = name.size()},
                  names.empty() ? "no --capture is given" : fmt::format("captures are {}", fmt::join(names, ", ")),
                  "name one that --capture declares by its type");
    out[name] = playground::fill_of(one.substr(equals + 1), one);
  }
  return out;
}

}  // namespace

std::int64_t largest_literal(const ir::Expr& root) {
  std::int64_t out = 0;
  for (const ir::Expr& e : ir::in_order(root))
    if (e->op == ir::Op::Literal && e->type == ir::Type::I32)
      out = std::max<std::int64_t>(out, std::abs(std::int64_t{static_cast<std::int32_t>(e->bits)}));
  return out;
}

void PictureOptions::add_to(CLI::App& verb, bool beside_call) {
  text.add_to(verb);
  extent.add_to(verb, beside_call);
  verb.add_option("--fill", fills,
                  "fills a captured tensor that was given as a type: normal, slopes, documents:6, coins:0.2, "
                  "list:1 0x5 and others, as the playground's page lists them")
      ->type_name("NAME=WORD")
      ->allow_extra_args(false);
  verb.add_option("--q", q, "queries, for real scores; without them q . k is 0")->type_name("FILE");
  verb.add_option("--k", k, "keys")->type_name("FILE");
  verb.add_option("--random", random, "random queries and keys of this width, instead of files")->type_name("D");
  verb.add_option("--scale", scale, "the factor of q . k; 1 / sqrt(D) if left out")->type_name("X");
}

std::vector<std::string> PictureOptions::look(const Pictured& of) const {
  auto how = fills_of(fills, text.captures);
  for (const std::string& name : of.declared)
    if (playground::Fill& fill = how[name]; fill.how.empty())
      fill.how = playground::usual_word(of.text.captures.at(name).tensor.dtype);
  std::vector<std::string> out = playground::look_of(of.view, how);
  if (q) out.push_back(fmt::format("--q '{}'", *q));
  if (k) out.push_back(fmt::format("--k '{}'", *k));
  if (random) out.push_back(fmt::format("--random {}", *random));
  if (scale) out.push_back(fmt::format("--scale {}", *scale));
  return out;
}

Pictured PictureOptions::pictured(bool unfilled, compiler::Steps* steps) const {
  if (random) require_size("--random", *random, 1, 1024);
  const auto how = fills_of(fills, text.captures);
  std::vector<std::string> declared;
  const auto filled = [&](const std::string& name, DType type, std::span<const std::int64_t> shape) {
    const auto found = how.find(name);
    if (found == how.end() && !unfilled)
      throw Error("no-data", "a picture cannot be drawn", {}, fmt::format("it reads {}, declared without data", name),
                  fmt::format("give the file: --capture {0}=FILE.npy, or say how to fill it: --fill {0}=normal", name));
    const Owned out = made(type, shape);
    declared.push_back(name);
    playground::fill(out.tensor, found == how.end() ? playground::Fill{} : found->second, name);
    return out;
  };
  Pictured out{.text = built(text, Captures::FilesOrTypes, filled),
               .traced = {},
               .lowered = {},
               .q = {},
               .k = {},
               .view = {.extent = extent.extent(),
                        .b = static_cast<std::int32_t>(extent.b),
                        .h = static_cast<std::int32_t>(extent.h),
                        .scale = scale}};
  out.declared = std::move(declared);
  runtime::View& view = out.view;
  if (q) out.q = read_tensor(*q, "--q " + *q);
  if (k) out.k = read_tensor(*k, "--k " + *k);
  if (random) {
    out.q = playground::random_rows(view.extent.q_len, *random, 2, view.extent);
    out.k = playground::random_rows(view.extent.kv_len, *random, 3, view.extent);
  }
  view.q = out.q.tensor, view.k = out.k.tensor;
  if (view.q.rank == 4 && view.k.rank == 4) {
    view.extent.q_len = static_cast<std::int32_t>(view.q.shape[2]);
    view.extent.kv_len = static_cast<std::int32_t>(view.k.shape[2]);
  }
  out.traced = compiler::trace(out.text.attention);
  out.lowered = compiler::lower(compiler::BoundMod(out.traced), steps);
  runtime::check_reads(out.lowered, out.lowered.slots.captures, view.extent);
  return out;
}

namespace {

std::string half_blocks(const runtime::Grid& g) {
  // Indexed by the upper cell, then the lower one: none, some, all.
  constexpr std::array<std::array<std::string_view, 3>, 3> blocks{{{" ", "▖", "▄"}, {"▘", "▌", "▙"}, {"▀", "▛", "█"}}};
  std::string out;
  for (std::int32_t r = 0; r < g.rows; r += 2) {
    for (std::int32_t c = 0; c < g.columns; ++c)
      out +=
          blocks[static_cast<std::size_t>(g.at(r, c))][r + 1 < g.rows ? static_cast<std::size_t>(g.at(r + 1, c)) : 0];
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out;
}

std::string letters(const runtime::Grid& g) {
  std::string out;
  for (std::int32_t r = 0; r < g.rows; ++r) {
    for (std::int32_t c = 0; c < g.columns; ++c) out += ".+#"[static_cast<std::size_t>(g.at(r, c))];
    out += '\n';
  }
  return out;
}

bool locale_is_utf8() {
  std::setlocale(LC_CTYPE, "");
  return !std::strcmp(nl_langinfo(CODESET), "UTF-8");
}

}  // namespace

Characters characters(const runtime::Grid& grid, bool ascii) {
  if (!ascii && locale_is_utf8()) return {half_blocks(grid), "█ full  ▌ partial  two rows a line"};
  return {letters(grid), "# full  + partial  . empty  one row a line"};
}

std::string digits(const runtime::Heat& heat) {
  const bool by_row = heat.scale == runtime::Heat::Scale::by_row;
  const auto largest = [&](std::int32_t begin, std::int32_t end) {
    double most = 0;
    for (std::int32_t i = begin; i < end; ++i)
      if (const double v = std::fabs(heat.values[static_cast<std::size_t>(i)]); std::isfinite(v))
        most = std::max(most, v);
    return most;
  };
  const double all = largest(0, heat.rows * heat.columns);
  std::string out = heat.caption + "\n";
  for (std::int32_t r = 0; r < heat.rows; r += 2) {
    const std::int32_t begin = r * heat.columns, end = begin + heat.columns;
    const double most = by_row ? largest(begin, end) : all;
    std::string line;
    for (std::int32_t i = begin; i < end; ++i) {
      const double value = heat.values[static_cast<std::size_t>(i)];
      const int level = most > 0 ? static_cast<int>(std::clamp(std::round(9 * value / most), -9.0, 9.0)) : 0;
      line += std::isnan(value) ? ' ' : level < 0 ? static_cast<char>('a' - 1 - level) : static_cast<char>('0' + level);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out + (by_row ? "9: the row's largest\n" : fmt::format("9: {:.3g}, i: {:.3g}\n", all, -all));
}

}  // namespace attune::tools
