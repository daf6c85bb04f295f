// tools/picture.cpp — cells from runs of tiles; runs of equal cells become characters or rectangles
#include "tools/picture.h"

#include <algorithm>
#include <array>
#include <clocale>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <langinfo.h>
#include <map>
#include <string_view>

namespace attune::tools {
namespace {

using runtime::Keep;

std::size_t as_size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Filled rectangles, in cells.
struct Box {
  std::int32_t x, y, width, height;
};

/// The cells where `is` holds, as boxes: runs along each row; a run that the next row repeats extends its box.
std::vector<Box> boxes(std::int32_t rows, std::int32_t columns,
                       const std::function<bool(std::int32_t row, std::int32_t column)>& is) {
  std::vector<Box> done;
  std::map<std::pair<std::int32_t, std::int32_t>, Box> open, next;
  for (std::int32_t y = 0; y < rows; ++y) {
    next.clear();
    for (std::int32_t x = 0; x < columns;) {
      if (!is(y, x)) {
        ++x;
        continue;
      }
      const std::int32_t from = x;
      while (x < columns && is(y, x)) ++x;
      const auto above = open.find({from, x});
      Box box = above == open.end() ? Box{from, y, x - from, 0} : above->second;
      ++box.height;
      if (above != open.end()) open.erase(above);
      next.emplace(std::pair{from, x}, box);
    }
    for (const auto& [span, box] : open) done.push_back(box);
    std::swap(open, next);
  }
  for (const auto& [span, box] : open) done.push_back(box);
  return done;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';
    else
      out += c;
  }
  return out;
}

/// Breaks text at spaces into lines of up to `width` characters, at most `most` lines.
std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < most) {
    std::size_t end = text.size();
    if (end > width) {
      const std::size_t space = text.rfind(' ', width);
      end = space == std::string_view::npos || space == 0 ? width : space;
    }
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    while (!text.empty() && text[0] == ' ') text.remove_prefix(1);
  }
  if (!text.empty()) lines.back() += " …";
  return lines;
}

// These stay distinct in grey too: dark, middle, light, white.
constexpr std::string_view full = "#2c5f8d", partial = "#e79b4b", dropped = "#fbe9d2", line = "#c9c9c9";

class Page {
 public:
  explicit Page(const Drawing& d) : d_(d) {
    const double q = std::max(1, d.extent.q_len), kv = std::max(1, d.extent.kv_len);
    width_ = longest * std::clamp(kv / q, 0.3, 1.0);
    height_ = longest * std::clamp(q / kv, 0.3, 1.0);
  }

  std::string run() {
    const auto titles = wrapped(d_.title, 58, 5);
    double y = 24;
    std::string text;
    for (const std::string& t : titles) {
      text += fmt::format("<text x=\"{}\" y=\"{}\" font-family=\"monospace\" font-size=\"13\">{}</text>\n", left, y,
                          escaped(t));
      y += 17;
    }
    for (const std::string& note : d_.notes)
      for (const std::string& n : wrapped(note, 80, 3)) {
        text += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#555\">{}</text>\n", left, y, escaped(n));
        y += 15;
      }
    top_ = y + 24;
    text += axes() + panel() + legend();
    const double all_width = left + std::max(width_, longest) + 24, all_height = top_ + height_ + 56;
    return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
                       "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" "
                       "fill=\"#222\">\n<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
                       all_width, all_height, escaped(d_.title)) +
           text + "</svg>\n";
  }

 private:
  static constexpr double left = 64, longest = 440;

  std::string axes() const {
    const auto& e = d_.extent;
    std::string out;
    const auto tick = [&](double x, double y, std::string_view anchor, std::int32_t value) {
      out += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"11\" fill=\"#555\">{}</text>\n", x, y, anchor,
          value);
    };
    tick(left, top_ - 6, "start", 0);
    tick(left + width_, top_ - 6, "end", e.kv_len);
    tick(left - 6, top_ + 10, "end", e.q_offset);
    tick(left - 6, top_ + height_, "end", e.q_offset + e.q_len);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">kv →</text>\n", left + width_ / 2,
                       top_ - 6);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">q ↓</text>\n", left - 6,
                       top_ + height_ / 2 + 4);
    return out;
  }

  /// One path for many boxes; `across` and `down` are a cell's size.
  std::string path(const std::vector<Box>& list, std::string_view colour, double across, double down) const {
    if (list.empty()) return "";
    std::string d;
    for (const Box& b : list) {
      const double x = std::min(width_, b.x * across), y = std::min(height_, b.y * down);
      const double w = std::min(width_ - x, b.width * across), h = std::min(height_ - y, b.height * down);
      d += fmt::format("M{:.5g} {:.5g}h{:.5g}v{:.5g}h-{:.5g}z", x, y, w, h, w);
    }
    return fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", colour, d);
  }

  std::string panel() const {
    const auto& e = d_.extent;
    const Grid& g = d_.grid;
    const double across = width_ / e.kv_len * e.tile_kv * g.by_column, down = height_ / e.q_len * e.tile_q * g.by_row;
    std::string out = fmt::format("<g transform=\"translate({} {})\" shape-rendering=\"crispEdges\">\n", left, top_);
    const auto cells = [&](Keep keep) {
      return boxes(g.rows, g.columns, [&](std::int32_t r, std::int32_t c) { return g.at(r, c) == keep; });
    };
    out += path(cells(Keep::All), full, across, down);
    out += path(cells(Keep::Some), d_.pairs.empty() ? partial : dropped, across, down);
    if (!d_.pairs.empty()) {
      // In partial tiles, the pairs that stay; full tiles are painted already.
      const auto kept = boxes(e.q_len, e.kv_len, [&](std::int32_t q, std::int32_t kv) {
        return d_.pairs[as_size(std::int64_t{q} * e.kv_len + kv)] &&
               g.at(q / e.tile_q / g.by_row, kv / e.tile_kv / g.by_column) == Keep::Some;
      });
      out += path(kept, partial, width_ / e.kv_len, height_ / e.q_len);
    }
    std::string lines;
    if (g.columns <= most_lines)
      for (std::int32_t c = 1; c < g.columns; ++c) lines += fmt::format("M{:.5g} 0v{:.5g}", c * across, height_);
    if (g.rows <= most_lines)
      for (std::int32_t r = 1; r < g.rows; ++r) lines += fmt::format("M0 {:.5g}h{:.5g}", r * down, width_);
    if (!lines.empty())
      out += fmt::format("<path stroke=\"{}\" stroke-width=\"0.5\" shape-rendering=\"auto\" d=\"{}\"/>\n", line, lines);
    out += fmt::format(
        "<rect width=\"{:.5g}\" height=\"{:.5g}\" fill=\"none\" stroke=\"#222\" shape-rendering=\"auto\"/>\n</g>\n",
        width_, height_);
    return out;
  }

  std::string legend() const {
    std::string out;
    double x = left;
    const double y = top_ + height_ + 22;
    const auto entry = [&](std::string_view colour, std::string_view text, double room) {
      out += fmt::format("<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"12\" height=\"12\" fill=\"{2}\" stroke=\"#222\" "
                         "stroke-width=\"0.5\"/><text x=\"{3:.0f}\" y=\"{4:.0f}\">{5}</text>\n",
                         x, y, colour, x + 18, y + 10, text);
      x += room;
    };
    entry(full, "full tile", 88);
    if (d_.pairs.empty()) {
      entry(partial, "partial tile", 106);
    } else {
      entry(partial, "partial tile: kept", 136);
      entry(dropped, "dropped", 88);
    }
    entry("#fff", "empty tile", 90);
    return out;
  }

  static constexpr std::int32_t most_lines = 64;
  const Drawing& d_;
  double width_ = 0, height_ = 0, top_ = 0;
};

}  // namespace

