// runtime/picture/draw.cpp — evaluates a Mod over the cells of a picture; titles and notes
#include "runtime/picture/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "ir/print.h"
#include "runtime/captures.h"
#include "runtime/picture/counts.h"
#include "runtime/tensor.h"

namespace attune::runtime {
namespace {

/// A figure in a page stays small: above this many bytes it shows only tiles.
constexpr std::size_t most_svg = 200 * 1000;
/// Cells of numbers along each axis.
constexpr std::int32_t most_cells = 96;
/// Evaluations of a score for one picture: some seconds.
constexpr std::int64_t most_scores = std::int64_t{1} << 24;
/// Rows whose pairs are counted one by one from exact bands.
constexpr std::int64_t most_counted_rows = 1 << 21;

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

std::string title(const compiler::LoweredMod& lowered) {
  const ir::Signature names = lowered.mod.signature();
  std::string out;
  const auto add = [&](const char* name, const ir::Expr& e, std::string_view plain) {
    const std::string text = e ? ir::print(e, names) : "";
    if (!text.empty() && text != plain) out += (out.empty() ? "" : "\n") + fmt::format("{}: {}", name, text);
  };
  add("score", lowered.mod.score, "s");
  add("mask", lowered.mod.mask, "true");
  add("prob", lowered.mod.prob, "p");
  add("sink", lowered.mod.sink, "");
  return out.empty() ? "plain attention" : out;
}

/// scale * (q . k) of one batch entry and head.
class Products {
 public:
  explicit Products(const View& view) : view_(view) {
    if (!view.q.given()) return;
    const Tensor &q = view.q, &k = view.k;
    const bool fits = q.rank == 4 && k.given() && k.rank == 4 && q.shape[3] == k.shape[3] && k.shape[1] > 0 &&
                      q.shape[1] % k.shape[1] == 0 && view.b < q.shape[0] && view.h < q.shape[1] &&
                      (k.shape[0] == 1 || k.shape[0] == q.shape[0]);
    if (!fits)
      throw Error("picture-qk", "q and k do not give a picture's scores", {},
                  fmt::format("q is {}, and k {}", q.describe(), k.given() ? k.describe() : "not given"),
                  "pass q [B, Hq, Sq, D] and k [B, Hkv, Skv, D], on the host");
    scale_ = view.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, q.shape[3]))));
    kv_head_ = view.h / (q.shape[1] / k.shape[1]);
    kv_batch_ = k.shape[0] == 1 ? 0 : view.b;
  }

  double operator()(std::int64_t row, std::int64_t kv) const {
    if (!view_.q.given()) return 0;
    double sum = 0;
    for (std::int64_t d = 0; d < view_.q.shape[3]; ++d)
      sum += load(view_.q, offset(view_.q, view_.b, view_.h, row, d)) *
             load(view_.k, offset(view_.k, kv_batch_, kv_head_, kv, d));
    return sum * scale_;
  }

 private:
  const View& view_;
  double scale_ = 1;
  std::int64_t kv_head_ = 0, kv_batch_ = 0;
};

/// The rows of a picture: one query for each row of cells, the middle one, and every key.
class Rows {
 public:
  Rows(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view)
      : view_(view), args_(args), products_(view), read_(reader(args.captures)), program_(roots(lowered)),
        sink_(lowered.mod.sink), prob_(lowered.mod.prob) {
    env_.b = view.b, env_.h = view.h;
    env_.q_len = view.extent.q_len, env_.kv_len = view.extent.kv_len;
    env_.params = args_.params;
    env_.read = &read_;
  }

  std::int32_t rows() const { return std::min(view_.extent.q_len, most_cells); }
  std::int32_t columns() const { return std::min(view_.extent.kv_len, most_cells); }

