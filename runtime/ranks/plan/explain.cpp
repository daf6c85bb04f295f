// runtime/ranks/plan/explain.cpp — a plan as text, every assignment and schedule with its predicted time; and as an
// SVG, with a time line of each rank
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/engines/picture/page.h"
#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

std::string Plan::explain() const {
  using runtime::grouped;
  std::string out = fmt::format("{} ranks, {} queries, {} keys, {}/{} heads of {}/{}, {}\n", count(), grouped(q.rows),
                                grouped(kv.rows), sizes.q_heads, sizes.kv_heads, sizes.d, sizes.dv, name_of(dtype));
  out += fmt::format("blocks of {}: {} of queries, {} of keys\n", how.block, q.blocks.size(), kv.blocks.size());
  out += "\nassignments       load   moved   predicted\n";
  for (const Candidate& c : candidates)
    out += fmt::format("  {:<12}{:>9.3f}{:>7.1f}%  {:>10}{}\n", name_of(c.assignment), c.load, 100 * c.gather,
                       milliseconds(c.ms), &c == &candidates.front() ? "   chosen" : "");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    out += layers.size() > 1 ? fmt::format("\nschedules of layer {}    predicted   of ideal   received\n", i)
                             : "\nschedules             predicted   of ideal   received\n";
    for (const Predicted& p : layers[i].schedules) {
      const std::string name = p.travel == Travel::gather
                                   ? fmt::format("gather, {} group{}", p.groups, p.groups > 1 ? "s" : "")
                                   : std::string(name_of(p.travel));
      if (!p.why_not.empty()) {
        out += fmt::format("  {:<20}not possible: {}\n", name, p.why_not);
        continue;
      }
      double most = 0;
      for (const RankTimes& r : p.ranks) most = std::max(most, r.received());
      const Predicted& chosen = layers[i].chosen();
      out += fmt::format("  {:<20}{:>11}{:>9.1f}%  {:>6.0f} MB{}\n", name, milliseconds(p.ms),
                         p.ms > 0 ? 100 * p.ideal / p.ms : 100, most / 1e6,
                         &p == &chosen      ? "   chosen"
                         : p.ms < chosen.ms ? "   faster, but its bits are not one rank's"
                                            : "");
    }
  }
  return out;
}

namespace {

constexpr double left = 74, plot_width = 560, right = 24;

class Picture {
 public:
  Picture(const Plan& ranks, const Layer& layer, std::string_view title)
      : ranks_(ranks), layer_(layer), title_(title), row_(std::clamp(320.0 / ranks.count(), 1.0, 16.0)) {}

  std::string operator()() {
    words(20, 24, fmt::format("font-family=\"monospace\" font-size=\"13\" class=\"attune-ink\""), title_);
    words(20, 42, "class=\"attune-dim\"", assignment());
    words(20, 58, "class=\"attune-dim\"", schedule());
    y_ = 84;
    panel("who holds what", "0", grouped(ranks_.q.rows), [this](int r) { held(r); });
    legend({{"full", ranks_.together ? "queries and keys of a rank" : "queries of a rank"}});
    panel("which keys travel to each rank", "0", grouped(ranks_.kv.rows), [this](int r) { travels(r); });
    legend({{"full", "its own keys"}, {"partial", "keys that arrive"}, {"page", "keys that it does not need"}});
    const double ms = layer_.chosen().ms;
    panel(fmt::format("when, by {}", name_of(layer_.chosen().travel)), "0", milliseconds(ms),
          [this](int r) { times(r); });
    legend({{"full", "computes"}, {"partial", "receives"}});
    const double height = y_ + 4;
    return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
                       "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
                       "<title>{2}</title>\n{3}<rect width=\"100%\" height=\"100%\" class=\"attune-page\"/>\n",
                       left + plot_width + right, height, escaped(title_), page_style) +
           out_ + "</svg>\n";
  }

 private:
  std::string assignment() const {
    const Candidate& c = ranks_.candidates.front();
    return fmt::format("{} ranks, sharded {}: the most work is {:.2f} of the mean, {:.1f} % of others' keys travel",
                       ranks_.count(), name_of(c.assignment), c.load, 100 * c.gather);
  }
  std::string schedule() const {
    const Predicted& p = layer_.chosen();
    return fmt::format("{}{}: {}, {:.1f} % of ideal", name_of(p.travel),
                       p.groups > 1 ? fmt::format(" in {} groups", p.groups) : "", milliseconds(p.ms),
                       p.ms > 0 ? 100 * p.ideal / p.ms : 100.0);
  }

