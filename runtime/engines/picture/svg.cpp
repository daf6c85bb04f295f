// runtime/engines/picture/svg.cpp — draws runs of equal cells as rectangles; panels with axes and legends, next to each
#include "runtime/engines/picture/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "runtime/engines/picture/page.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {

Grid grid(const TileLists& lists, std::int32_t b, std::int32_t h, std::int32_t most) {
  const Extent& e = lists.extent;
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
      const Run& run = lists.runs[as_size(i)];
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

namespace {

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

class Page {
 public:
  explicit Page(const Drawing& d) : d_(d) {
    const double q = std::max(1, d.extent.q_len), kv = std::max(1, d.extent.kv_len);
    panels_ = (d.grid.rows > 0 ? 1 : 0) + static_cast<int>(d.heat.size());
    longest_ = panels_ > 1 ? 320 : 440;
    width_ = longest_ * std::clamp(kv / q, 0.3, 1.0);
    height_ = longest_ * std::clamp(q / kv, 0.3, 1.0);
    step_ = std::max(width_, panels_ > 1 ? 288.0 : 0.0) + left + 8;
  }

  std::string run() { return d_.plain ? plain() : with_words(); }

 private:
  static constexpr double left = 64;

  static std::string document(double width, double height, std::string_view title, std::string_view inside) {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
        "<title>{2}</title>\n{3}<rect width=\"100%\" height=\"100%\" class=\"attune-page\"/>\n{4}</svg>\n",
        width, height, escaped(title), page_style, inside);
  }

  std::string plain() const {
    constexpr double gap = 12;
    double x = 1;
    std::string out;
    const auto add = [&](const std::string& inside) {
      out += frame(x, 1, inside);
      x += width_ + gap;
    };
    if (d_.grid.rows > 0) add(tiles());
    for (const Heat& heat : d_.heat) add(cells(heat, largest(heat)));
    return document(x - gap + 1, height_ + 2, d_.title, out);
  }

  std::string with_words() {
    const double room = panels_ > 1 ? panels_ * step_ : std::max(width_, longest_);
    double y = 24;
    std::string text;
    const auto line = [&](std::string_view words, std::string_view look, double down) {
      text += fmt::format("<text x=\"{}\" y=\"{}\" {}>{}</text>\n", left, y, look, escaped(words));
      y += down;
    };
    for (const std::string& t : titles(static_cast<std::size_t>(room / 7.6)))
      line(t, "font-family=\"monospace\" font-size=\"13\" class=\"attune-ink\"", 17);
    for (const std::string& note : d_.notes)
      for (const std::string& n : wrapped(note, static_cast<std::size_t>(room / 5.5), 3))
        line(n, "class=\"attune-dim\"", 15);
    top_ = y + (d_.heat.empty() ? 24 : 40);
    double x = left;
    if (d_.grid.rows > 0) {
      text += panel(x, d_.heat.empty() ? "" : "tiles", tiles(), tiles_legend(x));
      x += step_;
    }
    for (const Heat& heat : d_.heat) {
      const double most = largest(heat);
      text += panel(x, heat.caption, cells(heat, most), heat_legend(x, heat, most));
      x += step_;
    }
    const double all_width = panels_ > 1 ? x - left + 24 : left + room + 24, all_height = top_ + height_ + 56;
    return document(all_width, all_height, d_.title, text);
  }

  std::vector<std::string> titles(std::size_t width) const {
    std::vector<std::string> lines;
    for (std::size_t from = 0; from <= d_.title.size();) {
      const std::size_t to = std::min(d_.title.find('\n', from), d_.title.size());
      for (std::string& line : wrapped(std::string_view(d_.title).substr(from, to - from), width, 5))
        lines.push_back(std::move(line));
      from = to + 1;
    }
    return lines;
  }

  /// A panel at x: a frame with `inside` in it, and its axes.
  std::string panel(double x, std::string_view caption, const std::string& inside, const std::string& legend) const {
    const auto& e = d_.extent;
    std::string out;
    const auto word = [&](double at, double y, std::string_view anchor, std::string_view look, const auto& said) {
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", at, y, anchor, look,
                         said);
    };
    constexpr std::string_view tick = "font-size=\"11\" class=\"attune-dim\"", ink = "class=\"attune-ink\"";
    if (!caption.empty()) word(x, top_ - 22, "start", "font-weight=\"bold\" class=\"attune-ink\"", escaped(caption));
    word(x, top_ - 6, "start", tick, 0);
    word(x + width_, top_ - 6, "end", tick, e.kv_len);
    word(x - 6, top_ + 10, "end", tick, e.q_offset);
    word(x - 6, top_ + height_, "end", tick, e.q_offset + e.q_len);
    word(x + width_ / 2, top_ - 6, "middle", ink, "kv →");
    word(x - 6, top_ + height_ / 2 + 4, "end", ink, "q ↓");
    out += frame(x, top_, inside);
    return out + legend;
  }

  std::string frame(double x, double y, const std::string& inside) const {
    return fmt::format(
        "<g transform=\"translate({:.5g} {:.5g})\" shape-rendering=\"crispEdges\">\n{}"
        "<rect width=\"{:.5g}\" height=\"{:.5g}\" class=\"attune-edge\" shape-rendering=\"auto\"/>\n</g>\n",
        x, y, inside, width_, height_);
  }

  /// One path for many boxes; `across` and `down` are a cell's size.
  std::string path(const std::vector<Box>& list, std::string_view look, double across, double down) const {
    if (list.empty()) return "";
    std::string d;
    for (const Box& b : list) {
      // Writes edges, not widths: neighbours write the same number for the edge that they share, so that no gap shows
      // between them at any size.
      const double x = std::min(width_, b.x * across), to_x = std::min(width_, (b.x + b.width) * across);
      const double y = std::min(height_, b.y * down), to_y = std::min(height_, (b.y + b.height) * down);
      d += fmt::format("M{0:.5g} {1:.5g}H{2:.5g}V{3:.5g}H{0:.5g}z", x, y, to_x, to_y);
    }
    return fmt::format("<path class=\"attune-{}\" d=\"{}\"/>\n", look, d);
  }

  std::string tiles() const {
    const auto& e = d_.extent;
    const Grid& g = d_.grid;
    const double across = width_ / e.kv_len * e.tile_kv * g.by_column, down = height_ / e.q_len * e.tile_q * g.by_row;
    const auto with = [&](Keep keep) {
      return boxes(g.rows, g.columns, [&](std::int32_t r, std::int32_t c) { return g.at(r, c) == keep; });
    };
    std::string out = path(with(Keep::All), "full", across, down);
    out += path(with(Keep::Some), d_.pairs.empty() ? "partial" : "dropped", across, down);
    if (!d_.pairs.empty()) {
      // In partial tiles, the pairs that stay; full tiles are painted already.
      const auto kept = boxes(e.q_len, e.kv_len, [&](std::int32_t q, std::int32_t kv) {
        return d_.pairs[as_size(std::int64_t{q} * e.kv_len + kv)] &&
               g.at(q / e.tile_q / g.by_row, kv / e.tile_kv / g.by_column) == Keep::Some;
      });
      out += path(kept, "partial", width_ / e.kv_len, height_ / e.q_len);
    }
    std::string lines;
    if (g.columns <= most_lines)
      for (std::int32_t c = 1; c < g.columns; ++c) lines += fmt::format("M{:.5g} 0v{:.5g}", c * across, height_);
    if (g.rows <= most_lines)
      for (std::int32_t r = 1; r < g.rows; ++r) lines += fmt::format("M0 {:.5g}h{:.5g}", r * down, width_);
    if (!lines.empty()) out += fmt::format("<path class=\"attune-line\" shape-rendering=\"auto\" d=\"{}\"/>\n", lines);
    return out;
  }

  std::string tiles_legend(double x) const {
    std::string out;
    const double y = top_ + height_ + 22;
    const auto entry = [&](std::string_view look, std::string_view text, double room) {
      out += fmt::format("<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"12\" height=\"12\" class=\"attune-{2}\"/><rect "
                         "x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"12\" height=\"12\" class=\"attune-edge\" "
                         "stroke-width=\"0.5\"/><text x=\"{3:.0f}\" y=\"{4:.0f}\" class=\"attune-ink\">{5}</text>\n",
                         x, y, look, x + 18, y + 10, text);
      x += room;
    };
    const bool narrow = panels_ > 1;
    entry("full", narrow ? "full" : "full tile", narrow ? 54 : 88);
    if (d_.pairs.empty()) {
      entry("partial", narrow ? "partial" : "partial tile", narrow ? 70 : 106);
    } else {
      entry("partial", narrow ? "partial: kept" : "partial tile: kept", narrow ? 108 : 136);
      entry("dropped", "dropped", narrow ? 80 : 88);
    }
    entry("page", narrow ? "empty" : "empty tile", 90);
    return out;
  }

  static double largest(const Heat& heat) {
    double most = 0;
    for (const double v : heat.values)
      if (std::isfinite(v)) most = std::max(most, std::fabs(v));
    return most;
  }

  /// The number of strengths of each colour: one path for each strength keeps the text short, and the eye sees no finer
  /// difference.
  static constexpr int strengths = 24;

  std::string cells(const Heat& heat, double most) const {
    std::vector<int> levels(heat.values.size());  // 0: nothing is drawn; negative: the colour of negative numbers
    for (std::int32_t r = 0; r < heat.rows; ++r) {
      const auto row = heat.values.begin() + std::int64_t{r} * heat.columns;
      double full = most;
      if (heat.scale == Heat::Scale::by_row) {
        full = 0;
        for (std::int32_t c = 0; c < heat.columns; ++c)
          if (row[c] > full) full = row[c];
      }
      for (std::int32_t c = 0; c < heat.columns; ++c) {
        const double share = full > 0 && !std::isnan(row[c]) ? std::clamp(row[c] / full, -1.0, 1.0) : 0;
        levels[as_size(std::int64_t{r} * heat.columns + c)] = static_cast<int>(std::lround(share * strengths));
      }
    }
    std::string out;
    for (int level = -strengths; level <= strengths; ++level) {
      if (level == 0) continue;
      const auto list = boxes(heat.rows, heat.columns, [&](std::int32_t r, std::int32_t c) {
        return levels[as_size(std::int64_t{r} * heat.columns + c)] == level;
      });
      const std::string look = fmt::format("{}\" fill-opacity=\"{:.3g}", colour(heat, level),
                                           static_cast<double>(std::abs(level)) / strengths);
      out += path(list, look, width_ / heat.columns, height_ / heat.rows);
    }
    return out;
  }

  static std::string_view colour(const Heat& heat, int level) {
    return heat.scale == Heat::Scale::by_row ? "likely" : level > 0 ? "plus" : "minus";
  }

  /// The colours from their least to their most, with the numbers that they stand for.
  std::string heat_legend(double x, const Heat& heat, double most) const {
    const double y = top_ + height_ + 22, step = 7;
    const bool by_row = heat.scale == Heat::Scale::by_row;
    const std::string low = by_row ? "0" : fmt::format("{:.3g}", -most),
                      high = by_row ? "the row's largest" : fmt::format("{:.3g}", most);
    const double begin = x + 6 + 7.0 * static_cast<double>(low.size());
    std::string out = fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"attune-ink\">{}</text>\n", x, y + 10, low);
    constexpr int each = 8;  // steps of the bar for each colour
    int at = 0;
    for (int level = by_row ? 1 : -each; level <= each; ++level, ++at)
      if (level != 0)
        out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"12\" class=\"attune-{}\" "
                           "fill-opacity=\"{:.3g}\"/>\n",
                           begin + at * step, y, step, colour(heat, level),
                           static_cast<double>(std::abs(level)) / each);
    return out + fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"attune-ink\">{}</text>\n", begin + at * step + 6,
                             y + 10, high);
  }

  static constexpr std::int32_t most_lines = 64;
  const Drawing& d_;
  int panels_ = 1;
  double longest_ = 440, width_ = 0, height_ = 0, step_ = 0, top_ = 0;
};

}  // namespace

std::string svg(const Drawing& drawing) { return Page(drawing).run(); }

}  // namespace attune::runtime