  /// Scores and probabilities of a row of cells: the mean score and the sum of probabilities of the pairs that are
  /// kept.
  void operator()(std::int32_t row, std::vector<double>& scores, std::vector<double>& probs) {
    const std::int32_t n = view_.extent.kv_len;
    const auto query = static_cast<std::int32_t>((std::int64_t{2} * row + 1) * view_.extent.q_len / (2 * rows()));
    std::vector<double> score(static_cast<std::size_t>(n), nothing);
    env_.q = view_.extent.q_offset + query;
    double most = -std::numeric_limits<double>::infinity();
    for (env_.kv = 0; env_.kv < n; ++env_.kv) {
      env_.s = products_(query, env_.kv);
      program_.run(env_, memory_);
      const double value = program_.result(0, memory_);
      if (program_.result(1, memory_) == 0 || value == -std::numeric_limits<double>::infinity()) continue;
      score[static_cast<std::size_t>(env_.kv)] = value;
      most = std::max(most, value);
    }
    env_.kv = 0;
    const double sink = sink_ ? ir::eval(sink_, env_) : -std::numeric_limits<double>::infinity();
    most = std::max(most, sink);
    double total = std::isfinite(sink) ? std::exp(sink - most) : 0;
    for (const double s : score)
      if (!std::isnan(s)) total += std::exp(s - most);
    const ir::Program prob(prob_);
    for (std::int32_t c = 0; c < columns(); ++c) {
      const std::int64_t from = std::int64_t{c} * n / columns(), to = std::int64_t{c + 1} * n / columns();
      double sum = 0, mass = 0;
      int kept = 0;
      for (std::int64_t kv = from; kv < to; ++kv) {
        const double s = score[static_cast<std::size_t>(kv)];
        if (std::isnan(s)) continue;
        env_.kv = static_cast<std::int32_t>(kv);
        env_.p = total > 0 ? std::exp(s - most) / total : 0;
        prob.run(env_, memory_);
        sum += s, mass += prob.result(0, memory_), ++kept;
      }
      scores.push_back(kept ? sum / kept : nothing);
      probs.push_back(kept ? mass : nothing);
    }
  }

 private:
  static ir::Program roots(const compiler::LoweredMod& lowered) {
    return ir::Program(std::array{lowered.mod.score, lowered.mod.mask});
  }

  const View& view_;
  const compiler::Args& args_;
  Products products_;
  ir::ReadCapture read_;
  ir::Program program_;
  ir::Expr sink_, prob_;
  ir::Env env_;
  ir::Program::Memory memory_;
};

/// What is kept of the one batch entry and head that a view shows.
Kept of_one(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view, bool alike) {
  const Tiles tiles(lowered, args);
  Extent one = view.extent;
  one.batch = one.heads = 1;
  Kept kept{.lists = {.extent = one, .offsets = {0}, .runs = {}}};
  for (std::int32_t tile = 0; tile < one.q_tiles(); ++tile) {
    tiles.row(view.extent, view.b, view.h, tile, kept.lists.runs);
    kept.lists.offsets.push_back(std::ssize(kept.lists.runs));
  }
  for (const Run& run : kept.lists.runs)
    (run.keep == Keep::All ? kept.lists.all : kept.lists.some) += run.end - run.begin;
  kept.lists.total = std::int64_t{one.q_tiles()} * one.kv_tiles();
  if (one.q_len <= most_pairs_across && one.kv_len <= most_pairs_across) {
    kept.pairs = kept_pairs(lowered, args, one, view.b, view.h);
    kept.live = std::count(kept.pairs.begin(), kept.pairs.end(), 1);
  } else if (alike && one.q_len <= most_counted_rows) {
    kept.live = tiles.live(one);
  }
  return kept;
}

}  // namespace

std::array<Heat, 2> numbers(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view) {
  Rows rows(lowered, args, view);
  const std::int64_t keys = view.extent.kv_len;
  if (rows.rows() * keys > most_scores)
    throw Error("bad-size", "there are too many keys for a picture of scores", {},
                fmt::format("it evaluates {} rows of {} keys", rows.rows(), grouped(keys)),
                fmt::format("show at most {} keys, or the tiles alone", grouped(most_scores / rows.rows())));
  const std::string when = view.q.given() ? "" : " where q . k = 0";
  Heat score{.caption = "score" + when, .rows = rows.rows(), .columns = rows.columns(), .values = {}};
  Heat prob = score;
  prob.caption = "probability" + when;
  prob.scale = Heat::Scale::by_row;
  for (std::int32_t r = 0; r < rows.rows(); ++r) rows(r, score.values, prob.values);
  return {std::move(score), std::move(prob)};
}