  void words(double x, double y, std::string_view look, std::string_view text) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, look, escaped(text));
  }

  template <class Row>
  void panel(std::string_view caption, std::string_view from, std::string_view to, const Row& row) {
    words(left, y_, "font-weight=\"bold\" class=\"attune-ink\"", caption);
    words(left, y_ + 16, "font-size=\"11\" class=\"attune-dim\"", from);
    words(left + plot_width, y_ + 16, "font-size=\"11\" text-anchor=\"end\" class=\"attune-dim\"", to);
    const double top = y_ + 22, height = row_ * ranks_.count();
    for (const bool first : {true, false})
      if (first || ranks_.count() > 1)
        words(left - 8, first ? top + std::max(8.0, row_ - 3) : top + height,
              "font-size=\"11\" text-anchor=\"end\" class=\"attune-dim\"",
              fmt::format("rank {}", first ? 0 : ranks_.count() - 1));
    for (std::string& path : paths_) path.clear();
    for (int r = 0; r < ranks_.count(); ++r) {
      at_ = top + r * row_;
      row(r);
    }
    for (const auto& [look, path] : {std::pair{"full", &paths_[0]}, {"partial", &paths_[1]}})
      if (!path->empty()) out_ += fmt::format("<path class=\"attune-{}\" d=\"{}\"/>\n", look, *path);
    out_ += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" class=\"attune-edge\" "
                        "stroke-width=\"0.5\"/>\n",
                        left, top, plot_width, height);
    y_ = top + height + 10;
  }

  void legend(std::initializer_list<std::pair<std::string_view, std::string_view>> entries) {
    double x = left;
    for (const auto& [look, text] : entries) {
      out_ += fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"12\" class=\"attune-{}\"/>"
                          "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"12\" class=\"attune-edge\" "
                          "stroke-width=\"0.5\"/>\n",
                          x, y_, look, x, y_);
      words(x + 18, y_ + 10, "class=\"attune-ink\"", text);
      x += 40 + 6.2 * static_cast<double>(text.size());
    }
    y_ += 44;
  }

  /// A bar of the current row; `from` and `to` are fractions of the width. With many ranks there are no gaps between
  /// bars.
  void bar(std::size_t look, double from, double to, double part_begin = 0, double part_end = 1) {
    const double gap = row_ > 6 ? 1.5 : 0, y = at_ + gap + (row_ - 2 * gap) * part_begin,
                 height = (row_ - 2 * gap) * (part_end - part_begin);
    paths_[look] += fmt::format("M{:.5g} {:.5g}h{:.4g}v{:.4g}h-{:.4g}z", left + plot_width * from, y,
                                std::max(0.25, plot_width * (to - from)), height,
                                std::max(0.25, plot_width * (to - from)));
  }

  void held(int rank) {
    for (const Sharding::Range& s : ranks_.q_of[static_cast<std::size_t>(rank)])
      bar(0, share(s.begin, ranks_.q.rows), share(s.end, ranks_.q.rows));
  }

  void travels(int rank) {
    const Axis& kv = ranks_.kv;
    const auto runs = [&](std::size_t look, const auto& is) {
      for (std::size_t g = 0; g < kv.blocks.size();) {
        if (!is(g)) {
          ++g;
          continue;
        }
        const std::int64_t from = kv.blocks[g].row;
        while (g < kv.blocks.size() && is(g)) ++g;
        bar(look, share(from, kv.rows), share(kv.blocks[g - 1].row + kv.blocks[g - 1].rows(), kv.rows));
      }
    };
    const std::vector<int>& owners = ranks_.owners().kv;
    runs(0, [&](std::size_t g) { return owners[g] == rank; });
    runs(1, [&](std::size_t g) {
      bool needed = false;
      for (std::size_t t = 0; t < layer_.needs->tables(); ++t) needed = needed || layer_.needs->of(t, rank).has(g);
      return owners[g] != rank && needed;
    });
  }

  void times(int rank) {
    const Predicted& p = layer_.chosen();
    const RankTimes& times = p.ranks[static_cast<std::size_t>(rank)];
    for (const Bar& b : times.computes) bar(0, b.begin / p.ms, b.end / p.ms, 0, 0.6);
    for (const Bar& b : times.travels)
      if (b.end > b.begin) bar(1, b.begin / p.ms, b.end / p.ms, 0.6, 1);
  }

  static double share(std::int64_t n, std::int64_t all) {
    return static_cast<double>(n) / static_cast<double>(std::max<std::int64_t>(1, all));
  }

  const Plan& ranks_;
  const Layer& layer_;
  std::string_view title_;
  double row_, y_ = 0, at_ = 0;
  std::string out_, paths_[2];
};

}  // namespace

std::string picture(const Plan& ranks, std::size_t layer, std::string_view title) {
  return Picture(ranks, ranks.layers.at(layer), title)();
}

}  // namespace attune::runtime::ranks