Grid grid(const runtime::TileLists& lists, std::int32_t b, std::int32_t h, std::int32_t most) {
  const runtime::Extent& e = lists.extent;
  const auto grouped = [&](std::int32_t tiles) { return (tiles + most - 1) / most; };
  Grid g;
  g.by_row = std::max(1, grouped(e.q_tiles()));
  g.by_column = std::max(1, grouped(e.kv_tiles()));
  g.rows = (e.q_tiles() + g.by_row - 1) / g.by_row;
  g.columns = (e.kv_tiles() + g.by_column - 1) / g.by_column;
  // For each cell, how many of its tiles are full, and how many are not empty.
  struct Count {
    std::int64_t all = 0, live = 0;
  };
  std::vector<Count> counts(as_size(std::int64_t{g.rows} * g.columns));
  const std::int32_t lines = lists.along_q ? e.kv_tiles() : e.q_tiles();
  const std::int32_t step = lists.along_q ? g.by_row : g.by_column;
  const std::int64_t first = (std::int64_t{lists.by_batch ? b : 0} * (lists.by_head ? e.heads : 1) +
                              (lists.by_head ? h : 0)) *
                             lines;
  for (std::int32_t line_of = 0; line_of < lines; ++line_of)
    for (std::int64_t i = lists.offsets[as_size(first + line_of)]; i < lists.offsets[as_size(first + line_of + 1)];
         ++i) {
      const runtime::Run& run = lists.runs[as_size(i)];
      for (std::int32_t at = run.begin; at < run.end;) {
        const std::int32_t cell = at / step, to = std::min(run.end, (cell + 1) * step);
        const std::int32_t row = lists.along_q ? cell : line_of / g.by_row,
                           column = lists.along_q ? line_of / g.by_column : cell;
        Count& count = counts[as_size(std::int64_t{row} * g.columns + column)];
        count.live += to - at;
        if (run.keep == Keep::All) count.all += to - at;
        at = to;
      }
    }
  g.cells.reserve(counts.size());
  for (std::int32_t r = 0; r < g.rows; ++r)
    for (std::int32_t c = 0; c < g.columns; ++c) {
      const std::int64_t tiles = std::int64_t{std::min(g.by_row, e.q_tiles() - r * g.by_row)} *
                                 std::min(g.by_column, e.kv_tiles() - c * g.by_column);
      const Count& count = counts[as_size(std::int64_t{r} * g.columns + c)];
      g.cells.push_back(count.live == 0 ? Keep::None : count.all == tiles ? Keep::All : Keep::Some);
    }
  return g;
}

std::string half_blocks(const Grid& g) {
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

std::string letters(const Grid& g) {
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

std::string for_terminal(const Grid& g) { return locale_is_utf8() ? half_blocks(g) : letters(g); }

std::string svg(const Drawing& drawing) { return Page(drawing).run(); }

}  // namespace attune::tools