std::vector<char> kept_pairs(const compiler::LoweredMod& lowered, const compiler::Args& args, const Extent& e,
                             std::int32_t b, std::int32_t h) {
  const ir::ReadCapture read = reader(args.captures);
  const ir::Program program(lowered.cover.mask);
  ir::Program::Memory memory;
  ir::Env env;
  env.b = b, env.h = h;
  env.q_len = e.q_len, env.kv_len = e.kv_len;
  env.params = args.params;
  env.read = &read;
  std::vector<char> pairs;
  for (env.q = e.q_offset; env.q < e.q_offset + e.q_len; ++env.q)
    for (env.kv = 0; env.kv < e.kv_len; ++env.kv) {
      program.run(env, memory);
      pairs.push_back(program.result(0, memory) != 0);
    }
  return pairs;
}

Drawing tiles_drawing(std::string title, const Kept& kept, std::int32_t b, std::int32_t h) {
  const TileLists& lists = kept.lists;
  const Extent& e = lists.extent;
  Drawing d{.title = std::move(title), .notes = {}, .extent = e, .grid = grid(lists, b, h, 128)};
  d.notes.push_back(fmt::format("{} × {} in tiles of {} × {}", counted(e.q_len, "query", "queries"),
                                counted(e.kv_len, "key", "keys"), e.tile_q, e.tile_kv));
  const bool many = std::int64_t{e.batch} * e.heads > 1;
  if (many) d.notes[0] += fmt::format(", b = {}, h = {} of {} × {}", b, h, e.batch, e.heads);
  d.notes.push_back(fmt::format("{}{} full, {} partial, {} empty tiles", many ? "together " : "", grouped(lists.all),
                                grouped(lists.some), grouped(lists.total - lists.some - lists.all)));
  if (kept.live) {
    const std::int64_t in_all = std::int64_t{e.batch} * e.heads * e.q_len * e.kv_len;
    d.notes.back() += fmt::format("; {} of {} pairs kept ({})", grouped(*kept.live), grouped(in_all),
                                  percent(static_cast<double>(*kept.live), static_cast<double>(in_all)));
  }
  const bool several = d.grid.by_row * d.grid.by_column > 1;
  if (several)
    d.notes.push_back(
        fmt::format("a cell is {} × {} tiles, and partial where these differ", d.grid.by_row, d.grid.by_column));
  if (!several) d.pairs = kept.pairs;
  return d;
}

std::string compact_svg(Drawing drawing) {
  std::string all = svg(drawing);
  if (all.size() <= most_svg || drawing.pairs.empty()) return all;
  drawing.pairs.clear();
  return svg(drawing);
}

std::string draw(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& asked) {
  View view = asked;
  const Extent& e = view.extent;
  if (!view.tiles && !view.score && !view.prob) {
    view.tiles = lowered.removes();
    view.score = view.q.given() || !(lowered.mod.score->op == ir::Op::Input);
    view.prob = view.score;
    if (!view.tiles && !view.score) view.tiles = true;
  }
  Drawing d{.title = title(lowered), .notes = {}, .extent = e};
  if (view.tiles) {
    const bool alike = !lowered.cover.by_batch && !lowered.cover.by_head;
    const Kept kept = of_one(lowered, args, view, alike);
    d = tiles_drawing(d.title, kept, 0, 0);
    if (!alike) d.notes[0] += fmt::format(", b = {}, h = {}", view.b, view.h);
  } else {
    d.notes.push_back(fmt::format("{} × {}", counted(e.q_len, "query", "queries"), counted(e.kv_len, "key", "keys")));
  }
  if (view.score || view.prob) {
    auto [score, prob] = numbers(lowered, args, view);
    if (view.score) d.heat.push_back(std::move(score));
    if (view.prob) d.heat.push_back(std::move(prob));
  }
  return compact_svg(std::move(d));
}

}  // namespace attune::runtime
